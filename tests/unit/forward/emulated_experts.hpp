// Products of experts' matrices as matrix units compute them, on devices that have none.
#pragma once

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/experts.hpp"
#include "gpu/kernels/matvec_units_experts_emulated.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::forward {

// A workgroup of one subgroup, which computes all segments of a row one after another (units_emulated.glsl).
inline void emulate_experts(gpu::kernels::MatvecVariant& variant,
                            const gpu::kernels::MatvecShape& shape, bool sums = false) {
  namespace k = gpu::kernels;
  variant.spec.spirv = gpu::spirv::matvec_units_experts_emulated;
  variant.spec.required_subgroup_size = 0;
  auto units = k::read_constants<k::MatvecUnitsConstants>(variant.spec);
  // expert_sum.glsl loads everything in one step.
  units.step_groups *= sums ? units.subgroups : 1;
  units.subgroups = 1;
  units.invocations = 32;
  units.serial = 1;
  k::write_constants(variant.spec, units);
  const auto product = k::read_constants<k::MatvecConstants>(variant.spec);
  variant.rows_per_workgroup = product.rows * (shape.epilogue == k::Epilogue::kGated ? 8 : 16);
}

}  // namespace bulkhead::forward

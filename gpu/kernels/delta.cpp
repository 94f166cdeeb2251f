#include "gpu/kernels/delta.hpp"

#include <algorithm>

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/delta_inputs.hpp"
#include "gpu/kernels/delta_output.hpp"
#include "gpu/kernels/delta_scan.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kMostParts = 8;
// The scan's two dispatches in wide steps (delta_scan.comp). bench/history/kernels.md has the measurements.
constexpr std::uint32_t kLeastDividedColumns = 65, kFewWorkgroups = 512, kColumnsTogether = 4;

DeltaConstants delta_constants(const Mapping& mapping, const DeltaShape& shape,
                               std::uint32_t invocations) {
  DeltaConstants constants;
  constants.invocations = invocations;
  constants.size = shape.size;
  constants.key_heads = shape.key_heads;
  constants.value_heads = shape.value_heads;
  constants.taps = shape.taps;
  constants.parts = std::min(kMostParts, mapping.lanes);
  constants.lanes = mapping.lanes;
  constants.neighbours = shape.neighbours ? 1 : 0;
  constants.form = static_cast<std::uint32_t>(mapping.input_form());
  constants.value_size = shape.value_size;
  constants.rule = static_cast<std::uint32_t>(shape.rule);
  constants.normed = shape.normed();
  constants.norms = shape.norms ? 1 : 0;
  return constants;
}

// Returns how many invocations share this many entries; each takes only a few.
std::uint32_t invocations_for(const Mapping& mapping, std::uint32_t entries) {
  std::uint32_t invocations = mapping.lanes;
  while (!mapping.rows && invocations < std::min(entries, 128U))
    invocations *= 2;
  return invocations;
}

}  // namespace

DeltaKernel delta_inputs(const Mapping& mapping, const DeltaShape& shape) {
  const std::uint32_t invocations = invocations_for(mapping, shape.size);
  return {{"delta inputs", spirv::delta_inputs, sizeof(DeltaPush),
           constants_of(delta_constants(mapping, shape, invocations)), 0},
          (shape.channels() + shape.size - 1) / shape.size};
}

DeltaScans delta_scans(const Mapping& mapping, const DeltaShape& shape, std::uint32_t columns) {
  constexpr std::uint32_t kSubgroups = 4;
  DeltaConstants constants = delta_constants(mapping, shape, mapping.lanes * kSubgroups);
  const std::uint32_t values = constants.invocations / constants.parts;
  DeltaScans scans;
  scans.z = (shape.value_size + values - 1) / values;
  if (!mapping.rows && columns >= kLeastDividedColumns)
    scans.few = std::max(kFewWorkgroups / (shape.value_heads * scans.z), 1U);
  constants.few = scans.few;
  const std::uint32_t subgroup = mapping.rows ? 0 : mapping.required_subgroup;
  const auto spec = [&](const char* name) {
    return KernelSpec{name, spirv::delta_scan, sizeof(DeltaPush), constants_of(constants), subgroup};
  };
  scans.others = spec("delta scan");
  if (scans.few == 0) return scans;
  constants.together = kColumnsTogether;
  scans.few_long = spec("delta scan of long runs");
  return scans;
}

DeltaKernel delta_output(const Mapping& mapping, const DeltaShape& shape) {
  const std::uint32_t invocations = invocations_for(mapping, shape.normed());
  return {{"delta output", spirv::delta_output, sizeof(DeltaPush),
           constants_of(delta_constants(mapping, shape, invocations)), 0},
          shape.value_width() / shape.normed()};
}

}  // namespace bulkhead::gpu::kernels

// The ways of dividing a product among subgroups that bench-matvec times. All of them compute the same bits, but for
// other splits of a row (`all_splits`), which are another order of additions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::bench {

struct ProductVariant {
  gpu::KernelSpec spec;
  std::uint32_t columns_each = 1, rows_each = 1;  // of a workgroup
  std::string label;
  bool standard = false;  // the variant that k::matvec chooses
  double microseconds = 0;
  std::uint64_t hash = 0;  // of the results
  std::string registers;   // what the compiler says about registers
};

// Returns the variants of a product by lanes. `most_groups`: the most workgroups of a dispatch along its y axis.
std::vector<ProductVariant> lanes_variants(const gpu::kernels::Mapping& mapping,
                                           const gpu::kernels::MatvecShape& shape,
                                           std::uint32_t columns, bool all_splits,
                                           std::uint32_t most_groups);

// Returns the variants for matrix units (gpu::kernels::UnitTiling): the one in use, and those whose label contains
// `wanted`.
std::vector<ProductVariant> unit_variants(const gpu::kernels::MatvecShape& shape,
                                          std::uint32_t columns, const std::string& wanted);

}  // namespace bulkhead::bench

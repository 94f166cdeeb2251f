// How products of the rows and lanes mappings divide their work, from C++. Every choice but LanesTiling::split is
// free: it changes no bit of the results. (For matrix units see units.hpp.)
#pragma once

#include <cstdint>

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

// Returns the constants of a type whose weights are stored in planes.
WeightConstants weight_constants(TensorType type);
// Returns the constants for products of every mapping.
BiasConstants bias_constants(const MatvecShape& shape);

struct RowsTiling {
  std::uint32_t columns = 1;     // per workgroup
  std::uint32_t row_blocks = 1;  // per lane
};
RowsTiling rows_tiling(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns);
MatvecVariant rows_product(const Mapping& mapping, const MatvecShape& shape,
                           const RowsTiling& tiling);

struct LanesTiling {
  std::uint32_t columns = 1;    // per workgroup
  std::uint32_t rows = 1;       // per subgroup
  std::uint32_t subgroups = 4;  // per workgroup
  std::uint32_t split = 1;      // subgroups that share a row: lanes_split()
};
LanesTiling lanes_tiling(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns);
MatvecVariant lanes_product(const Mapping& mapping, const MatvecShape& shape,
                            const LanesTiling& tiling);

}  // namespace bulkhead::gpu::kernels

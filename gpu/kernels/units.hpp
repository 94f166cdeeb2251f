// The matrix units' product from C++: how a product's work is shared, for a shape and so many
// columns. Every choice but the segments is free: it changes no bit.
#pragma once

#include <cstdint>

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

// What kernels know of a type's form.
UnitConstants unit_constants(TensorType type);

// How a row's stages are cut; a part of the order of additions, so made from type and shape alone.
struct UnitSegments {
  std::uint32_t count = 1;   // at most kMostSegments
  std::uint32_t stages = 1;  // in each; the last may have fewer
};
constexpr std::uint32_t kMostSegments = 16;
UnitSegments unit_segments(const MatvecShape& shape);

struct UnitTiling {
  std::uint32_t columns = 8;           // there may be so many at most
  std::uint32_t row_blocks = 1;        // of a subgroup
  std::uint32_t column_tiles = 1;      // of a subgroup, each of 8 columns
  std::uint32_t subgroups = 4;         // of a workgroup
  std::uint32_t step_groups = 4;       // of a step: 1, 2 or a multiple of 4
  bool serial = false;                 // a subgroup makes all of a row's segments
  std::uint32_t column_subgroups = 1;  // serial: side by side over columns
  std::uint32_t ahead = 0;             // kAhead of matvec_units.comp
  bool local_totals = false;           // serial: totals in memory, so that more subgroups run
};
// What has been fastest on an H200 (unit_tilings.cpp).
UnitTiling unit_tiling(const MatvecShape& shape, std::uint32_t columns, bool in_chain = false);
MatvecVariant unit_product(const MatvecShape& shape, const UnitTiling& tiling);
// Whether the sums that its subgroups share find room in a workgroup's shared memory.
bool unit_sums_fit(const MatvecShape& shape, const UnitTiling& tiling);

}  // namespace bulkhead::gpu::kernels

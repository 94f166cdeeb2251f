// The matrix units' product from C++: how a product divides its work, for a shape and a number of columns. Every
// choice but the segments is free: it changes no bit of the results.
#pragma once

#include <cstdint>

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

// Returns the constants of a type's form.
UnitConstants unit_constants(TensorType type);

// Returns how many results a block of kUnitBlockRows matrix rows has: half as many for a gate and an up.
std::uint32_t unit_block_results(const MatvecShape& shape);
// Returns how many blocks a product has.
std::uint32_t unit_blocks(const MatvecShape& shape);

// How a row's stages are divided into segments. That affects the order of additions, so only the type and the shape
// determine it.
struct UnitSegments {
  std::uint32_t count = 1;   // at most kMostSegments
  std::uint32_t stages = 1;  // in each segment; the last one may have fewer
};
constexpr std::uint32_t kMostSegments = 16;
UnitSegments unit_segments(const MatvecShape& shape);

struct UnitTiling {
  std::uint32_t columns = 8;           // the most columns of a step
  std::uint32_t row_blocks = 1;        // per subgroup
  std::uint32_t column_tiles = 1;      // per subgroup, each of 8 columns
  std::uint32_t subgroups = 4;         // per workgroup
  std::uint32_t step_groups = 4;       // groups per step: 1, 2 or a multiple of 4
  bool serial = false;                 // one subgroup computes all of a row's segments
  std::uint32_t column_subgroups = 1;  // serial: subgroups side by side over columns
  std::uint32_t ahead = 0;             // kAhead of matvec_units.comp
  bool local_totals = false;           // serial: keeps totals in memory, so that more subgroups run
  std::uint32_t piece_tiles = 0;       // split: tiles whose segments are added at a time; 0: all
};
// Returns what was fastest on an H200 (unit_tilings.cpp).
UnitTiling unit_tiling(const MatvecShape& shape, std::uint32_t columns, bool in_chain = false);
MatvecVariant unit_product(const MatvecShape& shape, const UnitTiling& tiling);
// Returns whether a workgroup's shared memory has room for the sums that its subgroups share.
bool unit_sums_fit(const MatvecShape& shape, const UnitTiling& tiling);

}  // namespace bulkhead::gpu::kernels

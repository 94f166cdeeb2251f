// The matrix units' product from C++: how a product's work is shared, for a shape and so many
// columns. Every choice but the segments is free: it changes no bit.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

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
};
// What has been fastest on an H200 (bench-matvec).
UnitTiling unit_tiling(const MatvecShape& shape, std::uint32_t columns, bool in_chain = false);
MatvecVariant unit_product(const MatvecShape& shape, const UnitTiling& tiling);

// One column's product as a link of a chain (matvec_single.comp; push constants: SinglePush): the
// same bits.
struct SingleTiling {
  std::uint32_t share = 1;        // segments that a subgroup makes, one after another
  std::uint32_t places = 1;       // blocks of rows that a workgroup makes at a time
  std::uint32_t step_groups = 4;  // of a step: 1, 2 or 4
  std::uint32_t ahead = 0;        // kAhead of matvec_single.comp
  std::uint32_t workgroups = 1;   // at most
};
// Where it is faster than unit_product(): not with 4-bit types.
bool single_pays(WeightType type);
// Inputs of so many groups and fewer, and what they take of shared memory.
constexpr std::uint32_t kMostSingleGroups = 640;
constexpr std::uint32_t kSingleSharedBytes = kMostSingleGroups * 64 + 4096;
// What has been fastest on an H200.
SingleTiling single_tiling(const MatvecShape& shape);
MatvecVariant single_product(const MatvecShape& shape, const SingleTiling& tiling);

}  // namespace bulkhead::gpu::kernels

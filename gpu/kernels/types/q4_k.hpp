// Q4_K: a block has eight groups of 32 weights.
//   half d, half dmin
//   12 bytes                       a six-bit scale and a six-bit minimum for each group
//   for each two groups 32 bytes   nibbles; the first group has the low ones
// A weight is d * scale * nibble - dmin * minimum.
#pragma once

#include "gpu/kernels/packed_scales.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q4_K : PackedScales<16> {
  static constexpr TensorRow kRow{.name = "Q4_K",
                                  .id = 12,
                                  .block_weights = 256,
                                  .block_bytes = 144,
                                  .planes = {.quants = 1, .scales = 2},
                                  .units = {.minima = true, .bias = 8},
                                  .file_type = 15};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint64_t low = load64(block + 16 + group / 2 * 32 + q * 8) >> (group % 2 * 4);
    return low & kNibbleOfEach;
  }
};

}  // namespace bulkhead::gpu::kernels::types

// Q5_K: like Q4_K, with 32 more bytes after the scales: bit g of byte i is the fifth bit of weight i of group g.
#pragma once

#include "gpu/kernels/packed_scales.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q5_K : PackedScales<32> {
  static constexpr TensorRow kRow{.name = "Q5_K",
                                  .id = 13,
                                  .block_weights = 256,
                                  .block_bytes = 176,
                                  .planes = {.quants = 1, .high = 4, .scales = 2},
                                  .units = {.high_bits = 1, .minima = true, .bias = 16},
                                  .file_type = 17};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint64_t low = load64(block + 48 + group / 2 * 32 + q * 8) >> (group % 2 * 4);
    const std::uint64_t fifth = load64(block + 16 + q * 8) >> group;
    return (low & kNibbleOfEach) | ((fifth & kBitOfEach) << 4);
  }
};

}  // namespace bulkhead::gpu::kernels::types

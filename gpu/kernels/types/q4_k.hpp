// Q4_K: a block has eight groups of 32 weights.
//   half d, half dmin
//   12 bytes                       a six-bit scale and a six-bit minimum for each group
//   for each two groups 32 bytes   nibbles; the first group has the low ones
// A weight is d * scale * nibble - dmin * minimum.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q4_K {
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
  // Copies d, dmin and the packed scales and minima unchanged.
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 16); }
  // Multiplies scales out. That costs half a bit a weight, and saves kernels as much work as the nibbles take.
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group, std::uint32_t) {
    const float scale =
        half_to_float(load16(block)) * static_cast<float>(packed_scale(block + 4, group));
    const float minimum =
        -half_to_float(load16(block + 2)) * static_cast<float>(packed_minimum(block + 4, group));
    return {to_half(scale), middle(scale, minimum, 8)};
  }

  static double spread() { return uniform_spread(16) * kMeanPackedScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    settle_packed_scales(block + 4);
    store16(block, to_half(std::fabs(scale)));
    store16(block + 2, to_half(std::fabs(scale) * 7.5F));
  }
};

}  // namespace bulkhead::gpu::kernels::types

// Q5_K: like Q4_K, with 32 more bytes behind the scales: bit g of byte i is the fifth bit of weight i of group g.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q5_K {
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
  // Copies d, dmin and the packed scales and minima unchanged.
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 16); }
  // Multiplies scales out. That costs half a bit a weight, and saves kernels as much work as the nibbles take.
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group, std::uint32_t) {
    const float scale =
        half_to_float(load16(block)) * static_cast<float>(packed_scale(block + 4, group));
    const float minimum =
        -half_to_float(load16(block + 2)) * static_cast<float>(packed_minimum(block + 4, group));
    return {to_half(scale), middle(scale, minimum, 16)};
  }

  static double spread() { return uniform_spread(32) * kMeanPackedScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    settle_packed_scales(block + 4);
    store16(block, to_half(std::fabs(scale)));
    store16(block + 2, to_half(std::fabs(scale) * 15.5F));
  }
};

}  // namespace bulkhead::gpu::kernels::types

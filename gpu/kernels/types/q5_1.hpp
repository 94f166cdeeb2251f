// Q5_1: a half scale, a half minimum, a fifth bit for each weight, 32 nibbles. A weight is scale * five bits +
// minimum.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q5_1 {
  static constexpr TensorRow kRow{.name = "Q5_1",
                                  .id = 7,
                                  .block_weights = 32,
                                  .block_bytes = 24,
                                  .planes = {.quants = 1, .high = 4, .scales = 4},
                                  .units = {.high_bits = 1, .minima = true, .bias = 16},
                                  .file_type = 9};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    const std::uint64_t low = (load64(block + 8 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
    return low | (spread_bits(load32(block + 4) >> (8 * q)) << 4);
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 4); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    const float scale = half_to_float(load16(block)), minimum = half_to_float(load16(block + 2));
    return {load16(block), middle(scale, minimum, 16)};
  }

  static double spread() { return uniform_spread(32); }
  static void set_scale(float scale, std::uint8_t* block) {
    store16(block, to_half(scale));
    store16(block + 2, to_half(-scale * 15.5F));
  }
};

}  // namespace bulkhead::gpu::kernels::types

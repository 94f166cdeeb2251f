// Q5_0: a half scale, a fifth bit for each weight, 32 nibbles. A weight is scale * (five bits - 16).
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q5_0 {
  static constexpr TensorRow kRow{.name = "Q5_0",
                                  .id = 6,
                                  .block_weights = 32,
                                  .block_bytes = 22,
                                  .planes = {.quants = 1, .high = 4, .scales = 2},
                                  .units = {.high_bits = 1, .bias = 16},
                                  .file_type = 8};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    const std::uint64_t low = (load64(block + 6 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
    return low | (spread_bits(load32(block + 2) >> (8 * q)) << 4);
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 2); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    return {load16(block)};
  }

  static double spread() { return uniform_spread(32); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types

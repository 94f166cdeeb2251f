// Q4_1: a half scale, a half minimum and 32 nibbles. A weight is scale * nibble + minimum.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q4_1 {
  static constexpr TensorRow kRow{.name = "Q4_1",
                                  .id = 3,
                                  .block_weights = 32,
                                  .block_bytes = 20,
                                  .planes = {.quants = 1, .scales = 4},
                                  .units = {.minima = true, .bias = 8},
                                  .file_type = 3};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    return (load64(block + 4 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 4); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    const float scale = half_to_float(load16(block)), minimum = half_to_float(load16(block + 2));
    return {load16(block), middle(scale, minimum, 8)};
  }

  static double spread() { return uniform_spread(16); }
  static void set_scale(float scale, std::uint8_t* block) {
    store16(block, to_half(scale));
    store16(block + 2, to_half(-scale * 7.5F));
  }
};

}  // namespace bulkhead::gpu::kernels::types

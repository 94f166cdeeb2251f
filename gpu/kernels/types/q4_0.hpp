// Q4_0: a half scale and 32 nibbles; byte i of the nibbles has weight i and weight i + 16. A weight is scale *
// (nibble - 8).
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q4_0 {
  static constexpr TensorRow kRow{.name = "Q4_0",
                                  .id = 2,
                                  .block_weights = 32,
                                  .block_bytes = 18,
                                  .planes = {.quants = 1, .scales = 2},
                                  .units = {.bias = 8},
                                  .file_type = 2};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    return (load64(block + 2 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 2); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    return {load16(block)};
  }

  static double spread() { return uniform_spread(16); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types

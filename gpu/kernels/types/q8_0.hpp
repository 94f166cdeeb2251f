// Q8_0: a half scale and 32 int8; a weight is the scale times its int8.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q8_0 {
  static constexpr TensorRow kRow{.name = "Q8_0",
                                  .id = 8,
                                  .block_weights = 32,
                                  .block_bytes = 34,
                                  .planes = {.quants = 2, .scales = 2},
                                  .units = {.quants = UnitQuants::kBytes, .bias = 128},
                                  .file_type = 7};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    return load64(block + 2 + q * 8);
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 2); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    return {load16(block)};
  }

  static double spread() { return uniform_spread(256); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types

// BF16: the upper halves of floats. For matrix units they are converted to 16-bit halves.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct BF16 {
  static constexpr TensorRow kRow{.name = "BF16",
                                  .id = 30,
                                  .block_weights = 1,
                                  .block_bytes = 2,
                                  .planes = {.quants = 4},
                                  .units = {.quants = UnitQuants::kHalves},
                                  .file_type = 32};

  static float value(const std::uint8_t* block) {
    return std::bit_cast<float>(std::uint32_t{load16(block)} << 16);
  }
  static std::uint16_t half(const std::uint8_t* block) { return to_half(value(block)); }
  static void store(float value, std::uint8_t* block) {
    store16(block,
            static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000U) >> 16));
  }
};

}  // namespace bulkhead::gpu::kernels::types

// F32: floats. For matrix units they are converted to halves.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct F32 {
  static constexpr TensorRow kRow{.name = "F32",
                                  .id = 0,
                                  .block_weights = 1,
                                  .block_bytes = 4,
                                  .planes = {.quants = 8},
                                  .units = {.quants = UnitQuants::kHalves},
                                  .file_type = 0};

  static float value(const std::uint8_t* block) { return std::bit_cast<float>(load32(block)); }
  static std::uint16_t half(const std::uint8_t* block) { return to_half(value(block)); }
  static void store(float value, std::uint8_t* block) {
    store32(block, std::bit_cast<std::uint32_t>(value));
  }
};

}  // namespace bulkhead::gpu::kernels::types

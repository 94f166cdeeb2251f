// F16: halves.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct F16 {
  static constexpr TensorRow kRow{.name = "F16",
                                  .id = 1,
                                  .block_weights = 1,
                                  .block_bytes = 2,
                                  .planes = {.quants = 4},
                                  .units = {.quants = UnitQuants::kHalves},
                                  .file_type = 1};

  static float value(const std::uint8_t* block) { return half_to_float(load16(block)); }
  static std::uint16_t half(const std::uint8_t* block) { return load16(block); }
  static void store(float value, std::uint8_t* block) { store16(block, to_half(value)); }
};

}  // namespace bulkhead::gpu::kernels::types

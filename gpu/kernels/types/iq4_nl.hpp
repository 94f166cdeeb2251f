// IQ4_NL: like Q4_0, but each nibble stands for one of sixteen values.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct IQ4_NL {
  static constexpr TensorRow kRow{
      .name = "IQ4_NL",
      .id = 20,
      .block_weights = 32,
      .block_bytes = 18,
      .planes = {.quants = 1, .scales = 2},
      .units = {.bias = 128},
      .codebook = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
      .file_type = 25};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t, std::uint32_t q) {
    return (load64(block + 2 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 2); }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t, std::uint32_t) {
    return {load16(block)};
  }

  static double spread() { return codebook_spread(kRow); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types

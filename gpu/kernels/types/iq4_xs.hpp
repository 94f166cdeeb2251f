// IQ4_XS: a block has eight groups of 32 weights.
//   half d
//   for each group 2 bits      high bits of the scale
//   for each group 4 bits      low bits of the scale
//   for each group 16 bytes    nibbles as in IQ4_NL
// A weight is d * (scale - 32) * the value that its nibble stands for.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct IQ4_XS {
  static constexpr TensorRow kRow{
      .name = "IQ4_XS",
      .id = 23,
      .block_weights = 256,
      .block_bytes = 136,
      .planes = {.quants = 1, .scales = 2, .supers = 2},
      .units = {.scales = UnitScales::kSupers, .bias = 128},
      .codebook = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
      .file_type = 30};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    return (load64(block + 8 + group * 16 + q % 2 * 8) >> (q / 2 * 4)) & kNibbleOfEach;
  }
  static std::int8_t sub_scale(const std::uint8_t* block, std::uint32_t sixteen) {
    const std::uint32_t group = sixteen / 2;
    const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 15;
    const int high = (load16(block + 2) >> (group * 2)) & 3;
    return static_cast<std::int8_t>((low | high << 4) - 32);
  }
  static std::uint16_t super_scale(const std::uint8_t* block) { return load16(block); }

  // Assumes random scales from -32 to 31.
  static double spread() { return codebook_spread(kRow) * std::sqrt(341.5); }
  static void set_scale(float scale, std::uint8_t* block) { store16(block, to_half(scale)); }
};

}  // namespace bulkhead::gpu::kernels::types

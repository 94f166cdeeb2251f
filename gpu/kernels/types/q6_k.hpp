// Q6_K: a block has eight groups of 32 weights: low nibbles, two more bits of each weight, an int8 scale for each
// sixteen weights, half d. A weight is d * scale * (six bits - 32).
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q6_K {
  static constexpr TensorRow kRow{
      .name = "Q6_K",
      .id = 14,
      .block_weights = 256,
      .block_bytes = 210,
      .planes = {.quants = 1, .high = 8, .scales = 2, .supers = 2},
      .units = {.high_bits = 2, .scales = UnitScales::kSupers, .bias = 32},
      .file_type = 18};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    const std::uint32_t in_half = group % 4;
    const std::uint64_t low =
        load64(block + group / 4 * 64 + in_half % 2 * 32 + q * 8) >> (in_half / 2 * 4);
    const std::uint64_t high = load64(block + 128 + group / 4 * 32 + q * 8) >> (2 * in_half);
    return (low & kNibbleOfEach) | ((high & kTwoBitsOfEach) << 4);
  }
  static std::int8_t sub_scale(const std::uint8_t* block, std::uint32_t sixteen) {
    return static_cast<std::int8_t>(block[192 + sixteen]);
  }
  static std::uint16_t super_scale(const std::uint8_t* block) { return load16(block + 208); }

  static double spread() { return uniform_spread(64) * kRmsScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    for (std::uint32_t i = 0; i < 16; ++i) {  // scales from 64 to 127, of either sign
      const int was = sub_scale(block, i), magnitude = 64 + (was & 63);
      block[192 + i] = static_cast<std::uint8_t>(was < 0 ? -magnitude : magnitude);
    }
    store16(block + 208, to_half(std::fabs(scale)));
  }

 private:
  static constexpr double kRmsScale = 96.0;
};

}  // namespace bulkhead::gpu::kernels::types

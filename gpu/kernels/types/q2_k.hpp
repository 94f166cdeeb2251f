// Q2_K: a block has eight groups of 32 weights.
//   16 bytes                        a four-bit scale and a four-bit minimum for each sixteen weights
//   for each four groups 32 bytes   two bits of each weight; the first group has the low bits
//   half d, half dmin
// A weight is d * scale * two bits - dmin * minimum.
#pragma once

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

struct Q2_K {
  static constexpr TensorRow kRow{
      .name = "Q2_K",
      .id = 10,
      .block_weights = 256,
      .block_bytes = 84,
      .planes = {.high = 8, .scales = 2, .supers = 4},
      .units = {.scales = UnitScales::kSixteens, .minima = true, .bias = 2},
      .file_type = 10};

  static std::uint64_t eight(const std::uint8_t* block, std::uint32_t group, std::uint32_t q) {
    return (load64(block + 16 + group / 4 * 32 + q * 8) >> (group % 4 * 2)) & kTwoBitsOfEach;
  }
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 16); }
  static void supers(const std::uint8_t* block, std::uint8_t* to) {
    std::memcpy(to, block + 80, 4);
  }
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group,
                              std::uint32_t sixteen) {
    const std::uint8_t both = block[group * 2 + sixteen];
    const float scale = half_to_float(load16(block + 80)) * static_cast<float>(both & 15);
    const float minimum = -half_to_float(load16(block + 82)) * static_cast<float>(both >> 4);
    return {to_half(scale), middle(scale, minimum, 2)};
  }

  static double spread() { return uniform_spread(4) * kMeanScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    for (std::uint32_t i = 0; i < 16; ++i) {  // scales from 8 to 15, each with a minimum equal to it
      const int chosen = 8 + (block[i] & 7);
      block[i] = static_cast<std::uint8_t>(chosen | chosen << 4);
    }
    store16(block + 80, to_half(std::fabs(scale)));
    store16(block + 82, to_half(std::fabs(scale) * 1.5F));
  }

 private:
  static constexpr double kMeanScale = 11.73;  // the root mean square of the scales
};

}  // namespace bulkhead::gpu::kernels::types

// What Q4_K and Q5_K have in common: a block begins with half d, half dmin and twelve bytes of packed scales and
// minima, six bits each, of eight groups.
#pragma once

#include <cmath>

#include "gpu/kernels/tensor_row.hpp"

namespace bulkhead::gpu::kernels::types {

// Read the twelve packed bytes. The first four groups have their scales in the low six bits of bytes 0..3 and their
// minima in those of bytes 4..7. The other four groups have the low four bits in bytes 8..11, and the two high bits
// above those of the first four groups.
inline std::uint32_t packed_scale(const std::uint8_t* packed, std::uint32_t group) {
  if (group < 4) return packed[group] & 63U;
  return (packed[group + 4] & 15U) | static_cast<std::uint32_t>(packed[group - 4] >> 6) << 4;
}
inline std::uint32_t packed_minimum(const std::uint8_t* packed, std::uint32_t group) {
  if (group < 4) return packed[group + 4] & 63U;
  return static_cast<std::uint32_t>(packed[group + 4] >> 4) |
         static_cast<std::uint32_t>(packed[group] >> 6) << 4;
}
// Turns random packed bytes into scales from 32 to 63, each with a minimum equal to its scale.
constexpr double kMeanPackedScale = 47.5;
inline void settle_packed_scales(std::uint8_t* packed) {
  std::uint8_t chosen[8];
  for (std::uint32_t j = 0; j < 8; ++j)
    chosen[j] = static_cast<std::uint8_t>(32 + (packed[j] & 31));
  for (std::uint32_t j = 0; j < 4; ++j) {
    const std::uint8_t later = chosen[j + 4];
    packed[j] = packed[j + 4] = static_cast<std::uint8_t>(chosen[j] | (later >> 4) << 6);
    packed[j + 8] = static_cast<std::uint8_t>((later & 15) | (later & 15) << 4);
  }
}

// `kLevels`: how many integers a weight may be, from 0 on.
template <std::uint32_t kLevels>
struct PackedScales {
  // Copies d, dmin and the packed scales and minima unchanged.
  static void scales(const std::uint8_t* block, std::uint8_t* to) { std::memcpy(to, block, 16); }
  // Multiplies scales out. That costs half a bit a weight, and saves kernels as much work as the nibbles take.
  static UnitScale unit_scale(const std::uint8_t* block, std::uint32_t group, std::uint32_t) {
    const float scale =
        half_to_float(load16(block)) * static_cast<float>(packed_scale(block + 4, group));
    const float minimum =
        -half_to_float(load16(block + 2)) * static_cast<float>(packed_minimum(block + 4, group));
    return {to_half(scale), middle(scale, minimum, kLevels / 2)};
  }

  static double spread() { return uniform_spread(kLevels) * kMeanPackedScale; }
  static void set_scale(float scale, std::uint8_t* block) {
    settle_packed_scales(block + 4);
    store16(block, to_half(std::fabs(scale)));
    store16(block + 2, to_half(std::fabs(scale) * (static_cast<float>(kLevels - 1) / 2)));
  }
};

}  // namespace bulkhead::gpu::kernels::types

// A tensor type's description: its row. gpu/kernels/types/ has a file for each type, with the type's row and the code
// that turns a block of the file into what kernels read; tensor_types.hpp lists them all. It contains only facts of
// the formats, and nothing about GPUs or models.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gpu/kernels/values.hpp"

namespace bulkhead::gpu::kernels {

// The form in planes (weight_layout.hpp, weights.glsl). A group is 32 weights.
struct PlaneForm {
  std::uint32_t quants =
      0;                   // planes of 16 bytes per group: 1 for nibbles, 2 for bytes, 4 for halves, 8 for floats
  std::uint32_t high = 0;  // bytes per group: 4, 8 or 12
  std::uint32_t scales = 0;  // bytes per group: 2 or 4
  std::uint32_t supers = 0;  // bytes per eight groups
};

// The form for matrix units (weight_layout.hpp, units.glsl). Kernels depend on nothing else of a type, so types
// may share a form. The numbers are specialisation constants.
struct UnitForm {
  UnitQuants quants = UnitQuants::kNibbles;
  std::uint32_t high_bits = 0;  // 1 or 2 bits besides each nibble
  UnitScales scales = UnitScales::kGroups;
  // A weight is scale * (integer - bias). If the form has `minima`, a half is added that stands for the bias itself.
  // With a codebook, the integer is looked up first.
  bool minima = false;
  std::uint32_t bias = 0;

  bool operator==(const UnitForm&) const = default;
};

struct TensorRow {
  const char* name = "";
  std::uint32_t id = 0;  // GGUF's number
  std::uint32_t block_weights = 1;
  std::uint32_t block_bytes = 0;
  PlaneForm planes;
  UnitForm units;
  // The values that nibbles stand for; all zeros if nibbles are the numbers themselves.
  std::array<std::int8_t, 16> codebook{};
  // GGUF's general.file_type for a model that mostly has this type.
  std::uint32_t file_type = 0;

  constexpr bool is_float() const { return planes.quants >= 4; }
  constexpr bool has_codebook() const { return codebook != std::array<std::int8_t, 16>{}; }
  // Returns word i of the codebook in the form that kernels take: four values, each plus 128. 0 if there is no
  // codebook.
  constexpr std::uint32_t codebook_word(std::uint32_t i) const {
    std::uint32_t word = 0;
    if (!has_codebook()) return word;
    for (std::uint32_t j = 0; j < 4; ++j)
      word |= static_cast<std::uint32_t>(codebook[i * 4 + j] + 128) << (8 * j);
    return word;
  }
};

// A scale, and the number that stands for the bias, as halves.
struct UnitScale {
  std::uint16_t scale = 0, minimum = 0;
};

// --- helpers for the types' own files

namespace types {

inline std::uint16_t load16(const std::uint8_t* from) {
  std::uint16_t value = 0;
  std::memcpy(&value, from, 2);
  return value;
}
inline std::uint32_t load32(const std::uint8_t* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, 4);
  return value;
}
inline std::uint64_t load64(const std::uint8_t* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, 8);
  return value;
}
inline void store16(std::uint8_t* to, std::uint16_t value) {
  std::memcpy(to, &value, 2);
}
inline void store32(std::uint8_t* to, std::uint32_t value) {
  std::memcpy(to, &value, 4);
}
inline void store64(std::uint8_t* to, std::uint64_t value) {
  std::memcpy(to, &value, 8);
}

// Eight integers in a word, one per byte, the first in the lowest byte: masks of their low bits.
constexpr std::uint64_t kNibbleOfEach = 0x0f0f0f0f0f0f0f0fU;
constexpr std::uint64_t kTwoBitsOfEach = 0x0303030303030303U;
constexpr std::uint64_t kBitOfEach = 0x0101010101010101U;

// Spreads eight bits to the lowest bits of eight bytes.
inline std::uint64_t spread_bits(std::uint32_t bits) {
  std::uint64_t x = bits & 0xffU;
  x = (x | (x << 28)) & 0x0000000f0000000fU;
  x = (x | (x << 14)) & 0x0003000300030003U;
  x = (x | (x << 7)) & kBitOfEach;
  return x;
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  if (magnitude >= 0x7c00U)
    return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
  if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
  return (half & 0x8000U) != 0 ? -subnormal : subnormal;
}

// Rounds to the nearest half. A value beyond the largest half becomes the largest half.
inline std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t a = bits & 0x7fffffffU;
  if (a > 0x7f800000U) return sign | 0x7e00U;
  if (a >= 0x477ff000U) return sign | 0x7bffU;
  if (a >= 0x38800000U) {
    const std::uint32_t r = a - 0x38000000U;
    return static_cast<std::uint16_t>(sign | ((r + 0xfffU + ((r >> 13) & 1U)) >> 13));
  }
  const float aligned = std::bit_cast<float>(a) + 0.5F;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000U));
}

// Returns the standard deviation of integers that random bits make, if `levels` integers are equally likely.
inline double uniform_spread(std::uint32_t levels) {
  return std::sqrt((static_cast<double>(levels) * levels - 1) / 12);
}

// Returns the same for a codebook's values.
inline double codebook_spread(const TensorRow& row) {
  double squares = 0;
  for (const std::int8_t value : row.codebook)
    squares += 1.0 * value * value / 16;
  return std::sqrt(squares);
}

// Returns a minimum in the form that kernels take: the value of the middle of the integers. Rounding the scale to a
// half then causes an error in proportion to a weight's distance from the middle. Measured from the minimum, that
// distance would be up to twice as long; and the minimum itself, which is as large as the largest weight, would be
// rounded as coarsely.
inline std::uint16_t middle(float scale, float minimum, std::uint32_t bias) {
  return to_half(minimum + scale * static_cast<float>(bias));
}

}  // namespace types

}  // namespace bulkhead::gpu::kernels

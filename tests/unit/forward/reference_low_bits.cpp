// Blocks of Q2_K, Q3_K, IQ* and MXFP4 in double, weight by weight. Of the product they use the grids, which are data.
#include <bit>
#include <cmath>
#include <cstring>

#include "reference.hpp"

namespace bulkhead::forward::reference {
namespace {

using model::TensorType;
namespace types = gpu::kernels::types;

using Bytes = const std::uint8_t*;

std::uint32_t word16(Bytes at) {
  return static_cast<std::uint32_t>(at[0] | at[1] << 8);
}
std::uint32_t word32(Bytes at) {
  return word16(at) | word16(at + 2) << 16;
}
double half_at(Bytes at) {
  return half(static_cast<std::uint16_t>(word16(at)));
}
// Bit j of eight signs of which seven are kept.
bool minus(std::uint32_t seven, int j) {
  return j < 7 ? ((seven >> j) & 1) != 0 : std::popcount(seven & 127) % 2 != 0;
}

void q3_k(Bytes b, double* y) {
  const double d = half_at(b + 108);
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, s = i / 16;
    const int low4 = s < 8 ? b[96 + s] & 15 : b[96 + s - 8] >> 4;
    const int scale = low4 + 16 * ((b[104 + s % 4] >> (s / 4 * 2)) & 3) - 32;
    const int low = (b[32 + i / 128 * 32 + i % 32] >> (group % 4 * 2)) & 3;
    const int high = (b[i % 32] >> group) & 1;
    y[i] = d * scale * (low + 4 * high - 4);
  }
}

void q2_k(Bytes b, double* y) {
  const double d = half_at(b + 80), dmin = half_at(b + 82);
  for (int i = 0; i < 256; ++i) {
    const int q = (b[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
    y[i] = d * (b[i / 16] & 15) * q - dmin * (b[i / 16] >> 4);
  }
}

void iq4_xs(Bytes b, double* y) {
  static constexpr int kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, at = i % 32;
    const int low = group % 2 == 0 ? b[4 + group / 2] & 15 : b[4 + group / 2] >> 4;
    const int scale = low + 16 * static_cast<int>((word16(b + 2) >> (2 * group)) & 3) - 32;
    const int byte = b[8 + group * 16 + at % 16];
    y[i] = half_at(b) * scale * kValues[at < 16 ? byte & 15 : byte >> 4];
  }
}

void mxfp4(Bytes b, double* y) {
  static constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int i = 0; i < 32; ++i) {
    const int n = i < 16 ? b[1 + i] & 15 : b[1 + i - 16] >> 4;
    y[i] = std::ldexp(n < 8 ? kValues[n] : -kValues[n - 8], b[0] - 127);
  }
}

void iq3_s(Bytes b, double* y) {
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, four = i % 32 / 4;
    const int nibble = group % 2 == 0 ? b[106 + group / 2] & 15 : b[106 + group / 2] >> 4;
    const int place = b[2 + group * 8 + four] + 256 * ((b[66 + group] >> four) & 1);
    const int magnitude =
        1 + 2 * ((types::IQ3_S::kGrid[static_cast<std::size_t>(place)] >> (4 * (i % 4))) & 15);
    const bool negative = ((b[74 + i / 8] >> (i % 8)) & 1) != 0;
    y[i] = half_at(b) * (1 + 2 * nibble) * (negative ? -magnitude : magnitude);
  }
}

void iq3_xxs(Bytes b, double* y) {
  static constexpr int kValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t word = word32(b + 66 + i / 32 * 4);
    const int magnitude = kValues[(types::IQ3_XXS::kGrid[b[2 + i / 4]] >> (4 * (i % 4))) & 15];
    const bool negative = minus((word >> (i % 32 / 8 * 7)) & 127, i % 8);
    y[i] = half_at(b) * (0.5 + (word >> 28)) * 0.5 * (negative ? -magnitude : magnitude);
  }
}

constexpr int kTwoBitValues[3] = {8, 25, 43};

void iq2_s(Bytes b, double* y) {
  for (int i = 0; i < 256; ++i) {
    const int nibble = i % 32 < 16 ? b[74 + i / 32] & 15 : b[74 + i / 32] >> 4;
    const int place = b[2 + i / 8] + 256 * ((b[66 + i / 32] >> (i % 32 / 8 * 2)) & 3);
    const int magnitude =
        kTwoBitValues[(types::IQ2_S::kGrid[static_cast<std::size_t>(place)] >> (2 * (i % 8))) & 3];
    const bool negative = ((b[34 + i / 8] >> (i % 8)) & 1) != 0;
    y[i] = half_at(b) * (0.5 + nibble) * 0.25 * (negative ? -magnitude : magnitude);
  }
}

void iq2_xs(Bytes b, double* y) {
  for (int i = 0; i < 256; ++i) {
    const int nibble = i % 32 < 16 ? b[66 + i / 32] & 15 : b[66 + i / 32] >> 4;
    const std::uint32_t both = word16(b + 2 + i / 8 * 2);
    const int magnitude = kTwoBitValues[(types::IQ2_XS::kGrid[both & 511] >> (2 * (i % 8))) & 3];
    y[i] = half_at(b) * (0.5 + nibble) * 0.25 * (minus(both >> 9, i % 8) ? -magnitude : magnitude);
  }
}

void iq2_xxs(Bytes b, double* y) {
  for (int i = 0; i < 256; ++i) {
    const Bytes own = b + 2 + i / 32 * 8;
    const std::uint32_t word = word32(own + 4);
    const int magnitude =
        kTwoBitValues[(types::IQ2_XXS::kGrid[own[i % 32 / 8]] >> (2 * (i % 8))) & 3];
    const bool negative = minus((word >> (i % 32 / 8 * 7)) & 127, i % 8);
    y[i] = half_at(b) * (0.5 + (word >> 28)) * 0.25 * (negative ? -magnitude : magnitude);
  }
}

// The value at place i % 8 of IQ1's grid, -1, 0 or 1.
int ternary(std::uint32_t place, int i) {
  return ((types::IQ1_S::kGrid[place] >> (2 * (i % 8))) & 3) - 1;
}

void iq1_s(Bytes b, double* y) {
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t more = word16(b + 34 + i / 32 * 2),
                        l = static_cast<std::uint32_t>(i % 32 / 8);
    const std::uint32_t place = b[2 + i / 8] + 256 * ((more >> (3 * l)) & 7);
    const double delta = (more & 0x8000) != 0 ? -0.125 : 0.125;
    y[i] = half_at(b) * (2 * ((more >> 12) & 7) + 1) * (ternary(place, i) + delta);
  }
}

void iq1_m(Bytes b, double* y) {
  std::uint32_t d = 0;
  for (std::uint32_t i = 0; i < 4; ++i)
    d |= (word16(b + 48 + i * 2) >> 12) << (4 * i);
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t more = static_cast<std::uint32_t>(b[32 + i / 16]) >> (i / 8 % 2 * 4);
    const std::uint32_t place = b[i / 8] + 256 * (more & 7);
    const std::uint32_t scale = (word16(b + 48 + i / 64 * 2) >> (i / 16 % 4 * 3)) & 7;
    const double delta = (more & 8) != 0 ? -0.125 : 0.125;
    y[i] = half(static_cast<std::uint16_t>(d)) * (2 * scale + 1) * (ternary(place, i) + delta);
  }
}

}  // namespace

bool low_bits(TensorType type, Bytes block, double* y) {
  static constexpr struct {
    TensorType type;
    void (*decode)(Bytes block, double* y);
  } kTypes[] = {
      {TensorType::kQ3_K, q3_k},   {TensorType::kQ2_K, q2_k},     {TensorType::kIQ4_XS, iq4_xs},
      {TensorType::kMXFP4, mxfp4}, {TensorType::kIQ3_S, iq3_s},   {TensorType::kIQ3_XXS, iq3_xxs},
      {TensorType::kIQ2_S, iq2_s}, {TensorType::kIQ2_XS, iq2_xs}, {TensorType::kIQ2_XXS, iq2_xxs},
      {TensorType::kIQ1_S, iq1_s}, {TensorType::kIQ1_M, iq1_m}};
  for (const auto& each : kTypes) {
    if (each.type != type) continue;
    each.decode(block, y);
    return true;
  }
  return false;
}

}  // namespace bulkhead::forward::reference

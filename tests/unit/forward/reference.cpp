#include "reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include <gtest/gtest.h>

namespace bulkhead::forward::reference {

using model::TensorType;

double half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

namespace {

double limited(double limit, double gate, double up) {
  return std::min(gate / (1 + std::exp(-gate)), limit) * std::clamp(up, -limit, limit);
}

}  // namespace

double gated(gpu::kernels::Gate function, double gate, double up) {
  switch (function) {
    case gpu::kernels::Gate::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case gpu::kernels::Gate::kGelu:
      return gate / 2 *
             (1 +
              std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * std::pow(gate, 3)))) *
             up;
    case gpu::kernels::Gate::kClamped: {
      const double held = std::min(gate, 7.0);
      return held / (1 + std::exp(-1.702 * held)) * (std::clamp(up, -7.0, 7.0) + 1);
    }
    case gpu::kernels::Gate::kSigmoid:
      return up / (1 + std::exp(-gate));
    case gpu::kernels::Gate::kSquaredRelu:
      return std::max(gate, 0.0) * std::max(gate, 0.0) * up;
    case gpu::kernels::Gate::kSiluTo7:
      return limited(7, gate, up);
    case gpu::kernels::Gate::kSiluTo16:
      return limited(16, gate, up);
  }
  return 0;
}

namespace {

double half_at(const std::uint8_t* at) {
  return half(static_cast<std::uint16_t>(at[0] | (at[1] << 8)));
}

void block_of_32(TensorType type, const std::uint8_t* b, double* y) {
  static constexpr int kCodebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
  const double d = half_at(b);
  const auto fill = [&](auto value_at) {
    for (int i = 0; i < 32; ++i)
      y[i] = value_at(i);
  };
  // Weights 0 to 15 are the low nibbles of sixteen bytes, and weights 16 to 31 are the high ones.
  const auto nibble = [](const std::uint8_t* from, int i) {
    return i < 16 ? from[i] & 15 : from[i - 16] >> 4;
  };
  if (type == TensorType::kQ8_0) {
    fill([&](int i) { return d * static_cast<std::int8_t>(b[2 + i]); });
  } else if (type == TensorType::kQ4_0) {
    fill([&](int i) { return d * (nibble(b + 2, i) - 8); });
  } else if (type == TensorType::kIQ4_NL) {
    fill([&](int i) { return d * kCodebook[nibble(b + 2, i)]; });
  } else if (type == TensorType::kQ4_1) {
    fill([&](int i) { return d * nibble(b + 4, i) + half_at(b + 2); });
  } else {
    ASSERT_TRUE(type == TensorType::kQ5_0 || type == TensorType::kQ5_1) << "add the type here";
    const bool with_minimum = type == TensorType::kQ5_1;
    const std::uint8_t* high = b + (with_minimum ? 4 : 2);
    fill([&](int i) {
      const int q = nibble(high + 4, i) | (((high[i / 8] >> (i % 8)) & 1) << 4);
      return with_minimum ? d * q + half_at(b + 2) : d * (q - 16);
    });
  }
}

void block_of_256(TensorType type, const std::uint8_t* b, double* y) {
  if (type == TensorType::kQ6_K) {
    const std::uint8_t *low = b, *high = b + 128;
    const auto* scales = reinterpret_cast<const std::int8_t*>(b + 192);
    const double d = half_at(b + 208);
    for (int part = 0; part < 2; ++part, y += 128, low += 64, high += 32, scales += 8) {
      for (int i = 0; i < 32; ++i) {
        const int h = high[i];
        y[i] = d * scales[i / 16] * (((low[i] & 15) | ((h & 3) << 4)) - 32);
        y[i + 32] = d * scales[i / 16 + 2] * (((low[i + 32] & 15) | (((h >> 2) & 3) << 4)) - 32);
        y[i + 64] = d * scales[i / 16 + 4] * (((low[i] >> 4) | (((h >> 4) & 3) << 4)) - 32);
        y[i + 96] = d * scales[i / 16 + 6] * (((low[i + 32] >> 4) | ((h >> 6) << 4)) - 32);
      }
    }
    return;
  }
  const double d = half_at(b), minimum = half_at(b + 2);
  const std::uint8_t* scales = b + 4;
  const std::uint8_t* high = b + 16;
  const std::uint8_t* low = b + (type == TensorType::kQ5_K ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | ((scales[j - 4] >> 6) << 4);
    const int least = j < 4 ? scales[j + 4] & 63 : (scales[j + 4] >> 4) | ((scales[j] >> 6) << 4);
    for (int i = 0; i < 32; ++i) {
      int q = (low[j / 2 * 32 + i] >> (4 * (j % 2))) & 15;
      if (type == TensorType::kQ5_K) q |= ((high[i] >> j) & 1) << 4;
      y[j * 32 + i] = d * scale * q - minimum * least;
    }
  }
}

}  // namespace

std::vector<double> dequantize(TensorType type, std::span<const std::byte> row, std::size_t width) {
  std::vector<double> y(width);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row.data());
  const model::TensorTypeTraits& shape = *model::traits(type);
  for (std::size_t at = 0; at < width; at += shape.block_weights, bytes += shape.block_bytes) {
    if (type == TensorType::kF32) {
      float value;
      std::memcpy(&value, bytes, 4);
      y[at] = value;
    } else if (type == TensorType::kF16) {
      y[at] = half_at(bytes);
    } else if (type == TensorType::kBF16) {
      y[at] = std::bit_cast<float>((static_cast<std::uint32_t>(bytes[1]) << 24) |
                                   (static_cast<std::uint32_t>(bytes[0]) << 16));
    } else if (low_bits(type, bytes, &y[at])) {
      continue;
    } else if (shape.block_weights == 32) {
      block_of_32(type, bytes, &y[at]);
    } else {
      block_of_256(type, bytes, &y[at]);
    }
  }
  return y;
}

std::vector<std::byte> random_rows(TensorType type, std::size_t rows, std::size_t width,
                                   std::mt19937& random) {
  const model::TensorTypeTraits& shape = *model::traits(type);
  std::vector<std::byte> data(rows * width / shape.block_weights * shape.block_bytes);
  for (std::byte& byte : data)
    byte = static_cast<std::byte>(random());
  const auto put_half = [&](std::size_t at) {  // from 2^-7 to 2^-5, either sign
    const std::uint32_t bits = (random() & 0x83ffU) | ((8 + random() % 2) << 10);
    data[at] = static_cast<std::byte>(bits & 255);
    data[at + 1] = static_cast<std::byte>(bits >> 8);
  };
  for (std::size_t at = 0; at < data.size(); at += shape.block_bytes) {
    switch (type) {
      case TensorType::kF32: {
        const float value = std::uniform_real_distribution<float>(-1, 1)(random);
        std::memcpy(&data[at], &value, 4);
        break;
      }
      case TensorType::kBF16:
        data[at + 1] = static_cast<std::byte>((random() & 0x80U) | 0x3e);
        break;
      case TensorType::kQ3_K:
        put_half(at + 108);
        break;
      case TensorType::kQ2_K:
        put_half(at + 80);
        put_half(at + 82);
        break;
      case TensorType::kMXFP4:
        data[at] = static_cast<std::byte>(118 + random() % 6);
        break;
      case TensorType::kIQ1_M: {  // its four nibbles at the top of four words
        const std::uint32_t bits = 0x2000 | (random() & 0x83ffU);
        for (std::size_t i = 0; i < 4; ++i) {
          std::byte& top = data[at + 49 + i * 2];
          top = (top & std::byte{15}) | static_cast<std::byte>(((bits >> (4 * i)) & 15) << 4);
        }
        break;
      }
      case TensorType::kQ6_K:
        put_half(at + 208);
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ5_1:
      case TensorType::kQ4_K:
      case TensorType::kQ5_K:
        put_half(at);
        put_half(at + 2);
        break;
      case TensorType::kF16:
      case TensorType::kQ4_0:
      case TensorType::kQ5_0:
      case TensorType::kQ8_0:
      case TensorType::kIQ1_S:
      case TensorType::kIQ2_XXS:
      case TensorType::kIQ2_XS:
      case TensorType::kIQ2_S:
      case TensorType::kIQ3_XXS:
      case TensorType::kIQ3_S:
      case TensorType::kIQ4_NL:
      case TensorType::kIQ4_XS:
        put_half(at);
        break;
    }
  }
  return data;
}

}  // namespace bulkhead::forward::reference

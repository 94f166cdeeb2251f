#include "tools/model-maker/random_blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "config/base/splitmix.hpp"

namespace bulkhead::model_maker {
namespace {

using model::TensorType;

void put16(std::byte* at, std::uint16_t value) {
  std::memcpy(at, &value, 2);
}

// Standard deviations of the integers that uniform random bits give, before the block's scale.
double uniform_deviation(std::uint32_t levels) {
  return std::sqrt((static_cast<double>(levels) * levels - 1) / 12);
}

constexpr std::array<int, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

// The standard normal distribution's value at 65536 evenly spread quantiles: 16 random bits index
// it.
const std::vector<float>& normal_table() {
  static const std::vector<float> kTable = [] {
    // Inverts the distribution function by Newton's steps from the quantile before.
    std::vector<float> table(65536);
    double x = 0;
    for (std::uint32_t i = 32768; i < 65536; ++i) {
      const double wanted = (i + 0.5) / 65536;
      for (int step = 0; step < 8; ++step) {
        const double have = 0.5 * std::erfc(-x / std::numbers::sqrt2);
        const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
        x += std::clamp((wanted - have) / density, -0.5, 0.5);
      }
      table[i] = static_cast<float>(x);
      table[65535 - i] = -table[i];
    }
    return table;
  }();
  return kTable;
}

// A block's scale: the wanted one times 3/4 to 5/4, and either sign, so that the half step by which
// unsigned integers miss their middle averages out over blocks.
float varied(double scale, std::uint64_t bits) {
  const double factor = 0.75 + static_cast<double>(bits & 0xff) / 510.0;
  return static_cast<float>((bits & 0x100) != 0 ? -scale * factor : scale * factor);
}

template <typename Store>
void fill_table(const Store& table, Random& random, std::span<std::byte> out) {
  using Value = typename Store::value_type;
  std::size_t at = 0;
  const std::size_t count = out.size() / sizeof(Value);
  while (at < count) {
    std::uint64_t bits = random.next();
    for (int i = 0; i < 4 && at < count; ++i, ++at, bits >>= 16) {
      std::memcpy(out.data() + at * sizeof(Value), &table[bits & 0xffff], sizeof(Value));
    }
  }
}

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t tensor, std::uint64_t chunk) {
  std::uint64_t x =
      seed * 0x9e3779b97f4a7c15U ^ tensor * 0xbf58476d1ce4e5b9U ^ chunk * 0x94d049bb133111ebU;
  for (std::uint64_t& word : state_)
    word = splitmix(x += kSplitmixStep);
}

void Random::fill(std::span<std::byte> bytes) {
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = next();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  if (at < bytes.size()) {
    const std::uint64_t word = next();
    std::memcpy(bytes.data() + at, &word, bytes.size() - at);
  }
}

std::uint16_t half_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);  // above the range
  if (magnitude < 0x38800000) {  // subnormal: steps of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 16777216.0F;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(steps)));
  }
  const std::uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

void random_weights(TensorType type, double deviation, Random& random, std::span<std::byte> out) {
  const std::vector<float>& normal = normal_table();
  switch (type) {
    case TensorType::kF32: {
      std::vector<float> table(65536);
      for (std::size_t i = 0; i < table.size(); ++i)
        table[i] = static_cast<float>(normal[i] * deviation);
      fill_table(table, random, out);
      return;
    }
    case TensorType::kF16:
    case TensorType::kBF16: {
      std::vector<std::uint16_t> table(65536);
      for (std::size_t i = 0; i < table.size(); ++i) {
        const auto value = static_cast<float>(normal[i] * deviation);
        table[i] =
            type == TensorType::kF16
                ? half_of(value)
                : static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000) >> 16);
      }
      fill_table(table, random, out);
      return;
    }
    default:
      break;
  }

  random.fill(out);
  const model::TensorTypeTraits* traits = model::traits(type);
  const std::size_t blocks = out.size() / traits->block_bytes;
  double iq4_square = 0;
  for (const int value : kIq4Values)
    iq4_square += 1.0 * value * value / 16;
  for (std::size_t i = 0; i < blocks; ++i) {
    std::byte* block = out.data() + i * traits->block_bytes;
    std::uint16_t bits = 0;
    std::memcpy(&bits, block, 2);
    switch (type) {
      case TensorType::kQ8_0:  // half d, int8 q[32]
        put16(block, half_of(varied(deviation / uniform_deviation(256), bits)));
        break;
      case TensorType::kQ4_0:  // half d, nibbles; weight d * (q - 8)
        put16(block, half_of(varied(deviation / uniform_deviation(16), bits)));
        break;
      case TensorType::kIQ4_NL:
        put16(block, half_of(varied(deviation / std::sqrt(iq4_square), bits)));
        break;
      case TensorType::kQ5_0:  // half d, high bits, nibbles; weight d * (q - 16)
        put16(block, half_of(varied(deviation / uniform_deviation(32), bits)));
        break;
      case TensorType::kQ4_1:    // half d, half m, nibbles; weight d * q + m
      case TensorType::kQ5_1: {  // half d, half m, high bits, nibbles
        const std::uint32_t levels = type == TensorType::kQ4_1 ? 16 : 32;
        const float d = varied(deviation / uniform_deviation(levels), bits);
        put16(block, half_of(d));
        put16(block + 2, half_of(-d * static_cast<float>(levels - 1) / 2));
        break;
      }
      case TensorType::
          kQ4_K:  // half d, half dmin, 12 bytes of eight 6-bit scales and minima, nibbles
      case TensorType::kQ5_K: {  // weight d * scale * q - dmin * minimum
        const std::uint32_t levels = type == TensorType::kQ4_K ? 16 : 32;
        // Scales from 32 to 63, each with a minimum equal to it, and dmin half the range: every
        // sub-block is centred.
        constexpr double kMeanScale = 47.5;
        const float d = std::fabs(varied(deviation / uniform_deviation(levels) / kMeanScale, bits));
        put16(block, half_of(d));
        put16(block + 2, half_of(d * static_cast<float>(levels - 1) / 2));
        auto* scales = reinterpret_cast<std::uint8_t*>(block) + 4;
        std::array<std::uint8_t, 8> chosen{};
        for (std::size_t j = 0; j < 8; ++j)
          chosen[j] = static_cast<std::uint8_t>(32 + (scales[j] & 31));
        for (std::size_t j = 0; j < 4; ++j) {
          const auto high = static_cast<std::uint8_t>((chosen[j + 4] >> 4) << 6);
          scales[j] = static_cast<std::uint8_t>(chosen[j] | high);
          scales[j + 4] = static_cast<std::uint8_t>(chosen[j] | high);
          scales[j + 8] =
              static_cast<std::uint8_t>((chosen[j + 4] & 15) | ((chosen[j + 4] & 15) << 4));
        }
        break;
      }
      case TensorType::
          kQ6_K: {  // low nibbles [128], high bits [64], int8 scales [16], half d; weight d * scale * (q - 32)
        constexpr double kRmsScale = 96.0;
        auto* scales = reinterpret_cast<std::int8_t*>(block) + 192;
        for (std::size_t j = 0; j < 16; ++j) {
          const int magnitude = 64 + (scales[j] & 63);
          scales[j] = static_cast<std::int8_t>(scales[j] < 0 ? -magnitude : magnitude);
        }
        put16(block + 208,
              half_of(std::fabs(varied(deviation / uniform_deviation(64) / kRmsScale, bits))));
        break;
      }
      default:
        break;
    }
  }
}

void random_norm(Random& random, std::span<std::byte> out) {
  for (std::size_t at = 0; at + 4 <= out.size(); at += 4) {
    const float value =
        0.9F + 0.2F * static_cast<float>(random.next() >> 40) / static_cast<float>(1 << 24);
    std::memcpy(out.data() + at, &value, 4);
  }
}

void rope_factors(float rope_base, std::span<std::byte> out) {
  constexpr double kFactor = 32, kLow = 1, kHigh = 4, kOriginalContext = 8192;
  const std::size_t count = out.size() / 4;
  for (std::size_t i = 0; i < count; ++i) {
    const double frequency =
        std::pow(double{rope_base}, -static_cast<double>(i) / static_cast<double>(count));
    const double wavelength = 2 * std::numbers::pi / frequency;
    double factor = 1;
    if (wavelength > kOriginalContext / kLow) {
      factor = kFactor;
    } else if (wavelength > kOriginalContext / kHigh) {
      const double smooth = (kOriginalContext / wavelength - kLow) / (kHigh - kLow);
      factor = 1 / ((1 - smooth) / kFactor + smooth);
    }
    const auto value = static_cast<float>(factor);
    std::memcpy(out.data() + 4 * i, &value, 4);
  }
}

}  // namespace bulkhead::model_maker

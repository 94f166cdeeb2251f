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

// Returns the values of the standard normal distribution at 65536 evenly spread quantiles. 16 random bits are an
// index into this table.
const std::vector<float>& normal_table() {
  static const std::vector<float> kTable = [] {
    // Inverts the distribution function by Newton's method, beginning at the quantile before.
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

// Returns a block's scale: the wanted one times 3/4 to 5/4, with a random sign. Unsigned integers miss their middle
// by half a step, and the signs make that average out over blocks.
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

namespace {

using Writer = void (*)(double deviation, Random& random, std::span<std::byte> out);

template <typename Type>
void write_floats(double deviation, Random& random, std::span<std::byte> out) {
  constexpr std::size_t kBytes = Type::kRow.block_bytes;
  const std::vector<float>& normal = normal_table();
  std::vector<std::array<std::uint8_t, kBytes>> table(65536);
  for (std::size_t i = 0; i < table.size(); ++i)
    Type::store(static_cast<float>(normal[i] * deviation), table[i].data());
  fill_table(table, random, out);
}

// Writes random bits, and scales that the type makes of random bits and the wanted scale.
template <typename Type>
void write_blocks(double deviation, Random& random, std::span<std::byte> out) {
  random.fill(out);
  const double scale = deviation / Type::spread();
  const std::size_t blocks = out.size() / Type::kRow.block_bytes;
  for (std::size_t i = 0; i < blocks; ++i) {
    auto* block = reinterpret_cast<std::uint8_t*>(out.data() + i * Type::kRow.block_bytes);
    Type::set_scale(varied(scale, gpu::kernels::types::load16(block)), block);
  }
}

template <typename Type>
constexpr Writer writer() {
  if constexpr (Type::kRow.is_float()) {
    return write_floats<Type>;
  } else {
    return write_blocks<Type>;
  }
}

constexpr Writer kWriters[] = {
#define BULKHEAD_TYPE(NAME) writer<gpu::kernels::types::NAME>(),
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

}  // namespace

void random_weights(TensorType type, double deviation, Random& random, std::span<std::byte> out) {
  kWriters[gpu::kernels::tensor_place(type)](deviation, random, out);
}

namespace {

void random_floats(Random& random, float first, float span, std::span<std::byte> out) {
  for (std::size_t at = 0; at + 4 <= out.size(); at += 4) {
    const float value =
        first + span * static_cast<float>(random.next() >> 40) / static_cast<float>(1 << 24);
    std::memcpy(out.data() + at, &value, 4);
  }
}

}  // namespace

void random_norm(Random& random, std::span<std::byte> out) {
  random_floats(random, 0.9F, 0.2F, out);
}

void random_rates(Random& random, std::span<std::byte> out) {
  random_floats(random, -0.01F, -0.99F, out);
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

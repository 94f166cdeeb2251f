// Matrix units: weights packed in the order of their fragments, and products of these weights.
// Every type is compared with float64, and the bits must be the same however the work is shared.
#include "gpu/kernels/units.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "gpu/kernels/units_check.hpp"
#include "unit_products.hpp"
#include "worker/forward/kernel_compiler.hpp"

namespace bulkhead::forward {
namespace {

// Reads weights back from the packed bytes, exactly and as gpu/kernels/weight_layout.hpp describes
// them.
class Unpacked {
 public:
  explicit Unpacked(const TestMatrix& matrix) : m_(matrix) {}

  double at(std::uint32_t row, std::uint32_t k) const {
    const bool super = has_header(m_.type);
    const std::uint32_t in_block = row % 16, r = in_block / 2, odd = in_block % 2;
    const std::uint32_t stage = k / 128, group = k % 128 / 32, q = k % 32 / 8, pair = k % 8 / 2;
    const std::uint32_t lane = r * 4 + q, within = k % 2;
    const std::size_t base =
        row / 16 * m_.layout.block_bytes +
        (super ? stage / 2 : stage) * k::unit_stage_bytes(k::row_of(m_.type).units);
    const std::uint32_t s = super ? stage % 2 : 0;
    if (is_float(m_.type)) {
      return half(base + group * 1024 + pair / 2 * 512 + lane * 16 + pair % 2 * 8 + odd * 4 +
                  within * 2);
    }
    const std::size_t small = r * 16 + group * 4 + odd * 2;
    if (m_.type == TensorType::kQ8_0) {
      constexpr std::uint32_t kPlace[8] = {0, 2, 1, 3, 4, 6, 5, 7};
      const int n = byte(base + group * 512 + lane * 16 + odd * 8 + kPlace[k % 8]) - 128;
      return n * half(base + 2048 + small);
    }
    const k::TensorRow& type = k::row_of(m_.type);
    const k::UnitForm& form = type.units;
    const std::size_t quants = base + (super ? 288 : 0) + s * 1024;
    const std::uint32_t nibbles =
        word(quants + group / 2 * 512 + lane * 16 + group % 2 * 8 + odd * 4);
    int n = static_cast<int>((nibbles >> (within * 16 + pair * 4)) & 15U);
    const std::size_t high = super ? base + 2336 + s * 512 : base + 1024;
    if (form.high_bits == 1) {
      const std::uint32_t bits = word(high + lane * 8 + group / 2 * 4);
      n += static_cast<int>((bits >> (within * 16 + group % 2 * 8 + odd * 4 + pair)) & 1U) * 16;
    } else if (form.high_bits == 2) {
      const std::uint32_t bits = word(high + lane * 16 + group * 4);
      n += static_cast<int>((bits >> (within * 16 + odd * 8 + pair * 2)) & 3U) * 16;
    }
    n = type.has_codebook() ? type.codebook[static_cast<std::size_t>(n)]
                            : n - static_cast<int>(form.bias);
    if (super) {
      const std::uint32_t owner = r * 4 + q / 2 * 2 + group % 2;
      const int scale = byte(base + 32 + s * 128 + owner * 4 + odd * 2 + group / 2) - 128;
      return half(base + r * 4 + odd * 2) * scale * n;
    }
    const bool sixteens = form.scales == k::UnitScales::kSixteens;
    const std::size_t scales =
        base + 1024 + form.high_bits * 256 + (sixteens ? q / 2 * 128 : 0) + small;
    const double minimum = form.minima ? half(scales + (sixteens ? 256 : 128)) : 0.0;
    return n * half(scales) + minimum;
  }

 private:
  int byte(std::size_t at) const { return static_cast<int>(m_.packed[at]); }
  std::uint32_t word(std::size_t at) const {
    std::uint32_t value = 0;
    std::memcpy(&value, m_.packed.data() + at, 4);
    return value;
  }
  double half(std::size_t at) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, m_.packed.data() + at, 2);
    return reference::half(bits);
  }

  const TestMatrix& m_;
};

TEST(UnitPacking, HoldsEveryWeightOfEveryType) {
  std::mt19937 random(20240611);
  for (const TensorType type : kTypes) {
    const std::uint32_t rows = 37;
    const std::uint32_t width = is_super(type) ? 768 : is_float(type) ? 301 : 416;
    const TestMatrix m = make_matrix(type, rows, width, random);
    const Unpacked unpacked(m);
    for (std::uint32_t row = 0; row < rows; ++row) {
      double largest = 0;
      for (const double value : m.values[row])
        largest = std::max(largest, std::abs(value));
      for (std::uint32_t i = 0; i < m.layout.groups * 32; ++i) {
        const double want = i < width ? m.values[row][i] : 0.0;
        // F32 and BF16 become halves. So do middles and products of two scales, and a weight may be small compared
        // with these.
        const bool multiplied = is_super(type) && !has_header(type);
        const bool middles = type == TensorType::kQ4_1 || type == TensorType::kQ5_1;
        const double bound = is_float(type) ? std::abs(want) * 0x1p-11 + 0x1p-25
                             : multiplied   ? largest * 0x1p-10 + 0x1p-20
                             : middles      ? largest * 0x1p-11 + 0x1p-25
                                            : 1e-12;
        ASSERT_NEAR(unpacked.at(row, i), want, bound)
            << model::traits(type)->name << " row " << row << " weight " << i;
      }
    }
  }
}

// The weights are those that a quantiser makes of weights around zero: a group's minimum is half of its range.
// Weights in halves must be finer than the minimum would be. (The error would be 5.2e-4 if integers were not
// centred.)
TEST(UnitPacking, WeightsAroundZeroAreAsGoodAsTheirScales) {
  std::mt19937 random(20240614);
  for (const TensorType type : {TensorType::kQ4_K, TensorType::kQ5_K}) {
    const std::uint32_t rows = 32, width = 1024;
    std::vector<std::byte> data = reference::random_rows(type, rows, width, random);
    const std::size_t block_bytes = type == TensorType::kQ4_K ? 144 : 176;
    for (std::size_t at = 0; at < data.size(); at += block_bytes) {
      // 2^-7 and some, and as much times half of 15 or 31.
      const std::uint32_t some = random() % 1024;
      const double d = reference::half(static_cast<std::uint16_t>(0x2000 + some));
      const double minimum = d * (type == TensorType::kQ4_K ? 7.5 : 15.5);
      std::uint16_t bits = 0x2000;
      while (reference::half(bits) < minimum)
        ++bits;
      const auto put = [&](std::size_t where, std::uint32_t value) {
        data[at + where] = static_cast<std::byte>(value);
      };
      put(0, some & 255);
      put(1, 0x20 + (some >> 8));
      put(2, bits & 255U);
      put(3, bits >> 8U);
      for (std::uint32_t j = 0; j < 4; ++j) {  // minima are their scales
        const std::uint32_t low = 32 + random() % 32, high = 32 + random() % 32;
        put(4 + j, low | (high >> 4) << 6);
        put(8 + j, low | (high >> 4) << 6);
        put(12 + j, (high & 15) | (high & 15) << 4);
      }
    }
    const TestMatrix m = make_matrix(type, rows, width, data);
    const Unpacked unpacked(m);
    double errors = 0, squares = 0;
    for (std::uint32_t row = 0; row < rows; ++row) {
      for (std::uint32_t i = 0; i < width; ++i) {
        const double want = m.values[row][i];
        errors += (unpacked.at(row, i) - want) * (unpacked.at(row, i) - want);
        squares += want * want;
      }
    }
    EXPECT_LT(std::sqrt(errors / squares), 3e-4) << model::traits(type)->name;
  }
}

TEST(UnitPacking, WritesEveryByteAndZerosForRowsThatAreNot) {
  std::mt19937 random(20240612);
  for (const TensorType type : kTypes) {
    const std::uint32_t width = is_super(type) ? 256 : is_float(type) ? 130 : 160;
    const k::WeightLayout layout = k::unit_layout(weight_type(type), 16, width);
    const std::array<const std::byte*, k::kUnitBlockRows> none{};
    TestMatrix m;
    m.type = type;
    m.layout = layout;
    m.packed.assign(layout.bytes, std::byte{0xee});
    pack_unit_block(weight_type(type), none, width, m.packed.data());
    const Unpacked unpacked(m);
    for (std::uint32_t row = 0; row < 16; ++row) {
      for (std::uint32_t i = 0; i < layout.groups * 32; ++i)
        ASSERT_EQ(unpacked.at(row, i), 0.0) << model::traits(type)->name;
    }
    // Packs twice over different bytes, because bytes that are not written would differ.
    const TestMatrix some = make_matrix(type, 5, width, random);
    std::vector<std::byte> other(layout.bytes, std::byte{0x11});
    pack_unit_block(weight_type(type), none, width, other.data());
    ASSERT_EQ(other, m.packed) << model::traits(type)->name;
  }
}

TEST(UnitPacking, KeepsFloatsThatNoHalfCanHoldAtTheLargest) {
  const std::vector<float> values{1e9F, -1e9F, 65520.0F, 65504.0F, 1e-9F, 0x1p-24F};
  TestMatrix m;
  m.type = TensorType::kF32;
  m.layout = k::unit_layout(k::WeightType::kF32, 16, values.size());
  m.packed.resize(m.layout.bytes);
  std::array<const std::byte*, k::kUnitBlockRows> rows{};
  rows[3] = std::as_bytes(std::span(values)).data();
  pack_unit_block(k::WeightType::kF32, rows, static_cast<std::uint32_t>(values.size()),
                  m.packed.data());
  const Unpacked unpacked(m);
  const double want[] = {65504, -65504, 65504, 65504, 0, 0x1p-24};
  for (std::uint32_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(unpacked.at(3, i), want[i]) << i;
}

// A row's segments depend only on type and shape, cover every stage once, and never separate two
// stages that share a header.
TEST(UnitSegments, CoverARow) {
  for (const TensorType type : kTypes) {
    for (const std::uint32_t rows : {16U, 48U, 896U, 2048U, 3584U, 18944U, 152064U}) {
      for (const std::uint32_t width : {256U, 1024U, 3584U, 8192U, 18944U}) {
        const k::WeightLayout layout = k::unit_layout(weight_type(type), rows, width);
        const k::UnitSegments segments = k::unit_segments({weight_type(type), rows, layout.groups});
        const std::uint32_t stages = layout.groups / 4;
        ASSERT_GE(segments.count, 1U);
        ASSERT_LE(segments.count, k::kMostSegments);
        ASSERT_GE(segments.count * segments.stages, stages);
        ASSERT_LT((segments.count - 1) * segments.stages, stages) << "an empty segment";
        if (has_header(type)) {
          ASSERT_EQ(segments.stages % 2, 0U);
        }
      }
    }
  }
}

// For each shape, the table has workgroups that hold all segments of their rows and fit a device.
TEST(UnitTilings, FitADevice) {
  constexpr std::uint32_t kMostInvocations = 1024;
  for (const TensorType type : kTypes) {
    for (const std::uint32_t rows :
         {64U, 512U, 896U, 2048U, 3584U, 4608U, 8192U, 18944U, 152064U}) {
      for (const std::uint32_t width : {256U, 896U, 2048U, 3584U, 8192U, 18944U}) {
        for (const k::Epilogue epilogue :
             {k::Epilogue::kStore, k::Epilogue::kAdd, k::Epilogue::kGated, k::Epilogue::kQkv}) {
          const k::MatvecShape shape{weight_type(type), rows,
                                     k::unit_layout(weight_type(type), rows, width).groups,
                                     epilogue};
          const std::uint32_t segments = k::unit_segments(shape).count;
          for (const std::uint32_t columns :
               {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U, 256U, 272U, 512U, 1024U, 2048U}) {
            for (const bool in_chain : {false, true}) {
              const k::UnitTiling tiling = k::unit_tiling(shape, columns, in_chain);
              SCOPED_TRACE(testing::Message()
                           << model::traits(type)->name << ' ' << rows << " x " << width
                           << ", epilogue " << static_cast<int>(epilogue) << ", " << columns
                           << " columns" << (in_chain ? ", chained" : ""));
              ASSERT_EQ(tiling.columns, columns);
              ASSERT_LE(tiling.subgroups * 32, kMostInvocations);
              ASSERT_EQ(tiling.subgroups % (tiling.serial ? tiling.column_subgroups : segments),
                        0U);
              ASSERT_TRUE(tiling.step_groups == 1 || tiling.step_groups == 2 ||
                          tiling.step_groups % 4 == 0);
              ASSERT_TRUE(k::unit_sums_fit(shape, tiling));
              if (tiling.piece_tiles != 0) {
                ASSERT_FALSE(tiling.serial);
                ASSERT_EQ(tiling.row_blocks * tiling.column_tiles % tiling.piece_tiles, 0U);
              }
              // A tile has no more columns than there are, rounded up.
              ASSERT_LE(tiling.column_tiles, std::max(columns / 8, 1U));
            }
          }
        }
      }
    }
  }
}

class Units : public UnitProducts {
 protected:
  void SetUp() override {
    UnitProducts::SetUp();
    if (IsSkipped()) return;
    const auto usable = k::fragments_as_expected(device());
    ASSERT_TRUE(usable.ok()) << usable.error().message();
    if (!*usable) GTEST_SKIP() << device().info().name << " has no matrix units that are used";
  }

  void compile(const k::MatvecShape& shape, const std::vector<k::UnitTiling>& tilings) {
    std::vector<gpu::KernelSpec> specs;
    for (const k::UnitTiling& each : tilings)
      specs.push_back(k::unit_product(shape, each).spec);
    ASSERT_TRUE(KernelCompiler(device(), std::move(specs)).finish({}).ok());
  }
};

TEST_F(Units, AgreeWithDoubleForEveryType) {
  for (const TensorType type : kTypes) {
    const std::uint32_t width = is_super(type) ? 1280 : is_float(type) ? 1058 : 1120;
    const TestMatrix m = make_matrix(type, 101, width, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    for (const std::uint32_t count : {1U, 3U, 19U, 70U}) {
      const auto x = columns(count, width);
      const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kStore);
      double worst = 0;
      for (std::uint32_t c = 0; c < count; ++c) {
        for (std::uint32_t row = 0; row < m.rows; ++row) {
          const double share =
              std::abs(static_cast<double>(y[c * m.rows + row]) - exact(m.values[row], x[c])) /
              magnitude(m.values[row], x[c]);
          // Weights are rounded to halves, each by at most 2^-11 of itself, but not all in the same
          // direction.
          ASSERT_LT(share, 0x1p-11)
              << model::traits(type)->name << " row " << row << " column " << c << " of " << count;
          worst = std::max(worst, share);
        }
      }
      std::printf("%s, %u columns: error at most %.2g of the sum of magnitudes\n",
                  model::traits(type)->name, count, worst);
    }
  }
}

TEST_F(Units, BitsDoNotDependOnHowTheWorkIsShared) {
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_K,
                                TensorType::kQ6_K, TensorType::kQ5_1}) {
    const std::uint32_t width = 3584, rows = 330;
    const TestMatrix m = make_matrix(type, rows, width, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    const auto x = columns(130, width);
    const k::MatvecShape shape{weight_type(type), rows, m.layout.groups, k::Epilogue::kStore};
    const std::uint32_t segments = k::unit_segments(shape).count;
    ASSERT_GT(segments, 4U);
    std::map<std::size_t, std::vector<float>> alone;
    for (const std::size_t c : {0, 1, 2, 5, 7, 8, 9, 15, 16, 31, 32, 43, 63, 64, 99, 127, 128, 129})
      alone[c] = multiply(m, weights, {x[c]}, k::Epilogue::kStore);
    const auto compare = [&](const std::vector<float>& got, std::size_t count, const char* how,
                             std::size_t from = 0) {
      for (const auto& [c, want] : alone) {
        if (c < from || c >= from + count) continue;
        ASSERT_EQ(std::memcmp(&got[(c - from) * rows], want.data(), rows * 4), 0)
            << model::traits(type)->name << ": column " << c << " of " << count << ' ' << how;
      }
    };
    for (const std::size_t count : {2, 8, 9, 16, 32, 64, 100, 130}) {
      const std::vector<std::vector<float>> some(x.begin(),
                                                 x.begin() + static_cast<std::ptrdiff_t>(count));
      compare(multiply(m, weights, some, k::Epilogue::kStore), count, "by the usual tiling");
    }
    // The same columns at other places in a tile.
    const std::vector<std::vector<float>> later(x.begin() + 5, x.begin() + 44);
    compare(multiply(m, weights, later, k::Epilogue::kStore), later.size(), "moved", 5);
    // Four blocks, rows of several blocks in a workgroup, large tiles; and all combinations that
    // are possible.
    std::vector<k::UnitTiling> tilings{{130, 4, 1, segments, 2, false, 1, 2},
                                       {130, 2, 1, segments * 2, 2, false, 1, 2},
                                       {130, 2, 8, 4, 1, true, 2, 0},
                                       {130, 2, 8, segments, 1, false, 1, 0, false, 4},
                                       {130, 4, 4, segments, 1, false, 1, 0, false, 2},
                                       {130, 1, 8, segments, 2, false, 1, 1, false, 4},
                                       {130, 4, 2, segments, 2, false, 1, 2, false, 4}};
    for (const std::uint32_t blocks : {1U, 2U}) {
      for (const std::uint32_t tiles : {1U, 2U}) {
        for (const std::uint32_t ahead : {0U, 1U, 2U}) {
          for (const std::uint32_t step : {1U, 2U, 4U, 8U})
            tilings.push_back({130, blocks, tiles, segments, step, false, 1, ahead});
          for (const std::uint32_t step : {1U, 2U}) {
            tilings.push_back({130, blocks, tiles * 4, 4, step, true, 2, ahead});
            if (ahead == 0) tilings.push_back({130, blocks, tiles * 4, 4, step, true, 2, 0, true});
          }
        }
      }
    }
    compile(shape, tilings);
    for (const k::UnitTiling& each : tilings) {
      SCOPED_TRACE(testing::Message()
                   << each.row_blocks << " blocks, " << each.column_tiles << " tiles, steps of "
                   << each.step_groups << ", ahead " << each.ahead << ", pieces of "
                   << each.piece_tiles << (each.local_totals ? ", totals in memory" : ""));
      compare(multiply(m, weights, x, k::Epilogue::kStore, each), x.size(),
              each.serial ? "serial" : "split");
    }
  }
}

// The rows are so short that they have one segment, and the step is so wide that tiles have several
// pieces.
TEST_F(Units, ShortRowsInWideSteps) {
  for (const auto& [type, width] : {std::pair{TensorType::kF16, 64U}, {TensorType::kQ4_K, 256U}}) {
    const std::uint32_t rows = 192;
    const TestMatrix m = make_matrix(type, rows, width, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    const auto x = columns(512, width);
    const k::MatvecShape shape{weight_type(type), rows, m.layout.groups, k::Epilogue::kStore};
    ASSERT_EQ(k::unit_segments(shape).count, 1U);
    const k::UnitTiling tiling = k::unit_tiling(shape, 512);
    ASSERT_GT(tiling.row_blocks * tiling.column_tiles, tiling.piece_tiles);
    ASSERT_NE(tiling.piece_tiles, 0U);
    const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kStore, tiling);
    for (const std::size_t c : {0, 31, 32, 63, 64, 96, 300, 511}) {
      const std::vector<float> alone = multiply(m, weights, {x[c]}, k::Epilogue::kStore);
      ASSERT_EQ(std::memcmp(&y[c * rows], alone.data(), rows * 4), 0)
          << model::traits(type)->name << " column " << c;
    }
  }
}

TEST_F(Units, AddToWhatIsThere) {
  const TestMatrix m = make_matrix(TensorType::kQ8_0, 21, 96, random_);
  const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
  for (const std::uint32_t count : {2U, 40U}) {
    const auto x = columns(count, 96);
    std::vector<float> before(std::size_t{count} * 21);
    for (std::size_t i = 0; i < before.size(); ++i)
      before[i] = static_cast<float>(i);
    const std::vector<float> product = multiply(m, weights, x, k::Epilogue::kStore);
    const std::vector<float> sum = multiply(m, weights, x, k::Epilogue::kAdd, before);
    for (std::size_t i = 0; i < sum.size(); ++i)
      ASSERT_EQ(sum[i], before[i] + product[i]) << i;
  }
}

// The rows of a gate and an up alternate.
TEST_F(Units, GateAndUpInOne) {
  for (const std::uint32_t count : {1U, 5U, 50U}) {
    const TestMatrix m = make_matrix(TensorType::kQ4_0, 90, 256, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    const auto x = columns(count, 256);
    const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kGated);
    for (std::uint32_t c = 0; c < count; ++c) {
      for (std::uint32_t row = 0; row < 45; ++row) {
        const double gate = exact(m.values[row * 2], x[c]), up = exact(m.values[row * 2 + 1], x[c]);
        const double want = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(y[c * 45 + row], want, 2e-2 * (1 + std::abs(want))) << "row " << row;
      }
    }
  }
}

TEST_F(Units, ARowOfAnEmbeddingIsFloats) {
  const k::Mapping mapping = k::mapping_for(device().info());
  for (const TensorType type : kTypes) {
    const TestMatrix m = make_matrix(type, 19, is_super(type) ? 512 : 320, random_);
    expect_rows(k::embed(mapping, weight_type(type), m.layout), m, k::kEmbedParts);
  }
}

}  // namespace
}  // namespace bulkhead::forward

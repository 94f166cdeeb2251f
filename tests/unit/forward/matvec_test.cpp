// Matrix-vector kernels: every type, both mappings and odd shapes are compared with float64. By the
// numerics contract, a column's bits do not depend on how many columns share the dispatch.
#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "kernel_harness.hpp"
#include "reference.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;
using model::TensorType;

const std::vector<TensorType> kTypes = reference::all_types();

bool is_float(TensorType type) {
  return k::row_of(type).is_float();
}

struct TestMatrix {
  std::vector<std::byte> data;
  model::TensorInfo tensor;
  std::vector<std::vector<double>> values;
  gpu::Buffer packed;
  k::WeightLayout layout;
};

class Matvec : public KernelTest {
 protected:
  Matvec() : KernelTest(20240607) {}

  TestMatrix matrix(TensorType type, std::uint32_t rows, std::uint32_t width) {
    TestMatrix m;
    m.data = reference::random_rows(type, rows, width, random_);
    m.tensor.type = type;
    m.tensor.ne = {width, rows, 1, 1};
    m.tensor.dimensions = 2;
    m.tensor.data = m.data;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::size_t bytes = m.data.size() / rows;
      m.values.push_back(
          reference::dequantize(type, std::span(m.data).subspan(row * bytes, bytes), width));
    }
    const PackedMatrix packed({&m.tensor});
    m.layout = packed.layout();
    m.packed = empty(m.layout.bytes);
    packed.fill(0, m.packed.mapped());
    return m;
  }

  std::vector<std::vector<float>> columns(std::uint32_t count, std::uint32_t width) {
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> x(count, std::vector<float>(width));
    for (auto& column : x) {
      for (float& value : column)
        value = normal(random_);
    }
    return x;
  }

  // Returns the columns as a producer lays them out: padding up to the last group's end is zero,
  // the rest is NaN.
  gpu::Buffer input(const k::Mapping& mapping, const std::vector<std::vector<float>>& x,
                    std::uint32_t room) {
    const auto width = static_cast<std::uint32_t>(x[0].size());
    const std::uint32_t stride = k::input_stride(mapping, width);
    gpu::Buffer made = empty(std::uint64_t{room} * stride * 4);
    auto* floats = reinterpret_cast<float*>(made.mapped().data());
    for (std::size_t c = 0; c < x.size(); ++c) {
      for (std::uint32_t i = 0; i < (width + 31) / 32 * 32; ++i) {
        floats[c * stride + place_in_input(mapping, i)] = i < width ? x[c][i] : 0.0F;
      }
    }
    return made;
  }

  // Returns [column][row], computed by the variant for `count` columns.
  std::vector<float> multiply(const k::Mapping& mapping, const TestMatrix& m,
                              const std::vector<std::vector<float>>& x, k::Epilogue epilogue,
                              std::vector<float> before = {}, bool permuted = false,
                              k::Gate gate = k::Gate::kSilu) {
    const auto count = static_cast<std::uint32_t>(x.size());
    auto rows = static_cast<std::uint32_t>(m.layout.rows);
    if (epilogue == k::Epilogue::kGated) rows /= 2;
    const std::uint32_t room = (count + 15) / 16 * 16;
    const gpu::Buffer in = input(mapping, x, room);
    const std::uint32_t written = permuted ? (rows + 31) / 32 * 32 : rows;
    const std::uint32_t stride = permuted ? k::input_stride(mapping, rows) : rows;
    gpu::Buffer out = empty(std::uint64_t{room} * stride * 4);
    std::memcpy(out.mapped().data(), before.data(), before.size() * 4);
    const gpu::Buffer counts = parameters(count);
    const k::MatvecVariant variant = k::matvec(mapping,
                                               {weight_type(m.tensor.type), rows, m.layout.groups,
                                                epilogue, permuted, k::Scaling::kNone, gate},
                                               count);
    k::MatvecPush push{};
    push.quants = m.packed.address() + m.layout.quants;
    push.high = m.packed.address() + m.layout.high;
    push.scales = m.packed.address() + m.layout.scales;
    push.supers = m.packed.address() + m.layout.supers;
    push.x = in.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.rows = rows;
    push.groups = m.layout.groups;
    push.x_stride = k::input_stride(mapping, static_cast<std::uint32_t>(x[0].size()));
    push.out_stride = stride;
    push.written_rows = written;
    push.count_word = k::kColumnCountWord;
    run(variant.spec, push,
        (count + variant.columns_per_workgroup - 1) / variant.columns_per_workgroup,
        (written + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup);
    return read<float>(out, std::size_t{count} * stride);
  }
};

double exact(const std::vector<double>& row, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += row[i] * static_cast<double>(x[i]);
  return sum;
}

double magnitude(const std::vector<double>& row, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += std::abs(row[i] * static_cast<double>(x[i]));
  return sum;
}

TEST_F(Matvec, AgreesWithDoubleForEveryType) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const TensorType type : kTypes) {
      const bool blocks_of_256 = model::traits(type)->block_weights == 256;
      const std::vector<std::uint32_t> widths =
          blocks_of_256    ? std::vector<std::uint32_t>{256, 1280}
          : is_float(type) ? std::vector<std::uint32_t>{6, 97, 1058}
                           : std::vector<std::uint32_t>{32, 288, 1120};
      for (const std::uint32_t width : widths) {
        const std::uint32_t rows = width == widths[0] ? 3 : 37;
        const TestMatrix m = matrix(type, rows, width);
        const auto x = columns(3, width);
        const std::vector<float> y = multiply(mapping, m, x, k::Epilogue::kStore);
        for (std::size_t c = 0; c < x.size(); ++c) {
          for (std::uint32_t row = 0; row < rows; ++row) {
            const double bound = 1e-6 * magnitude(m.values[row], x[c]) + 1e-7;
            ASSERT_NEAR(y[c * rows + row], exact(m.values[row], x[c]), bound)
                << name << ' ' << model::traits(type)->name << " width " << width << " row " << row
                << " column " << c;
          }
        }
      }
    }
  }
}

TEST_F(Matvec, AColumnsBitsDoNotDependOnItsNeighbours) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const TensorType type :
         {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_K, TensorType::kQ6_K}) {
      const std::uint32_t width = 1280, rows = 300;  // enough for every row blocking
      const TestMatrix m = matrix(type, rows, width);
      const auto x = columns(17, width);
      std::vector<std::vector<float>> alone;
      for (const auto& column : x)
        alone.push_back(multiply(mapping, m, {column}, k::Epilogue::kStore));
      for (const std::size_t count : {2, 3, 17}) {
        // Each number of columns is tested with two types, and the largest with all types.
        const bool blocks_of_256 = model::traits(type)->block_weights == 256;
        if (!every_way() && count != 17 && (count == 2) == blocks_of_256) continue;
        const std::vector<std::vector<float>> some(x.begin(),
                                                   x.begin() + static_cast<std::ptrdiff_t>(count));
        const std::vector<float> together = multiply(mapping, m, some, k::Epilogue::kStore);
        for (std::size_t c = 0; c < count; ++c) {
          ASSERT_EQ(std::memcmp(&together[c * rows], alone[c].data(), rows * 4), 0)
              << name << ' ' << model::traits(type)->name << " column " << c << " of " << count;
        }
      }
    }
  }
}

TEST_F(Matvec, AddsToWhatIsThere) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    const TestMatrix m = matrix(TensorType::kQ8_0, 21, 96);
    const auto x = columns(2, 96);
    std::vector<float> before(2 * 21);
    for (std::size_t i = 0; i < before.size(); ++i)
      before[i] = static_cast<float>(i);
    const std::vector<float> product = multiply(mapping, m, x, k::Epilogue::kStore);
    const std::vector<float> sum = multiply(mapping, m, x, k::Epilogue::kAdd, before);
    for (std::size_t i = 0; i < sum.size(); ++i)
      ASSERT_EQ(sum[i], before[i] + product[i]) << name << ' ' << i;
  }
}

TEST_F(Matvec, GateAndUpInOne) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::Gate gate : reference::kGates) {
      const std::uint32_t rows = 45;
      const TestMatrix m = matrix(TensorType::kQ4_0, rows * 2, 256);
      const auto x = columns(16, 256);
      const std::uint32_t stride = k::input_stride(mapping, rows);
      const std::vector<float> all = multiply(mapping, m, x, k::Epilogue::kGated, {}, true, gate);
      for (const std::size_t count : {1, 3, 16}) {
        // Columns and gates do not affect each other.
        if (!every_way() && count != 16 && gate != reference::kGates[0]) continue;
        const std::vector<float> y =
            multiply(mapping, m, {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count)},
                     k::Epilogue::kGated, {}, true, gate);
        for (std::uint32_t c = 0; c < count; ++c) {
          for (std::uint32_t row = 0; row < 64; ++row) {
            const std::size_t at = c * stride + place_in_input(mapping, row);
            ASSERT_EQ(std::memcmp(&y[at], &all[at], 4), 0) << name << ", " << count << " columns";
            if (row >= rows) {
              ASSERT_EQ(y[at], 0.0F) << name << " padding " << row;
              continue;
            }
            const double want = reference::gated(gate, exact(m.values[row], x[c]),
                                                 exact(m.values[rows + row], x[c]));
            ASSERT_NEAR(y[at], want, 2e-5 * (1 + std::abs(want))) << name << " row " << row;
          }
        }
      }
    }
  }
}

TEST_F(Matvec, PackingInPiecesIsPackingAtOnce) {
  for (const TensorType type : kTypes) {
    const TestMatrix m = matrix(type, 19, 512);
    const PackedMatrix packed({&m.tensor});
    std::vector<std::byte> whole(m.layout.bytes), pieces(m.layout.bytes);
    packed.fill(0, whole);
    for (std::size_t at = 0; at < pieces.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random_() % 700, pieces.size() - at);
      packed.fill(at, std::span(pieces).subspan(at, size));
      at += size;
    }
    ASSERT_EQ(pieces, whole) << model::traits(type)->name;
  }
}

// Returns the push constants of a kernel that copies rows of `width` entries of a matrix to `out`.
k::EmbedPush embed_push(const TestMatrix& m, const gpu::Buffer& counts, const gpu::Buffer& out,
                        std::uint32_t width) {
  k::EmbedPush push{};
  push.quants = m.packed.address() + m.layout.quants;
  push.high = m.packed.address() + m.layout.high;
  push.scales = m.packed.address() + m.layout.scales;
  push.supers = m.packed.address() + m.layout.supers;
  push.out_address = out.address();
  push.parameters = counts.address();
  push.groups = m.layout.groups;
  push.width = width;
  push.stride = width;
  return push;
}

TEST_F(Matvec, EmbeddingIsTheRowItself) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const TensorType type : kTypes) {
      const std::uint32_t width = is_float(type) ? 70 : 512, rows = 9;
      const TestMatrix m = matrix(type, rows, width);
      const std::vector<k::ColumnEntry> entries{{7, 0, 0, 0}, {0, 0, 0, 0}, {8, 0, 0, 0}};
      const gpu::Buffer counts = parameters(3, entries);
      const gpu::Buffer out = empty(3 * width * 4);
      k::EmbedPush push = embed_push(m, counts, out, width);
      push.scale = 1;
      run(k::embed(mapping, weight_type(type), m.layout), push, 4);
      const std::vector<float> got = read<float>(out, 3 * width);
      for (std::size_t c = 0; c < entries.size(); ++c) {
        for (std::uint32_t i = 0; i < width; ++i) {
          const double want = m.values[entries[c].token][i];
          ASSERT_NEAR(got[c * width + i], want, 2e-6 * (0.5 + std::abs(want)))
              << name << ' ' << model::traits(type)->name << " column " << c << " entry " << i;
        }
      }
    }
  }
}

// Of a matrix in planes, on a device with matrix units: the row is as exact as elsewhere. The input has halves of an
// eighth, and zeros up to a whole stage; and the counters of the chain behind the kernel become zero.
TEST_F(Matvec, EmbeddingPreparesTheInputOfMatrixUnits) {
  k::Mapping mapping = k::lanes_mapping(device().info());
  mapping.units = true;
  ASSERT_EQ(mapping.input_form(), k::InputForm::kUnits);
  const std::uint32_t width = 320, rows = 9, stride = k::input_stride(mapping, width);
  ASSERT_EQ(stride, 384U);
  for (const TensorType type : {TensorType::kF32, TensorType::kQ5_0, TensorType::kIQ4_NL}) {
    const TestMatrix m = matrix(type, rows, width);
    const std::vector<k::ColumnEntry> entries{{7, 0, 0, 0}, {0, 0, 0, 0}};
    std::vector<float> gain(width);
    for (std::uint32_t i = 0; i < width; ++i)
      gain[i] = 0.5F + static_cast<float>(i % 7);
    const gpu::Buffer counts = parameters(2, entries), gains = buffer(std::span<const float>(gain)),
                      out = empty(2 * width * 4), input = empty(8 * stride * 2),
                      chain = empty(3 * 128), failed = empty(4);
    k::EmbedPush push = embed_push(m, counts, out, width);
    push.scale = 3;
    push.gain = gains.address();
    push.input_address = input.address();
    push.input_stride = stride;
    push.chain_counts = chain.address();
    push.chain_failed = failed.address();
    push.chain_links = 3;
    run(k::embed(mapping, weight_type(type), m.layout), push, 4, k::kEmbedParts);
    const std::vector<float> got = read<float>(out, 2 * width);
    const std::vector<std::uint16_t> halves = read<std::uint16_t>(input, 8 * stride);
    for (std::size_t c = 0; c < entries.size(); ++c) {
      for (std::uint32_t i = 0; i < stride; ++i) {
        const double half = reference::half(halves[i / 32 * 256 + c * 32 + i % 32]);
        if (i >= width) {
          ASSERT_EQ(half, 0.0) << model::traits(type)->name << " entry " << i;
          continue;
        }
        const double want = 3 * m.values[entries[c].token][i];
        ASSERT_NEAR(got[c * width + i], want, 2e-6 * (0.5 + std::abs(want)))
            << model::traits(type)->name << " column " << c << " entry " << i;
        const double shrunk = want * static_cast<double>(gain[i]) / 8;
        ASSERT_NEAR(half, shrunk, std::abs(shrunk) * 0x1p-10 + 0x1p-24)
            << model::traits(type)->name << " column " << c << " entry " << i;
      }
    }
    for (std::uint32_t link = 0; link < 3; ++link)
      EXPECT_EQ(read<std::uint32_t>(chain, 3 * 32)[link * 32], 0U);
    EXPECT_EQ(read<std::uint32_t>(failed, 1)[0], 0U);
  }
}

}  // namespace
}  // namespace bulkhead::forward

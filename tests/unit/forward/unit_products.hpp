// Products of weights packed for matrix units: matrices, inputs as producers lay them out, and runs of a tiling.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gpu/kernels/units.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"
#include "worker/forward/unit_packing.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using model::TensorType;

inline const std::vector<TensorType> kTypes = reference::all_types();

inline bool is_float(TensorType type) {
  return k::row_of(type).is_float();
}
inline bool is_super(TensorType type) {
  return model::traits(type)->block_weights == 256;
}
inline bool has_header(TensorType type) {
  return k::row_of(type).units.scales == k::UnitScales::kSupers;
}

struct TestMatrix {
  TensorType type = TensorType::kF16;
  std::uint32_t rows = 0, width = 0;
  k::WeightLayout layout;
  std::vector<std::byte> packed;
  std::vector<std::vector<double>> values;
};

inline TestMatrix make_matrix(TensorType type, std::uint32_t rows, std::uint32_t width,
                              std::span<const std::byte> data) {
  TestMatrix m;
  m.type = type;
  m.rows = rows;
  m.width = width;
  const std::size_t row_bytes = data.size() / rows;
  m.layout = k::unit_layout(weight_type(type), rows, width);
  m.packed.assign(m.layout.bytes, std::byte{0xee});
  for (std::uint32_t block = 0; block * k::kUnitBlockRows < rows; ++block) {
    std::array<const std::byte*, k::kUnitBlockRows> block_rows{};
    for (std::uint32_t i = 0; i < k::kUnitBlockRows; ++i) {
      const std::uint32_t row = block * k::kUnitBlockRows + i;
      if (row < rows) block_rows[i] = data.data() + row * row_bytes;
    }
    pack_unit_block(weight_type(type), block_rows, width,
                    m.packed.data() + block * m.layout.block_bytes);
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    m.values.push_back(
        reference::dequantize(type, data.subspan(row * row_bytes, row_bytes), width));
  }
  return m;
}
inline TestMatrix make_matrix(TensorType type, std::uint32_t rows, std::uint32_t width,
                              std::mt19937& random) {
  return make_matrix(type, rows, width, reference::random_rows(type, rows, width, random));
}

class UnitProducts : public KernelTest {
 protected:
  UnitProducts() : KernelTest(20240613) {}

  virtual k::MatvecVariant variant_of(const k::MatvecShape& shape, const k::UnitTiling& tiling) {
    return k::unit_product(shape, tiling);
  }

  // Returns columns of floats that are halves.
  std::vector<std::vector<float>> columns(std::uint32_t count, std::uint32_t width) {
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> x(count, std::vector<float>(width));
    for (auto& column : x) {
      for (float& value : column) {
        value = std::bit_cast<float>((std::bit_cast<std::uint32_t>(normal(random_)) + 0x1000U) &
                                     0xffffe000U);
        if (std::abs(value) < 0x1p-14F) value = 0;
      }
    }
    return x;
  }

  static std::uint16_t half_of(float value) {  // one that holds it exactly
    if (value == 0) return 0;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>(
        ((bits >> 16) & 0x8000U) | ((((bits >> 23) & 255U) - 112U) << 10) | ((bits >> 13) & 1023U));
  }

  // Returns the columns as producers lay them out: zeros from the width to the stride, and NaN in
  // all other columns.
  gpu::Buffer input(const std::vector<std::vector<float>>& x, std::uint32_t stride) {
    const std::size_t tiles = (x.size() + 127) / 128 * 16;
    gpu::Buffer made = empty(tiles * stride * 16);
    auto* halves = reinterpret_cast<std::uint16_t*>(made.mapped().data());
    for (std::size_t c = 0; c < x.size(); ++c) {
      for (std::uint32_t i = 0; i < stride; ++i) {
        halves[(c / 8 * (stride / 32) + i / 32) * 256 + c % 8 * 32 + i % 32] =
            i < x[c].size() ? half_of(x[c][i]) : 0;
      }
    }
    return made;
  }

  // out[column][row].
  std::vector<float> multiply(const TestMatrix& m, const gpu::Buffer& weights,
                              const std::vector<std::vector<float>>& x, k::Epilogue epilogue,
                              const k::UnitTiling& tiling, std::vector<float> before = {}) {
    const auto count = static_cast<std::uint32_t>(x.size());
    const std::uint32_t rows = epilogue == k::Epilogue::kGated ? m.rows / 2 : m.rows;
    const std::uint32_t stride = m.layout.groups * 32;
    const gpu::Buffer in = input(x, stride);
    gpu::Buffer out = empty(std::uint64_t{count} * rows * 4);
    std::memcpy(out.mapped().data(), before.data(), before.size() * 4);
    const gpu::Buffer counts = parameters(count);
    const k::MatvecVariant variant =
        variant_of({weight_type(m.type), rows, m.layout.groups, epilogue}, tiling);
    k::MatvecPush push{};
    push.quants = weights.address();
    push.x = in.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.rows = rows;
    push.groups = m.layout.groups;
    push.x_stride = stride;
    push.out_stride = rows;
    push.written_rows = rows;
    push.count_word = k::kColumnCountWord;
    run(variant.spec, push,
        (count + variant.columns_per_workgroup - 1) / variant.columns_per_workgroup,
        (rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup);
    return read<float>(out, std::size_t{count} * rows);
  }
  std::vector<float> multiply(const TestMatrix& m, const gpu::Buffer& weights,
                              const std::vector<std::vector<float>>& x, k::Epilogue epilogue,
                              std::vector<float> before = {}) {
    const std::uint32_t rows = epilogue == k::Epilogue::kGated ? m.rows / 2 : m.rows;
    return multiply(m, weights, x, epilogue,
                    k::unit_tiling({weight_type(m.type), rows, m.layout.groups, epilogue},
                                   static_cast<std::uint32_t>(x.size())),
                    std::move(before));
  }

  // Expects that reading a row of a matrix gives floats. They are exact, apart from a float's last bits, if the packed
  // form keeps the file's own scales. Other forms have scales and minima, or weights, that are rounded to halves.
  void expect_rows(const gpu::KernelSpec& kernel, const TestMatrix& m, std::uint32_t workgroups) {
    const std::vector<k::ColumnEntry> entries{{7, 0, 0, 0}, {0, 0, 0, 0}, {18, 0, 0, 0}};
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed)),
                      counts = parameters(3, entries), out = empty(3 * std::uint64_t{m.width} * 4);
    k::EmbedPush push{};
    push.quants = weights.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.groups = m.layout.groups;
    push.width = m.width;
    push.stride = m.width;
    push.scale = 1;
    run(kernel, push, 4, workgroups);
    const std::vector<float> got = read<float>(out, 3 * std::size_t{m.width});
    const k::TensorRow& row = k::row_of(weight_type(m.type));
    const bool keeps_scales =
        has_header(m.type) || (!row.is_float() && !row.units.minima && row.block_weights == 32);
    for (std::size_t c = 0; c < entries.size(); ++c) {
      double largest = 0;
      for (const double value : m.values[entries[c].token])
        largest = std::max(largest, std::abs(value));
      for (std::uint32_t i = 0; i < m.width; ++i) {
        const double want = m.values[entries[c].token][i];
        ASSERT_NEAR(got[c * m.width + i], want,
                    keeps_scales ? std::abs(want) * 0x1p-22 : largest * 0x1p-10)
            << row.name << " column " << c << " entry " << i;
      }
    }
  }
};

inline double exact(const std::vector<double>& row, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += row[i] * static_cast<double>(x[i]);
  return sum;
}

inline double magnitude(const std::vector<double>& row, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += std::abs(row[i] * static_cast<double>(x[i]));
  return sum;
}

}  // namespace bulkhead::forward

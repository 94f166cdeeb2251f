// Matrices that are packed transposed: they must have the same bytes as the transposition, written as a tensor.
#include "worker/forward/matrix_columns.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "reference.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

constexpr std::uint32_t kSlices = 3, kRows = 40, kWidth = 512;

model::TensorInfo info(model::TensorType type, std::uint64_t width, std::uint64_t rows,
                       std::span<const std::byte> data) {
  model::TensorInfo made;
  made.type = type;
  made.dimensions = 2;
  made.ne = {width, rows, 1, 1};
  made.data = data;
  return made;
}

std::vector<std::byte> packed(const PackedMatrix& matrix, std::uint64_t piece) {
  std::vector<std::byte> bytes(matrix.layout().bytes);
  for (std::uint64_t at = 0; at < bytes.size(); at += piece)
    matrix.fill(at, std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
  return bytes;
}

// The transposition of a slice, as the file's own bits or, of quantised rows, as halves of what the format defines.
std::vector<std::byte> transposed(const model::TensorInfo& tensor) {
  const bool is_float = model::traits(tensor.type)->is_float();
  const std::size_t entry = is_float ? model::traits(tensor.type)->block_bytes : 2;
  std::vector<std::byte> made(tensor.elements() * entry);
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto bytes = tensor.data.subspan(row * tensor.row_bytes(), tensor.row_bytes());
    const std::vector<double> values = reference::dequantize(tensor.type, bytes, kWidth);
    for (std::size_t i = 0; i < kWidth; ++i) {
      std::byte* const to = made.data() + (i * kRows + row) * entry;
      if (is_float) {
        std::memcpy(to, bytes.data() + i * entry, entry);
      } else {
        k::types::F16::store(static_cast<float>(values[i]), reinterpret_cast<std::uint8_t*>(to));
      }
    }
  }
  return made;
}

class Columns : public ::testing::TestWithParam<Packing> {};

TEST_P(Columns, ArePackedAsTheTranspositionWouldBe) {
  std::mt19937 random(5);
  for (const model::TensorType type : reference::all_types()) {
    SCOPED_TRACE(model::traits(type)->name);
    const auto bytes = reference::random_rows(type, kSlices * kRows, kWidth, random);
    const std::size_t slice_bytes = bytes.size() / kSlices;
    std::vector<model::TensorInfo> slices, wanted;
    std::vector<std::vector<std::byte>> turned;
    const model::TensorType made_type = packed_type(type, RowsAre::kColumns);
    EXPECT_EQ(made_type, model::traits(type)->is_float() ? type : model::TensorType::kF16);
    for (std::size_t i = 0; i < kSlices; ++i) {
      slices.push_back(
          info(type, kWidth, kRows, std::span(bytes).subspan(i * slice_bytes, slice_bytes)));
      turned.push_back(transposed(slices[i]));
    }
    for (const auto& each : turned)
      wanted.push_back(info(made_type, kRows, kWidth, each));
    const auto all = [](const std::vector<model::TensorInfo>& tensors) {
      std::vector<const model::TensorInfo*> made;
      for (const model::TensorInfo& each : tensors)
        made.push_back(&each);
      return made;
    };
    const PackedMatrix columns(all(slices), {}, GetParam(), kSlices, RowsAre::kColumns);
    const PackedMatrix rows(all(wanted), {}, GetParam(), kSlices);
    EXPECT_EQ(columns.type(), rows.type());
    EXPECT_EQ(columns.width(), kRows);
    EXPECT_EQ(columns.slice_rows(), kWidth);
    ASSERT_EQ(columns.layout().bytes, rows.layout().bytes);
    const auto got = packed(columns, columns.layout().bytes), want = packed(rows, 1 << 20);
    EXPECT_EQ(packed(columns, 4444), got) << "in pieces";
    if (model::traits(type)->is_float()) {
      EXPECT_EQ(got, want);
      continue;
    }
    // Scales that are rounded to halves err by 2^-11, and so does the result.
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i + 2 <= got.size(); i += 2) {
      std::uint16_t a = 0, b = 0;
      std::memcpy(&a, got.data() + i, 2);
      std::memcpy(&b, want.data() + i, 2);
      largest = std::max(largest, std::abs(reference::half(b)));
      worst = std::max(worst, std::abs(reference::half(a) - reference::half(b)));
    }
    EXPECT_LE(worst, largest * 0x1p-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Columns, ::testing::Values(Packing::kPlanes, Packing::kUnits));

}  // namespace
}  // namespace bulkhead::forward

#include "worker/model/float_rows.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "reference.hpp"

namespace bulkhead::forward {
namespace {

// Scales that are rounded to halves err by 2^-11; the largest weight of a row bounds what a minimum adds.
TEST(FloatRows, AreTheWeightsThatTheFormatDefines) {
  constexpr std::size_t kRows = 3, kWidth = 512;
  std::mt19937 random(11);
  for (const model::TensorType type : reference::all_types()) {
    const auto bytes = reference::random_rows(type, kRows, kWidth, random);
    model::TensorInfo tensor;
    tensor.type = type;
    tensor.dimensions = 2;
    tensor.ne = {kWidth, kRows, 1, 1};
    tensor.data = bytes;
    const std::vector<float> got = model::float_rows(tensor);
    ASSERT_EQ(got.size(), kRows * kWidth) << model::traits(type)->name;
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto want = reference::dequantize(
          type, tensor.data.subspan(row * tensor.row_bytes(), tensor.row_bytes()), kWidth);
      double largest = 0, worst = 0;
      for (std::size_t i = 0; i < kWidth; ++i) {
        largest = std::max(largest, std::abs(want[i]));
        worst = std::max(worst, std::abs(want[i] - static_cast<double>(got[row * kWidth + i])));
      }
      EXPECT_LE(worst, largest * 0x1p-10) << model::traits(type)->name;
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward

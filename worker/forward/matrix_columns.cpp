#include "worker/forward/matrix_columns.hpp"

#include <algorithm>
#include <cstring>

#include "worker/forward/weight_packing.hpp"
#include "worker/model/float_rows.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::uint64_t kColumns = gpu::kernels::kGroupWeights;

}  // namespace

const std::byte* MatrixColumns::of(const model::TensorInfo& tensor, std::uint64_t column) {
  const std::uint64_t group = column / kColumns;
  if (tensor_ != &tensor || group_ != group) read(tensor, group);
  return columns_.data() + column % kColumns * bytes_;
}

void MatrixColumns::read(const model::TensorInfo& tensor, std::uint64_t group) {
  const std::size_t entry =
      gpu::kernels::row_of(packed_type(tensor.type, RowsAre::kColumns)).block_bytes;
  const std::uint64_t rows = tensor.rows(), row_bytes = tensor.row_bytes();
  const std::uint64_t first = group * kColumns, count = std::min(kColumns, tensor.ne[0] - first);
  tensor_ = &tensor;
  group_ = group;
  bytes_ = rows * entry;
  columns_.resize(kColumns * bytes_);
  const bool is_float = model::traits(tensor.type)->is_float();
  const model::GroupDecoder decode = model::group_decoder(tensor.type);
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::byte* const from = tensor.data.data() + row * row_bytes;
    std::byte* to = columns_.data() + row * entry;
    if (is_float) {
      for (std::uint64_t i = 0; i < count; ++i, to += bytes_)
        std::memcpy(to, from + (first + i) * entry, entry);
      continue;
    }
    float weights[kColumns];
    decode(reinterpret_cast<const std::uint8_t*>(from), group, weights);
    for (std::uint64_t i = 0; i < count; ++i, to += bytes_)
      gpu::kernels::types::F16::store(weights[i], reinterpret_cast<std::uint8_t*>(to));
  }
}

}  // namespace bulkhead::forward

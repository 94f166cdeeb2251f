// Splits a GGUF matrix's blocks into the planes that kernels read (gpu/kernels/weight_layout.hpp), without changing a
// bit of a quant or a scale. Only a transposed matrix may get another type. Pure host code, without Vulkan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernels/weight_layout.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::forward {

class MatrixColumns;

inline gpu::kernels::TensorType weight_type(model::TensorType type) {
  return type;
}

// The order of the rows of a tensor's heads that makes each pair of rows that rotate together neighbours: among the
// first 2 * pairs rows of each head, rows i and i + pairs alternate. With head 0, rows keep their order.
struct RowOrder {
  std::uint32_t head = 0, pairs = 0;
  std::uint64_t source(std::uint64_t row) const {
    const std::uint64_t entry = head != 0 ? row % head : 0;
    if (head == 0 || entry >= std::uint64_t{pairs} * 2) return row;
    return row - entry + (entry & 1) * pairs + entry / 2;
  }
};

// How a matrix lies in device memory (gpu/kernels/weight_layout.hpp).
enum class Packing {
  kPlanes,
  kUnits,             // for matrix units
  kUnitsAlternating,  // the same for two tensors, a gate and its up, whose rows alternate
};

// What the rows of a matrix are in its tensors. With kColumns the matrix is the transposition of its tensor.
enum class RowsAre { kRows, kColumns };

// Returns the type of such a matrix for a tensor of that type. Columns of floats keep their bits.
// Blocks lie along rows, so columns of quantised rows are decoded and rounded to F16. That moves a
// weight by at most 2^-11 of itself, which is an eighth of the error that Q8_0 may have.
gpu::kernels::WeightType packed_type(model::TensorType type, RowsAre rows);

// One matrix in device memory: the rows of one or more tensors of equal type and row length, one after another (q, k
// and v; gate and up), so that one dispatch computes them all.
class PackedMatrix {
 public:
  // `orders` has the row order of each tensor; empty: all keep their order. With `slices` the tensors belong to that
  // many matrices of equal shape (experts), one matrix's tensors after another's; each matrix begins with a whole
  // block. A matrix of columns has one tensor, whose rows keep their order.
  explicit PackedMatrix(std::vector<const model::TensorInfo*> tensors,
                        std::vector<RowOrder> orders = {}, Packing packing = Packing::kPlanes,
                        std::uint32_t slices = 1, RowsAre rows = RowsAre::kRows);

  gpu::kernels::WeightType type() const { return type_; }
  const gpu::kernels::WeightLayout& layout() const { return layout_; }
  std::uint32_t width() const { return width_; }
  std::uint32_t slices() const { return slices_; }
  // Returns the rows of the tensors; layout() may pad them.
  std::uint64_t slice_rows() const { return slice_rows_; }

  // Writes bytes [offset, offset + piece.size()) of the layout. Several threads write large pieces.
  void fill(std::uint64_t offset, std::span<std::byte> piece) const;

 private:
  struct Plane;
  void fill_rows(const Plane& plane, std::uint64_t first, std::uint64_t count, std::byte* to) const;
  void fill_blocks(std::uint64_t offset, std::span<std::byte> piece) const;
  void fill_block(std::uint64_t block, MatrixColumns& columns, std::byte* to) const;
  // Null: there is no such row. A row of a matrix of columns is in `columns`.
  const std::byte* row_data(std::uint64_t row, MatrixColumns& columns) const;

  std::vector<const model::TensorInfo*> tensors_;
  std::vector<RowOrder> orders_;
  Packing packing_;
  RowsAre rows_are_;
  gpu::kernels::WeightType type_;
  std::uint32_t width_;
  std::uint32_t slices_;
  std::uint64_t slice_rows_ = 0, stored_rows_ = 0;  // per slice
  gpu::kernels::WeightLayout layout_;
};

// Returns a vector (norm gain, bias, frequency factors) of any float type as floats; zeros for other types.
std::vector<float> to_floats(const model::TensorInfo& tensor);

}  // namespace bulkhead::forward

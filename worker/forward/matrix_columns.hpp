// The columns of a tensor as rows of their own, for matrices that are packed transposed. Pure host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/model/gguf.hpp"

namespace bulkhead::forward {

// Keeps 32 neighbouring columns of one tensor, the first of them a multiple of 32: a block of the file can only be
// decoded whole. For one thread.
class MatrixColumns {
 public:
  // Returns an entry for each of the tensor's rows, one after another, in the type packed_type() of
  // such a matrix. Valid until other columns than the 32 are asked for.
  const std::byte* of(const model::TensorInfo& tensor, std::uint64_t column);

 private:
  void read(const model::TensorInfo& tensor, std::uint64_t group);

  const model::TensorInfo* tensor_ = nullptr;
  std::uint64_t group_ = 0;
  std::size_t bytes_ = 0;           // of a column
  std::vector<std::byte> columns_;  // [column][row]
};

}  // namespace bulkhead::forward

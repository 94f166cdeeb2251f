// All tensor types. The build makes this list from the files in gpu/kernels/types/ (CMakeLists.txt). Each of these
// files has one type's row and the code that takes its blocks apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/tensor_row.hpp"
#include "gpu/kernels/tensor_type_list.hpp"

namespace bulkhead::gpu::kernels {

// The numbers are those of GGUF.
enum class TensorType : std::uint32_t {
#define BULKHEAD_TYPE(NAME) k##NAME = types::NAME::kRow.id,
  BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

// In the order of TENSOR_TYPES in GLSL.
constexpr std::array kTensorRows = {
#define BULKHEAD_TYPE(NAME) types::NAME::kRow,
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

// Returns a type's index among the rows, or kTensorRows.size() if the number is no known type.
constexpr std::size_t tensor_place(TensorType type) {
  std::size_t place = 0;
  while (place < kTensorRows.size() && kTensorRows[place].id != static_cast<std::uint32_t>(type))
    ++place;
  return place;
}

// Returns null if the number is no known type; a file may contain any number.
constexpr const TensorRow* find_row(TensorType type) {
  const std::size_t place = tensor_place(type);
  return place < kTensorRows.size() ? &kTensorRows[place] : nullptr;
}
// Returns the row of a known type.
constexpr const TensorRow& row_of(TensorType type) {
  return kTensorRows[tensor_place(type)];
}

}  // namespace bulkhead::gpu::kernels

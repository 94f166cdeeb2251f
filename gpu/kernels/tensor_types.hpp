// All tensor types: the build makes this list of the files in gpu/kernels/types/ (CMakeLists.txt), of
// which each has one type's row and how its blocks are taken apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/tensor_row.hpp"
#include "gpu/kernels/tensor_type_list.hpp"

namespace bulkhead::gpu::kernels {

// Numbered as GGUF numbers its tensor types.
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

// A type's place among the rows; kTensorRows.size() for a number that is no type of ours.
constexpr std::size_t tensor_place(TensorType type) {
  std::size_t place = 0;
  while (place < kTensorRows.size() && kTensorRows[place].id != static_cast<std::uint32_t>(type))
    ++place;
  return place;
}

// Null for a number that is no type of ours, as files may have them.
constexpr const TensorRow* find_row(TensorType type) {
  const std::size_t place = tensor_place(type);
  return place < kTensorRows.size() ? &kTensorRows[place] : nullptr;
}
// Of a type that is ours.
constexpr const TensorRow& row_of(TensorType type) {
  return kTensorRows[tensor_place(type)];
}

}  // namespace bulkhead::gpu::kernels

#include "worker/model/float_rows.hpp"

#include "gpu/kernels/tensor_types.hpp"

namespace bulkhead::model {
namespace {

namespace k = gpu::kernels;

constexpr std::uint32_t kGroup = 32;

// Returns the number that a weight's bits stand for, before its scale.
template <typename Type>
int number_of(std::uint8_t bits) {
  constexpr k::TensorRow kRow = Type::kRow;
  if constexpr (kRow.units.quants == k::UnitQuants::kBytes) return static_cast<std::int8_t>(bits);
  if constexpr (kRow.has_codebook()) return kRow.codebook[bits & 15U];
  return bits - static_cast<int>(kRow.units.bias);
}

// Appends the weights of the block's sixteen number `sixteen`.
template <typename Type>
void append_sixteen(const std::uint8_t* block, std::uint32_t sixteen, std::vector<float>& to) {
  constexpr k::TensorRow kRow = Type::kRow;
  const std::uint32_t group = sixteen / 2, half = sixteen % 2;
  float scale = 0, minimum = 0;
  if constexpr (kRow.units.scales == k::UnitScales::kSupers) {
    scale = k::types::half_to_float(Type::super_scale(block)) *
            static_cast<float>(Type::sub_scale(block, sixteen));
  } else {
    const k::UnitScale made = Type::unit_scale(block, group, half);
    scale = k::types::half_to_float(made.scale);
    if constexpr (kRow.units.minima) minimum = k::types::half_to_float(made.minimum);
  }
  for (std::uint32_t q = 2 * half; q < 2 * half + 2; ++q) {
    const std::uint64_t eight = Type::eight(block, group, q);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto bits = static_cast<std::uint8_t>(eight >> (8 * i));
      to.push_back(static_cast<float>(number_of<Type>(bits)) * scale + minimum);
    }
  }
}

template <typename Type>
std::vector<float> decoded(const TensorInfo& tensor) {
  constexpr k::TensorRow kRow = Type::kRow;
  std::vector<float> values;
  values.reserve(tensor.elements());
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(tensor.data.data());
  for (std::size_t at = 0; at + kRow.block_bytes <= tensor.data.size(); at += kRow.block_bytes) {
    if constexpr (kRow.is_float()) {
      values.push_back(Type::value(bytes + at));
    } else {
      static_assert(kRow.block_weights % kGroup == 0);
      for (std::uint32_t sixteen = 0; sixteen < kRow.block_weights / 16; ++sixteen)
        append_sixteen<Type>(bytes + at, sixteen, values);
    }
  }
  return values;
}

}  // namespace

std::vector<float> float_rows(const TensorInfo& tensor) {
  using Decode = std::vector<float> (*)(const TensorInfo&);
  static constexpr Decode kDecoders[] = {
#define BULKHEAD_TYPE(NAME) decoded<k::types::NAME>,
      BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
  };
  return kDecoders[k::tensor_place(tensor.type)](tensor);
}

}  // namespace bulkhead::model

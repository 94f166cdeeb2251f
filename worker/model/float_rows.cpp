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

// A block's weights are divided into runs of sixteen. This function writes the weights of the run with the number
// `sixteen`.
template <typename Type>
void decode_sixteen(const std::uint8_t* block, std::uint32_t sixteen, float* to) {
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
      *to++ = static_cast<float>(number_of<Type>(bits)) * scale + minimum;
    }
  }
}

// Writes the 32 weights of a row's group number `group`.
template <typename Type>
void decode_group(const std::uint8_t* row, std::uint64_t group, float* to) {
  constexpr k::TensorRow kRow = Type::kRow;
  if constexpr (kRow.is_float()) {
    for (std::uint64_t i = 0; i < kGroup; ++i)
      to[i] = Type::value(row + (group * kGroup + i) * kRow.block_bytes);
  } else {
    static_assert(kRow.block_weights % kGroup == 0);
    constexpr std::uint32_t kGroups = kRow.block_weights / kGroup;
    const std::uint8_t* const block = row + group / kGroups * kRow.block_bytes;
    const auto sixteen = static_cast<std::uint32_t>(group % kGroups) * 2;
    decode_sixteen<Type>(block, sixteen, to);
    decode_sixteen<Type>(block, sixteen + 1, to + 16);
  }
}

template <typename Type>
std::vector<float> decoded(const TensorInfo& tensor) {
  constexpr k::TensorRow kRow = Type::kRow;
  std::vector<float> values(tensor.data.size() / kRow.block_bytes * kRow.block_weights);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(tensor.data.data());
  if constexpr (kRow.is_float()) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = Type::value(bytes + i * kRow.block_bytes);
  } else {
    for (std::size_t group = 0; group < values.size() / kGroup; ++group)
      decode_group<Type>(bytes, group, values.data() + group * kGroup);
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

GroupDecoder group_decoder(TensorType type) {
  static constexpr GroupDecoder kDecoders[] = {
#define BULKHEAD_TYPE(NAME) decode_group<k::types::NAME>,
      BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
  };
  return kDecoders[k::tensor_place(type)];
}

}  // namespace bulkhead::model

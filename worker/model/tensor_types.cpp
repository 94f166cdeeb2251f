// The tensor types of GGUF: those that Bulkhead computes with, and the names of the others for
// messages.
#include <algorithm>
#include <iterator>

#include "worker/model/gguf.hpp"
#include "worker/model/gguf_part.hpp"

namespace bulkhead::model {

const TensorTypeTraits* traits(TensorType type) {
  static constexpr TensorTypeTraits kF32{"F32", 1, 4};
  static constexpr TensorTypeTraits kF16{"F16", 1, 2};
  static constexpr TensorTypeTraits kBF16{"BF16", 1, 2};
  static constexpr TensorTypeTraits kQ4_0{"Q4_0", 32, 18};
  static constexpr TensorTypeTraits kQ4_1{"Q4_1", 32, 20};
  static constexpr TensorTypeTraits kQ5_0{"Q5_0", 32, 22};
  static constexpr TensorTypeTraits kQ5_1{"Q5_1", 32, 24};
  static constexpr TensorTypeTraits kQ8_0{"Q8_0", 32, 34};
  static constexpr TensorTypeTraits kIQ4_NL{"IQ4_NL", 32, 18};
  static constexpr TensorTypeTraits kQ4_K{"Q4_K", 256, 144};
  static constexpr TensorTypeTraits kQ5_K{"Q5_K", 256, 176};
  static constexpr TensorTypeTraits kQ6_K{"Q6_K", 256, 210};
  switch (type) {
    case TensorType::kF32:
      return &kF32;
    case TensorType::kF16:
      return &kF16;
    case TensorType::kBF16:
      return &kBF16;
    case TensorType::kQ4_0:
      return &kQ4_0;
    case TensorType::kQ4_1:
      return &kQ4_1;
    case TensorType::kQ5_0:
      return &kQ5_0;
    case TensorType::kQ5_1:
      return &kQ5_1;
    case TensorType::kQ8_0:
      return &kQ8_0;
    case TensorType::kIQ4_NL:
      return &kIQ4_NL;
    case TensorType::kQ4_K:
      return &kQ4_K;
    case TensorType::kQ5_K:
      return &kQ5_K;
    case TensorType::kQ6_K:
      return &kQ6_K;
  }
  return nullptr;
}

std::string tensor_type_name(std::uint32_t type) {
  if (const TensorTypeTraits* known = traits(static_cast<TensorType>(type))) return known->name;
  static constexpr struct {
    std::uint32_t type;
    const char* name;
  } kOthers[] = {{9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"},
                 {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},
                 {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},   {26, "I32"},   {27, "I64"},
                 {28, "F64"},    {29, "IQ1_M"},   {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"},
                 {40, "NVFP4"}};
  const auto* other = std::find_if(std::begin(kOthers), std::end(kOthers),
                                   [type](const auto& entry) { return entry.type == type; });
  return other != std::end(kOthers) ? other->name : "number " + std::to_string(type);
}

}  // namespace bulkhead::model

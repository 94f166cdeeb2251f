// The tensor types of GGUF: those that Bulkhead computes with (gpu/kernels/tensor_types.hpp), and the
// names of the others for messages.
#include <algorithm>
#include <iterator>

#include "worker/model/gguf.hpp"
#include "worker/model/gguf_part.hpp"

namespace bulkhead::model {
namespace {

struct NamedType {
  std::uint32_t type;
  const char* name;
};
constexpr NamedType kOthers[] = {{9, "Q8_1"},   {15, "Q8_K"}, {24, "I8"},  {25, "I16"},
                                 {26, "I32"},   {27, "I64"},  {28, "F64"}, {34, "TQ1_0"},
                                 {35, "TQ2_0"}, {40, "NVFP4"}};
static_assert(std::ranges::none_of(kOthers,
                                   [](const NamedType& other) {
                                     return gpu::kernels::find_row(
                                                static_cast<TensorType>(other.type)) != nullptr;
                                   }),
              "a type that has a row has its name from there");

}  // namespace

const TensorTypeTraits* traits(TensorType type) {
  return gpu::kernels::find_row(type);
}

std::string tensor_type_name(std::uint32_t type) {
  if (const TensorTypeTraits* known = traits(static_cast<TensorType>(type))) return known->name;
  const auto* other = std::find_if(std::begin(kOthers), std::end(kOthers),
                                   [type](const auto& entry) { return entry.type == type; });
  return other != std::end(kOthers) ? other->name : "number " + std::to_string(type);
}

std::string known_tensor_types() {
  std::string names;
  for (std::size_t i = 0; i < gpu::kernels::kTensorRows.size(); ++i) {
    if (i > 0) names += i + 1 < gpu::kernels::kTensorRows.size() ? ", " : " and ";
    names += gpu::kernels::kTensorRows[i].name;
  }
  return names;
}

}  // namespace bulkhead::model

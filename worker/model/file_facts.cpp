#include "worker/model/file_facts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "config/base/clean_text.hpp"
#include "gpu/kernels/tensor_types.hpp"

namespace bulkhead::model {
namespace {

// Values of general.file_type that stand for mixtures of types (llama.cpp's LLAMA_FTYPE). A value that stands for one
// type is in that type's row.
struct Mixture {
  std::uint32_t number;
  const char* name;
};
constexpr Mixture kMixtures[] = {
    {11, "Q3_K_S"}, {12, "Q3_K_M"}, {13, "Q3_K_L"}, {14, "Q4_K_S"}, {15, "Q4_K_M"}, {16, "Q5_K_S"},
    {17, "Q5_K_M"}, {21, "Q2_K_S"}, {22, "IQ3_XS"}, {27, "IQ3_M"},  {29, "IQ2_M"},
};

// Returns the name of a value of general.file_type; empty: it is not known.
std::string name_of_file_type(std::uint64_t number) {
  // llama.cpp adds this to a value that it has guessed from the tensors.
  constexpr std::uint64_t kGuessed = 1024;
  number &= ~kGuessed;
  for (const Mixture& mixture : kMixtures) {
    if (mixture.number == number) return mixture.name;
  }
  for (const gpu::kernels::TensorRow& row : gpu::kernels::kTensorRows) {
    if (row.file_type == number) return row.name;
  }
  return {};
}

// Three digits or so, and the unit, as Ollama writes it.
std::string short_count(std::uint64_t count) {
  constexpr double kBillion = 1e9, kMillion = 1e6, kThousand = 1e3;
  const auto value = static_cast<double>(count);
  char text[48];
  if (value >= kBillion)
    std::snprintf(text, sizeof text, "%.1fB", value / kBillion);
  else if (value >= kMillion)
    std::snprintf(text, sizeof text, "%.2fM", value / kMillion);
  else
    std::snprintf(text, sizeof text, "%.0fK", std::ceil(value / kThousand));
  return text;
}

// The keys of general.sampling that stand for samplers which requests can name, as llama.cpp writes them
// (https://github.com/ggml-org/llama.cpp/pull/17120), and what their values may be.
struct SamplerKey {
  const char* key;
  const char* name;
  double least, most;
};
constexpr double kSmallest = 1e-6;
constexpr SamplerKey kSamplerKeys[] = {
    {"general.sampling.temp", "temperature", 0, 10},
    {"general.sampling.top_k", "top_k", 0, 1 << 30},
    {"general.sampling.top_p", "top_p", kSmallest, 1},
    {"general.sampling.min_p", "min_p", 0, 1},
    {"general.sampling.penalty_repeat", "repetition_penalty", kSmallest, 10},
};

std::optional<double> number_of(const GgufFile& file, const char* key) {
  if (const auto real = file.get_float(key); real.ok() && real->has_value()) {
    // Most files have 32 bits for a number that was written with few digits.
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g", **real);
    return std::strtod(digits, nullptr);
  }
  const auto whole = file.get_uint(key);
  if (!whole.ok() || !whole->has_value()) return std::nullopt;
  return static_cast<double>(**whole);
}

}  // namespace

std::vector<SamplerAdvice> sampler_advice(const GgufFile& file) {
  std::vector<SamplerAdvice> advice;
  for (const SamplerKey& each : kSamplerKeys) {
    const std::optional<double> value = number_of(file, each.key);
    if (value && *value >= each.least && *value <= each.most) advice.push_back({each.name, *value});
  }
  return advice;
}

FileFacts facts_of(const GgufFile& file) {
  constexpr std::size_t kLongestLabel = 64;
  FileFacts facts;
  if (file.tensors().empty()) return facts;
  std::map<std::string_view, std::uint64_t> bytes;
  for (const TensorInfo& tensor : file.tensors()) {
    facts.parameters += tensor.elements();
    bytes[traits(tensor.type)->name] += tensor.data.size();
  }
  facts.size = short_count(facts.parameters);
  const auto label = file.get_string("general.size_label");
  if (label.ok() && label->has_value() && !(*label)->empty() && (*label)->size() <= kLongestLabel)
    facts.size = cleaned(std::string(**label));
  const auto type = file.get_uint("general.file_type");
  if (type.ok() && type->has_value()) facts.quantization = name_of_file_type(**type);
  if (facts.quantization.empty()) {
    facts.quantization =
        std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; })->first;
  }
  return facts;
}

}  // namespace bulkhead::model

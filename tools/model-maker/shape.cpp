#include "tools/model-maker/shape.hpp"

#include <algorithm>
#include <cmath>

namespace bulkhead::model_maker {
namespace {

using model::TensorType;

struct FileType {
  const char* name;
  TensorType type;
  std::uint32_t number;  // llama.cpp's LLAMA_FTYPE
};
constexpr FileType kFileTypes[] = {
    {"F32", TensorType::kF32, 0},        {"F16", TensorType::kF16, 1},
    {"BF16", TensorType::kBF16, 32},     {"Q8_0", TensorType::kQ8_0, 7},
    {"Q4_0", TensorType::kQ4_0, 2},      {"Q4_1", TensorType::kQ4_1, 3},
    {"Q5_0", TensorType::kQ5_0, 8},      {"Q5_1", TensorType::kQ5_1, 9},
    {"IQ4_NL", TensorType::kIQ4_NL, 25}, {"Q4_K", TensorType::kQ4_K, 15},
    {"Q4_K_S", TensorType::kQ4_K, 14},   {"Q4_K_M", TensorType::kQ4_K, 15},
    {"Q5_K", TensorType::kQ5_K, 17},     {"Q5_K_S", TensorType::kQ5_K, 16},
    {"Q5_K_M", TensorType::kQ5_K, 17},   {"Q6_K", TensorType::kQ6_K, 18},
};

Error wrong(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// The layers that the *_K_M mixes give more bits: the first and last eighth, and every third in
// between.
bool use_more_bits(std::uint32_t layer, std::uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

enum class Role { kOther, kOutput, kAttentionV, kFeedForwardDown };

TensorType choose(const std::string& file_type, TensorType base, Role role, std::uint32_t layer,
                  std::uint32_t layers, std::uint64_t row) {
  TensorType type = base;
  const bool plain =
      base == TensorType::kF32 || base == TensorType::kF16 || base == TensorType::kBF16;
  if (role == Role::kOutput && !plain && base != TensorType::kQ8_0 && row % 256 == 0)
    type = TensorType::kQ6_K;
  if (role == Role::kAttentionV) {
    if (file_type.ends_with("_K_M") && use_more_bits(layer, layers)) type = TensorType::kQ6_K;
    if (file_type == "Q4_K_S" && layer < 4) type = TensorType::kQ5_K;
  }
  if (role == Role::kFeedForwardDown) {
    if (file_type.ends_with("_K_M") && use_more_bits(layer, layers)) type = TensorType::kQ6_K;
    if (file_type == "Q4_K_S" && layer < layers / 8) type = TensorType::kQ5_K;
  }
  if (row % model::traits(type)->block_weights != 0) {
    switch (type) {
      case TensorType::kQ4_K:
        type = TensorType::kQ5_0;
        break;
      case TensorType::kQ5_K:
        type = TensorType::kQ5_1;
        break;
      case TensorType::kQ6_K:
        type = TensorType::kQ8_0;
        break;
      default:
        break;
    }
  }
  if (row % model::traits(type)->block_weights != 0) type = TensorType::kF16;
  return type;
}

}  // namespace

std::uint64_t PlannedTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t n : ne)
    count *= n;
  return count;
}

std::uint64_t PlannedTensor::bytes() const {
  const model::TensorTypeTraits* traits = model::traits(type);
  return elements() / traits->block_weights * traits->block_bytes;
}

const std::vector<Shape>& presets() {
  static const std::vector<Shape> kPresets = {
      // name, architecture, layers, embedding, ffn, heads, kv, head, vocabulary, context, rope,
      // epsilon, tied, llama3
      {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000.0F, 1e-5F, true,
       true},
      {"llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0F, 1e-5F, true,
       true},
      {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000.0F, 1e-5F,
       false, true},
      {"mistral-7b", "llama", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1000000.0F, 1e-5F, false,
       false},
      {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1000000.0F, 1e-6F, true,
       false},
      {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1000000.0F, 1e-6F, false,
       false},
      {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1000000.0F, 1e-6F, true,
       false},
      {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1000000.0F, 1e-6F, false,
       false},
      {"tiny-llama", "llama", 2, 256, 512, 4, 2, 64, 512, 1024, 10000.0F, 1e-5F, false, false},
      {"tiny-qwen2", "qwen2", 2, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F, 1e-6F, true, false},
      {"tiny-qwen3", "qwen3", 2, 320, 896, 6, 2, 48, 512, 1024, 1000000.0F, 1e-6F, true, false},
  };
  return kPresets;
}

Result<Shape> preset(const std::string& name) {
  std::string known;
  for (const Shape& shape : presets()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  return wrong("there is no preset '" + name + "'; there are: " + known);
}

Status check(const Shape& shape) {
  if (shape.architecture != "llama" && shape.architecture != "qwen2" &&
      shape.architecture != "qwen3") {
    return wrong("architecture '" + shape.architecture + "' is not llama, qwen2 or qwen3");
  }
  const auto range = [](const char* what, std::uint64_t value, std::uint64_t least,
                        std::uint64_t most) -> Status {
    if (value >= least && value <= most) return {};
    return wrong(std::string(what) + " is " + std::to_string(value) + "; it must be from " +
                 std::to_string(least) + " to " + std::to_string(most));
  };
  BULKHEAD_RETURN_IF_ERROR(range("layers", shape.layers, 1, 512));
  BULKHEAD_RETURN_IF_ERROR(range("embedding", shape.embedding, 32, 65536));
  BULKHEAD_RETURN_IF_ERROR(range("feed-forward", shape.feed_forward, 32, 262144));
  BULKHEAD_RETURN_IF_ERROR(range("heads", shape.heads, 1, 512));
  BULKHEAD_RETURN_IF_ERROR(range("kv-heads", shape.kv_heads, 1, shape.heads));
  BULKHEAD_RETURN_IF_ERROR(range("head-size", shape.head_size, 2, 1024));
  BULKHEAD_RETURN_IF_ERROR(range("vocabulary", shape.vocabulary, 1, 1 << 20));
  BULKHEAD_RETURN_IF_ERROR(range("context", shape.context, 1, 1 << 24));
  if (shape.heads % shape.kv_heads != 0) return wrong("heads must be a multiple of kv-heads");
  if (shape.head_size % 2 != 0) return wrong("head-size must be even: its entries rotate in pairs");
  if (!std::isfinite(shape.rope_base) || shape.rope_base <= 0)
    return wrong("rope-base must be above 0");
  return {};
}

const std::vector<std::string>& file_types() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const FileType& type : kFileTypes)
      names.emplace_back(type.name);
    return names;
  }();
  return kNames;
}

Result<Plan> plan_tensors(const Shape& shape, const std::string& file_type) {
  BULKHEAD_RETURN_IF_ERROR(check(shape));
  const auto* chosen = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                    [&](const FileType& type) { return file_type == type.name; });
  if (chosen == std::end(kFileTypes)) {
    std::string known;
    for (const std::string& name : file_types())
      known += (known.empty() ? "" : ", ") + name;
    return wrong("there is no type '" + file_type + "'; there are: " + known);
  }
  Plan plan;
  plan.file_type = chosen->number;

  // Deviations keep activations near 1: a matrix divides by the root of its row length, and what is
  // added to the residual stream is scaled down by the number of additions.
  const auto matrix = [&](const std::string& name, std::uint64_t row, std::uint64_t rows,
                          double gain, Role role = Role::kOther, std::uint32_t layer = 0) {
    PlannedTensor tensor{
        name, choose(file_type, chosen->type, role, layer, shape.layers, row), {row, rows}};
    tensor.deviation = gain / std::sqrt(static_cast<double>(row));
    plan.tensors.push_back(std::move(tensor));
  };
  const auto vector = [&](const std::string& name, std::uint64_t size, Fill fill) {
    plan.tensors.push_back({name, TensorType::kF32, {size}, fill, 0.05});
  };
  const double residual_gain = 1.0 / std::sqrt(2.0 * shape.layers);
  const std::uint64_t query = std::uint64_t{shape.heads} * shape.head_size;
  const std::uint64_t key_value = std::uint64_t{shape.kv_heads} * shape.head_size;

  matrix("token_embd.weight", shape.embedding, shape.vocabulary, 2.0,
         shape.tied_output ? Role::kOutput : Role::kOther);
  if (shape.llama3_rope) {
    plan.tensors.push_back(
        {"rope_freqs.weight", TensorType::kF32, {shape.head_size / 2}, Fill::kRopeFactors, 0});
  }
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    vector(block + "attn_norm.weight", shape.embedding, Fill::kNorm);
    matrix(block + "attn_q.weight", shape.embedding, query, 1.0);
    matrix(block + "attn_k.weight", shape.embedding, key_value, 1.0);
    matrix(block + "attn_v.weight", shape.embedding, key_value, 1.0, Role::kAttentionV, layer);
    if (shape.architecture == "qwen2") {
      vector(block + "attn_q.bias", query, Fill::kWeights);
      vector(block + "attn_k.bias", key_value, Fill::kWeights);
      vector(block + "attn_v.bias", key_value, Fill::kWeights);
    }
    if (shape.architecture == "qwen3") {
      vector(block + "attn_q_norm.weight", shape.head_size, Fill::kNorm);
      vector(block + "attn_k_norm.weight", shape.head_size, Fill::kNorm);
    }
    matrix(block + "attn_output.weight", query, shape.embedding, residual_gain);
    vector(block + "ffn_norm.weight", shape.embedding, Fill::kNorm);
    matrix(block + "ffn_gate.weight", shape.embedding, shape.feed_forward, 1.0);
    matrix(block + "ffn_up.weight", shape.embedding, shape.feed_forward, 1.0);
    // SiLU(gate) * up has a root mean square of about 0.6 for inputs of 1.
    matrix(block + "ffn_down.weight", shape.feed_forward, shape.embedding, residual_gain / 0.6,
           Role::kFeedForwardDown, layer);
  }
  vector("output_norm.weight", shape.embedding, Fill::kNorm);
  if (!shape.tied_output)
    matrix("output.weight", shape.embedding, shape.vocabulary, 2.0, Role::kOutput);

  for (const PlannedTensor& tensor : plan.tensors)
    plan.bytes += tensor.bytes();
  return plan;
}

}  // namespace bulkhead::model_maker

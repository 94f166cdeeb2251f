#include "tools/model-maker/shape.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "tools/model-maker/metadata.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model_maker {
namespace {

using model::TensorType;

struct FileType {
  const char* name;
  TensorType type;
  std::uint32_t number;  // llama.cpp's LLAMA_FTYPE
};
// Mixtures of types. A file with only one type has the name and number of that type's row.
constexpr FileType kMixes[] = {
    {"Q4_K_S", TensorType::kQ4_K, 14},
    {"Q4_K_M", TensorType::kQ4_K, 15},
    {"Q5_K_S", TensorType::kQ5_K, 16},
    {"Q5_K_M", TensorType::kQ5_K, 17},
};

const std::vector<FileType>& all_file_types() {
  static const std::vector<FileType> kAll = [] {
    std::vector<FileType> all(std::begin(kMixes), std::end(kMixes));
    for (const gpu::kernels::TensorRow& row : gpu::kernels::kTensorRows)
      all.push_back({row.name, static_cast<TensorType>(row.id), row.file_type});
    return all;
  }();
  return kAll;
}

Error wrong(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// Says whether the *_K_M mixtures give this layer more bits: the first and the last eighth, and every third layer in
// between.
bool use_more_bits(std::uint32_t layer, std::uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Types whose blocks are too long for some rows, and the types that llama.cpp's quantiser uses instead.
struct SmallerBlocks {
  TensorType type, instead;
};
constexpr SmallerBlocks kSmallerBlocks[] = {
    {TensorType::kQ4_K, TensorType::kQ5_0},
    {TensorType::kQ5_K, TensorType::kQ5_1},
    {TensorType::kQ6_K, TensorType::kQ8_0},
};

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
    const auto* const smaller = std::ranges::find(kSmallerBlocks, type, &SmallerBlocks::type);
    if (smaller != std::end(kSmallerBlocks)) type = smaller->instead;
  }
  if (row % model::traits(type)->block_weights != 0) type = TensorType::kF16;
  return type;
}

// Returns the number of the layer in a tensor's name; 0 if there is none.
std::uint32_t layer_of(const std::string& name) {
  std::uint32_t layer = 0;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

Role role_of(const model::TensorRow& row, const Shape& shape) {
  const std::string& name = row.name;
  if (name == "output.weight" || (name == "token_embd.weight" && shape.tied_output))
    return Role::kOutput;
  if (name.ends_with(".attn_v.weight")) return Role::kAttentionV;
  if (name.ends_with(".ffn_down.weight") || name.ends_with(".ffn_down_exps.weight"))
    return Role::kFeedForwardDown;
  return Role::kOther;
}

// Returns the standard deviation of a matrix's results for inputs near 1. If results are added to the residual
// stream, they are smaller the more of them there are.
double gain_of(const std::string& name, const Shape& shape) {
  const double residual = 1.0 / std::sqrt(2.0 * shape.layers);
  if (name == "token_embd.weight" || name == "output.weight") return 2.0;
  if (name.ends_with(".attn_output.weight") || name.ends_with(".shortconv.out_proj.weight"))
    return residual;
  // SiLU(gate) * up has a root mean square of about 0.6 for inputs of 1.
  if (name.find(".ffn_down") != std::string::npos || name.ends_with(".ssm_out.weight"))
    return residual / 0.6;
  return 1.0;
}

PlannedTensor planned(const model::TensorRow& row, const Shape& shape, const std::string& file_type,
                      TensorType base) {
  PlannedTensor made{row.name, TensorType::kF32, {row.width}};
  if (row.plain || (row.rows == 1 && row.slices == 1)) {
    const bool multiplies =
        row.name.find("norm") != std::string::npos || row.name.find("scale") != std::string::npos;
    made.fill = multiplies                      ? Fill::kNorm
                : row.name.starts_with("rope_") ? Fill::kRopeFactors
                : row.name.ends_with(".ssm_a")  ? Fill::kRates
                                                : Fill::kWeights;
  }
  if (row.rows == 1 && row.slices == 1) {
    made.deviation = 0.05;
    return made;
  }
  made.deviation = gain_of(row.name, shape) / std::sqrt(static_cast<double>(row.width));
  if (row.plain) {
    made.ne.push_back(row.rows);
    return made;
  }
  // In files of mixtures of experts in MXFP4, only the experts have this type.
  if (base == TensorType::kMXFP4 && shape.experts != 0 && row.slices == 1) base = TensorType::kQ8_0;
  const Role role = role_of(row, shape);
  made.type = choose(file_type, base, role, layer_of(row.name), shape.layers, row.width);
  made.ne.push_back(row.rows);
  if (row.slices != 1) made.ne.push_back(row.slices);
  return made;
}

// Makes the model that the shape's keys describe to its architecture, or the block that drafts tokens.
Result<model::ModelGraph> imagine(const Shape& shape, bool block = false) {
  Metadata metadata;
  add_model_keys(shape, 0, metadata);
  const std::string bytes = header_without_tensors(metadata);
  BULKHEAD_TRY(const auto file,
               model::GgufFile::from_memory(std::as_bytes(std::span(bytes)), shape.name));
  const auto has = [&shape](const std::string& name) {
    if (name.ends_with(".nextn.shared_head_norm.weight")) return true;
    if (name == "output.weight") return !shape.tied_output;
    if (name == "rope_freqs.weight") return shape.llama3_rope;
    if (name.ends_with(".exp_probs_b.bias")) return shape.sigmoid;
    if (name.ends_with(".attn_kv_b.weight")) return shape.joined_latents;
    if (name == "token_types.weight") return shape.pooling != 0;
    if (name == "dense_2.weight") return shape.dense != 0;
    if (name.ends_with(".attn_qkv.weight")) return shape.architecture.starts_with("nomic-bert");
    if (shape.pooling != 0 && name.ends_with(".ffn_down.bias")) return shape.qkv_bias;
    if (shape.full_interval != 0) {
      if (name.ends_with(".scale") || name.ends_with("_scale.weight")) return true;
      if (name.ends_with(".ffn_gate_up_exps.weight")) return true;
      if (name.ends_with(".attn_v.weight")) return (layer_of(name) + 1) % shape.full_interval != 0;
    }
    return shape.qkv_bias && name.find(".attn_") != std::string::npos && name.ends_with(".bias");
  };
  return block ? model::imagine_drafting_block(*file, has) : model::imagine_model(*file, has);
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

Result<Shape> preset(const std::string& name) {
  std::string known;
  for (const Shape& shape : presets()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  return wrong("there is no preset '" + name + "'; there are: " + known);
}

Status check(const Shape& shape) {
  const auto known = model::architectures();
  if (std::none_of(known.begin(), known.end(), [&](const model::Architecture* each) {
        return shape.architecture == each->name;
      }))
    return wrong("there is no architecture '" + shape.architecture +
                 "'; there are: " + model::architecture_names());
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
  BULKHEAD_RETURN_IF_ERROR(range("experts", shape.experts, 0, model::kMaxExperts));
  if (shape.experts != 0) {
    BULKHEAD_RETURN_IF_ERROR(range("experts used", shape.experts_used, 1, shape.experts));
    BULKHEAD_RETURN_IF_ERROR(range("an expert's feed-forward", shape.expert_width, 32, 262144));
  }
  if (shape.latent != 0 && (shape.turning >= shape.head_size || shape.value_size == 0))
    return wrong("heads over latents need entries that turn, others that don't, and values");
  if (shape.joined_latents && shape.latent == 0)
    return wrong("joined-latents is for models that attend over latents");
  if (shape.delta_values != 0 && (shape.delta_keys == 0 || shape.delta_size == 0 ||
                                  shape.delta_values % shape.delta_keys != 0))
    return wrong("delta nets' heads of values must be a multiple of those of keys");
  if (!shape.kinds.empty() &&
      (shape.kinds.size() != shape.layers || (shape.mamba_size == 0) == (shape.taps == 0)))
    return wrong(
        "each layer needs a kind, and either Mamba-2 the size of its heads or convolutions taps");
  if (shape.full_interval != 0 &&
      (shape.window == 0 || shape.full_kv_heads == 0 || shape.heads % shape.full_kv_heads != 0 ||
       shape.window_head_size == 0 || shape.window_head_size % 2 != 0))
    return wrong("layers of two kinds need a window, its heads' size, and heads that fit");
  if (shape.heads % shape.kv_heads != 0) return wrong("heads must be a multiple of kv-heads");
  if (shape.head_size % 2 != 0) return wrong("head-size must be even: its entries rotate in pairs");
  if (!std::isfinite(shape.rope_base) || shape.rope_base <= 0)
    return wrong("rope-base must be above 0");
  return {};
}

const std::vector<std::string>& file_types() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const FileType& type : all_file_types())
      names.emplace_back(type.name);
    return names;
  }();
  return kNames;
}

Result<Plan> plan_tensors(const Shape& shape, const std::string& file_type) {
  BULKHEAD_RETURN_IF_ERROR(check(shape));
  const auto chosen = std::ranges::find_if(
      all_file_types(), [&](const FileType& type) { return file_type == type.name; });
  if (chosen == all_file_types().end()) {
    std::string known;
    for (const std::string& name : file_types())
      known += (known.empty() ? "" : ", ") + name;
    return wrong("there is no type '" + file_type + "'; there are: " + known);
  }
  Plan plan;
  plan.file_type = chosen->number;

  BULKHEAD_TRY(const model::ModelGraph graph, imagine(shape));
  std::vector<model::TensorRow> rows = graph.tensors;
  if (shape.drafting_block) {
    BULKHEAD_TRY(const model::ModelGraph block, imagine(shape, true));
    rows.insert(rows.end(), block.tensors.begin(), block.tensors.end());
  }
  for (const model::TensorRow& row : rows) {
    if (std::any_of(plan.tensors.begin(), plan.tensors.end(),
                    [&](const PlannedTensor& planned) { return planned.name == row.name; }))
      continue;  // several layers or operations use this tensor
    plan.tensors.push_back(planned(row, shape, file_type, chosen->type));
  }

  for (const PlannedTensor& tensor : plan.tensors)
    plan.bytes += tensor.bytes();
  return plan;
}

}  // namespace bulkhead::model_maker

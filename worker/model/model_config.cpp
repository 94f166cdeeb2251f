#include "worker/model/model_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string_view>

#include "config/base/log.hpp"

namespace bulkhead::model {
namespace {

struct Supported {
  const char* name;
  Architecture architecture;
  RopePairing pairing;  // llama files hold q and k permuted so that pairs are adjacent
};
constexpr Supported kSupported[] = {
    {"llama", Architecture::kLlama, RopePairing::kAdjacent},
    {"qwen2", Architecture::kQwen2, RopePairing::kHalves},
    {"qwen3", Architecture::kQwen3, RopePairing::kHalves},
};

// Far above any real model of these architectures; they keep every product below in 64 bits.
constexpr std::uint64_t kMaxLayers = 1'024;
constexpr std::uint64_t kMaxWidth = 1U << 20;
constexpr std::uint64_t kMaxHeads = 4'096;
constexpr std::uint64_t kMaxHeadSize = 1'024;
constexpr std::uint64_t kMaxContext = 1U << 30;
constexpr std::uint64_t kMaxVocabulary = 1U << 22;

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file) {}

  Result<ModelConfig> read() {
    BULKHEAD_RETURN_IF_ERROR(architecture());
    BULKHEAD_RETURN_IF_ERROR(shape());
    BULKHEAD_RETURN_IF_ERROR(rope());
    BULKHEAD_RETURN_IF_ERROR(refuse_other_computations());
    BULKHEAD_RETURN_IF_ERROR(global_tensors());
    for (std::uint32_t layer = 0; layer < config_.layers; ++layer)
      BULKHEAD_RETURN_IF_ERROR(layer_tensors(layer));
    BULKHEAD_RETURN_IF_ERROR(refuse_other_tensors());
    BULKHEAD_RETURN_IF_ERROR(cap_context());
    return config_;
  }

 private:
  Error corrupt(const std::string& what) const {
    return Error(ErrorCode::kCorrupt,
                 file_.name() + ": " + what + "; the file is damaged or was converted wrongly");
  }
  Error unsupported(const std::string& what) const {
    return Error(ErrorCode::kUnsupported, file_.name() + ": " + what);
  }

  // "llama.block_count"
  std::string key(std::string_view name) const { return prefix_ + "." + std::string(name); }

  Status architecture() {
    BULKHEAD_TRY(const auto name, file_.get_string("general.architecture"));
    if (!name) return corrupt("metadata key general.architecture is missing");
    const auto* found = std::find_if(std::begin(kSupported), std::end(kSupported),
                                     [&name](const Supported& s) { return *name == s.name; });
    if (found == std::end(kSupported)) {
      std::string list;
      for (const Supported& each : kSupported)
        list += (list.empty() ? "" : ", ") + std::string(each.name);
      return unsupported("architecture \"" + std::string(name->substr(0, 64)) +
                         "\" is not supported; supported are: " + list);
    }
    prefix_ = found->name;
    config_.architecture = found->architecture;
    config_.rope_pairing = found->pairing;

    BULKHEAD_TRY(const auto title, file_.get_string("general.name"));
    config_.name = title && !title->empty() ? std::string(*title)
                                            : file_.name().substr(file_.name().rfind('/') + 1);
    return {};
  }

  // A count within [1, limit]; `fallback` when the key is absent, an error when there is none.
  Result<std::uint32_t> count(std::string_view name, std::uint64_t limit,
                              std::optional<std::uint64_t> fallback = std::nullopt) const {
    BULKHEAD_TRY(auto value, file_.get_uint(key(name)));
    if (!value) value = fallback;
    if (!value) return corrupt("metadata key " + key(name) + " is missing");
    if (*value == 0 || *value > limit)
      return corrupt("metadata key " + key(name) + " is " + std::to_string(*value) +
                     ", not from 1 to " + std::to_string(limit));
    return static_cast<std::uint32_t>(*value);
  }

  Result<double> number(std::string_view name, double fallback) const {
    BULKHEAD_TRY(const auto value, file_.get_float(key(name)));
    return value.value_or(fallback);
  }

  Status shape() {
    BULKHEAD_TRY(config_.layers, count("block_count", kMaxLayers));
    BULKHEAD_TRY(config_.embedding, count("embedding_length", kMaxWidth));
    BULKHEAD_TRY(config_.feed_forward, count("feed_forward_length", kMaxWidth));
    BULKHEAD_TRY(config_.heads, count("attention.head_count", kMaxHeads));
    BULKHEAD_TRY(config_.kv_heads, count("attention.head_count_kv", kMaxHeads, config_.heads));
    BULKHEAD_TRY(config_.context, count("context_length", kMaxContext));
    if (config_.heads % config_.kv_heads != 0)
      return corrupt(std::to_string(config_.heads) + " attention heads are not a multiple of " +
                     std::to_string(config_.kv_heads) + " key-value heads");

    const bool divides = config_.embedding % config_.heads == 0;
    if (!divides && !file_.has(key("attention.key_length")))
      return corrupt("embedding_length " + std::to_string(config_.embedding) +
                     " is not a multiple of head_count " + std::to_string(config_.heads) + " and " +
                     key("attention.key_length") + " is missing");
    const std::uint64_t square = config_.embedding / config_.heads;
    BULKHEAD_TRY(config_.head_size, count("attention.key_length", kMaxHeadSize, square));
    BULKHEAD_TRY(config_.value_head_size, count("attention.value_length", kMaxHeadSize, square));
    if (config_.head_size != config_.value_head_size)
      return unsupported("attention.key_length " + std::to_string(config_.head_size) +
                         " and attention.value_length " + std::to_string(config_.value_head_size) +
                         " differ; only models with equal ones are supported");

    BULKHEAD_TRY(const double epsilon, number("attention.layer_norm_rms_epsilon", -1.0));
    if (!(epsilon > 0.0 && epsilon < 1.0))
      return corrupt("metadata key " + key("attention.layer_norm_rms_epsilon") +
                     " is missing or not between 0 and 1");
    config_.rms_epsilon = static_cast<float>(epsilon);
    return {};
  }

  Status rope() {
    BULKHEAD_TRY(config_.rope_dimensions,
                 count("rope.dimension_count", kMaxHeadSize, config_.head_size));
    if (config_.rope_dimensions % 2 != 0 || config_.rope_dimensions > config_.head_size)
      return corrupt("metadata key " + key("rope.dimension_count") + " is " +
                     std::to_string(config_.rope_dimensions) +
                     ", not even and at most the head size " + std::to_string(config_.head_size));
    BULKHEAD_TRY(const double base, number("rope.freq_base", 10'000.0));
    if (!(base > 1.0 && base < 1e15))
      return corrupt("metadata key " + key("rope.freq_base") +
                     " is not a base for rotary positions");
    config_.rope_base = static_cast<float>(base);

    BULKHEAD_TRY(const auto type, file_.get_string(key("rope.scaling.type")));
    BULKHEAD_TRY(const double old_factor, number("rope.scale_linear", 1.0));
    BULKHEAD_TRY(const double factor, number("rope.scaling.factor", old_factor));
    BULKHEAD_TRY(const double attention, number("rope.scaling.attn_factor", 1.0));
    if (attention != 1.0)
      return unsupported(key("rope.scaling.attn_factor") + " other than 1 is not supported");
    // Without a type, a factor means the linear kind, as in files from before the type was written.
    if (type && *type != "none" && *type != "linear")
      return unsupported(
          "rope scaling \"" + std::string(type->substr(0, 64)) +
          "\" is not supported; supported are: none, linear, and Llama 3's factors in "
          "rope_freqs.weight");
    if ((!type || *type == "linear") && factor != 1.0) {
      if (!(factor > 0.0 && factor < 1e6))
        return corrupt("metadata key " + key("rope.scaling.factor") + " is not a positive number");
      config_.rope_scaling = RopeScaling::kLinear;
      config_.rope_linear_factor = static_cast<float>(factor);
    }
    return {};
  }

  Status refuse_other_computations() const {
    BULKHEAD_TRY(const auto experts, file_.get_uint(key("expert_count")));
    if (experts.value_or(0) > 0)
      return unsupported("is a mixture of " + std::to_string(*experts) +
                         " experts; only dense models are supported");
    if (file_.has(key("attention.causal"))) {
      BULKHEAD_TRY(const auto causal, file_.get_bool(key("attention.causal")));
      if (!causal.value_or(true))
        return unsupported(
            "has non-causal attention, as embedding models do; only models that "
            "generate text are supported");
    }
    for (const char* scale :
         {"logit_scale", "residual_scale", "embedding_scale", "attention.scale"}) {
      BULKHEAD_TRY(const double value, number(scale, 0.0));
      if (value != 0.0 && value != 1.0)
        return unsupported("metadata key " + key(scale) +
                           " asks for a computation that is not supported");
    }
    return {};
  }

  // A tensor that must be there (`needed`) or may be, with exactly this shape; null when it is
  // absent.
  Result<const TensorInfo*> tensor(const std::string& name, bool needed, std::uint64_t row,
                                   std::uint64_t rows = 1) {
    const TensorInfo* found = file_.find_tensor(name);
    if (found == nullptr) {
      if (needed) return corrupt("tensor " + name + " is missing");
      return found;
    }
    if (found->ne[0] != row || found->ne[1] != rows || found->ne[2] != 1 || found->ne[3] != 1)
      return corrupt("tensor " + name + " has the shape " + shape_text(*found) + ", not [" +
                     std::to_string(row) + (rows == 1 ? "" : ", " + std::to_string(rows)) + "]");
    // Norm weights, biases and factors are vectors; they take no room worth saving and are kept in
    // F32.
    if (rows == 1 && found->type != TensorType::kF32)
      return unsupported("tensor " + name + " is of type " + traits(found->type)->name +
                         "; vectors must be F32");
    return found;
  }

  Result<bool> optional_tensor(const std::string& name, std::uint64_t row, std::uint64_t rows = 1) {
    BULKHEAD_TRY(const TensorInfo* found, tensor(name, false, row, rows));
    return found != nullptr;
  }

  static std::string shape_text(const TensorInfo& tensor) {
    std::string text = "[";
    for (std::uint32_t d = 0; d < tensor.dimensions; ++d)
      text += (d == 0 ? "" : ", ") + std::to_string(tensor.ne[d]);
    return text + "]";
  }

  Status global_tensors() {
    const TensorInfo* embeddings = file_.find_tensor("token_embd.weight");
    if (file_.tensors().empty())
      return unsupported("holds no tensors (a vocabulary-only file), so no model can run from it");
    if (embeddings == nullptr) return corrupt("tensor token_embd.weight is missing");
    if (embeddings->rows() < 2 || embeddings->rows() > kMaxVocabulary)
      return corrupt("tensor token_embd.weight has " + std::to_string(embeddings->rows()) +
                     " rows, not from 2 to " + std::to_string(kMaxVocabulary));
    config_.vocabulary = static_cast<std::uint32_t>(embeddings->rows());
    BULKHEAD_RETURN_IF_ERROR(
        tensor("token_embd.weight", true, config_.embedding, config_.vocabulary));
    const auto tokens = file_.array_length("tokenizer.ggml.tokens");
    if (tokens && *tokens != config_.vocabulary)
      return corrupt("the tokenizer has " + std::to_string(*tokens) +
                     " tokens, token_embd.weight " + std::to_string(config_.vocabulary) + " rows");

    BULKHEAD_RETURN_IF_ERROR(tensor("output_norm.weight", true, config_.embedding));
    BULKHEAD_TRY(const bool output,
                 optional_tensor("output.weight", config_.embedding, config_.vocabulary));
    config_.tied_output = !output;

    BULKHEAD_TRY(const TensorInfo* factors,
                 tensor("rope_freqs.weight", false, config_.rope_dimensions / 2));
    if (factors != nullptr) {
      if (config_.rope_scaling != RopeScaling::kNone)
        return unsupported("has both linear rope scaling and rope_freqs.weight");
      for (std::size_t i = 0; i < factors->ne[0]; ++i) {
        float factor = 0;
        std::memcpy(&factor, factors->data.data() + i * sizeof factor, sizeof factor);
        if (!(factor > 0.0F && std::isfinite(factor)))
          return corrupt("rope_freqs.weight has an entry that is no positive number (index " +
                         std::to_string(i) + ")");
      }
      config_.rope_scaling = RopeScaling::kLlama3Factors;
    }
    return {};
  }

  Status layer_tensors(std::uint32_t layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const std::uint64_t width = config_.embedding;
    const std::uint64_t q_width = std::uint64_t{config_.heads} * config_.head_size;
    const std::uint64_t kv_width = config_.kv_width();

    const struct {
      const char* name;
      std::uint64_t row;
      std::uint64_t rows;
    } needed[] = {
        {"attn_norm.weight", width, 1},
        {"attn_q.weight", width, q_width},
        {"attn_k.weight", width, kv_width},
        {"attn_v.weight", width, kv_width},
        {"attn_output.weight", q_width, width},
        {"ffn_norm.weight", width, 1},
        {"ffn_gate.weight", width, config_.feed_forward},
        {"ffn_up.weight", width, config_.feed_forward},
        {"ffn_down.weight", config_.feed_forward, width},
    };
    for (const auto& each : needed)
      BULKHEAD_RETURN_IF_ERROR(tensor(block + each.name, true, each.row, each.rows));

    BULKHEAD_TRY(const bool q_bias, optional_tensor(block + "attn_q.bias", q_width));
    BULKHEAD_TRY(const bool k_bias, optional_tensor(block + "attn_k.bias", kv_width));
    BULKHEAD_TRY(const bool v_bias, optional_tensor(block + "attn_v.bias", kv_width));
    if (q_bias != k_bias || q_bias != v_bias || (layer > 0 && q_bias != config_.qkv_bias))
      return unsupported(block +
                         "attn_{q,k,v}.bias: some are there and some are not; all layers must "
                         "have all three or none");
    config_.qkv_bias = q_bias;

    if (config_.architecture == Architecture::kQwen3) {
      for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"})
        BULKHEAD_RETURN_IF_ERROR(tensor(block + name, true, config_.head_size));
      config_.qk_norm = true;
    }
    return {};
  }

  // Whatever else a layer holds would change its result: to leave it out silently is to give wrong
  // tokens.
  Status refuse_other_tensors() const {
    static constexpr std::string_view kUsed[] = {
        "attn_norm.weight",   "attn_q.weight",   "attn_k.weight",   "attn_v.weight",
        "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
        "ffn_down.weight",    "attn_q.bias",     "attn_k.bias",     "attn_v.bias"};
    // Tables of rotary frequencies that old converters copied; they hold what is computed anyway.
    static constexpr std::string_view kInert[] = {"attn_rot_embd.weight", "attn_rot_embd.freqs",
                                                  "attn.rotary_emb.inv_freq"};
    for (const TensorInfo& each : file_.tensors()) {
      const std::string_view name = each.name;
      if (name == "token_embd.weight" || name == "output_norm.weight" || name == "output.weight" ||
          name == "rope_freqs.weight")
        continue;
      if (name == "output.bias" || name == "output_norm.bias" || name.starts_with("rope_factors_"))
        return refused(name);
      if (!name.starts_with("blk.")) {
        spdlog::debug("{}: tensor {} is not used", file_.name(), name);
        continue;
      }
      const std::size_t dot = name.find('.', 4);
      const std::string_view part = dot == std::string_view::npos ? "" : name.substr(dot + 1);
      const auto is = [part](std::string_view other) { return part == other; };
      const bool norm = config_.qk_norm && (is("attn_q_norm.weight") || is("attn_k_norm.weight"));
      if (std::any_of(std::begin(kInert), std::end(kInert), is)) {
        spdlog::debug("{}: tensor {} is not used", file_.name(), name);
      } else if (!norm && std::none_of(std::begin(kUsed), std::end(kUsed), is)) {
        return refused(name);
      } else if (std::atoll(std::string(name.substr(4, dot - 4)).c_str()) >= config_.layers) {
        return corrupt("tensor " + std::string(name) + " belongs to no layer: " +
                       key("block_count") + " is " + std::to_string(config_.layers));
      }
    }
    return {};
  }

  Error refused(std::string_view name) const {
    return unsupported("tensor " + std::string(name) +
                       " takes part in a computation that is not "
                       "supported for architecture " +
                       prefix_);
  }

  // Windowed attention equals full attention as long as the window holds everything; so that is the
  // limit.
  Status cap_context() {
    BULKHEAD_TRY(const auto window, file_.get_uint(key("attention.sliding_window")));
    if (window && *window > 0 && *window < config_.context) {
      spdlog::warn(
          "{}: attention slides over a window of {} tokens; the context is limited to it "
          "(the file says {})",
          file_.name(), *window, config_.context);
      config_.context = static_cast<std::uint32_t>(*window);
    }
    return {};
  }

  const GgufFile& file_;
  std::string prefix_;
  ModelConfig config_;
};

}  // namespace

const char* to_string(Architecture architecture) {
  for (const Supported& each : kSupported)
    if (each.architecture == architecture) return each.name;
  return "unknown";
}

Result<ModelConfig> read_model_config(const GgufFile& file) {
  return Reader(file).read();
}

}  // namespace bulkhead::model

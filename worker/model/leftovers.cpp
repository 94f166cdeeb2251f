// Finds what a file holds beyond what its architecture's description has asked for. Everything that would change the
// result is refused by name: without it the tokens would be wrong.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <variant>

#include "config/base/log.hpp"
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

namespace {

// Says whether the tensor is of an encoder or a projector, which some files hold beside the language model.
bool of_another_sense(std::string_view name) {
  constexpr std::string_view kParts[] = {"v.",     "a.",    "mm.",        "mm_",         "vision",
                                         "visual", "audio", "resampler.", "model.vision"};
  return std::ranges::any_of(kParts,
                             [name](std::string_view part) { return name.starts_with(part); });
}

// Says whether a tensor that belongs to no layer changes what is computed.
bool computes_beside_layers(std::string_view name) {
  constexpr std::string_view kStarts[] = {"output.bias",       "output.scale",  "output_norm.bias",
                                          "rope_freqs.weight", "rope_factors_", "dense",
                                          "token_embd_norm.",  "token_types.",  "position_embd."};
  return std::ranges::any_of(kStarts,
                             [name](std::string_view start) { return name.starts_with(start); });
}

// Returns the factors of attention's scores that the layers compute with.
std::vector<double> score_factors(const ModelGraph& graph) {
  std::vector<double> made;
  for (const Layer& layer : graph.layers) {
    for (const Operation& operation : layer.operations) {
      if (const auto* const rotate = std::get_if<Rotate>(&operation)) {
        made.push_back(rotate->scale != 0 ? rotate->scale
                                          : 1 / std::sqrt(static_cast<double>(rotate->heads.size)));
      } else if (const auto* const latent = std::get_if<RotateLatent>(&operation)) {
        made.push_back(latent->scale);
      }
    }
  }
  return made;
}

bool renormalises_experts(const ModelGraph& graph) {
  const auto* const experts = first_operation<Experts>(graph);
  return experts == nullptr || experts->router.renormalise;
}

}  // namespace

Error GraphBuilder::refused_tensor(std::string_view name) const {
  return unsupported("tensor " + std::string(name) +
                     " takes part in a computation that is not supported for architecture " +
                     prefix_);
}

Error GraphBuilder::refused_key(std::string_view name) const {
  return unsupported("metadata key " + key(name) + " asks for a computation that is not supported");
}

Status GraphBuilder::refuse_other_computations() const {
  const auto unread = [this](const char* name) { return !read_keys_.contains(name); };
  if (unread("expert_count")) {
    BULKHEAD_TRY(const auto experts, file_.get_uint(key("expert_count")));
    // Files of Hunyuan's dense models say that they have one expert, which is their feed-forward.
    if (experts.value_or(0) > 1)
      return unsupported("is a mixture of " + std::to_string(*experts) +
                         " experts; for architecture " + prefix_ +
                         " only dense models are supported");
  }
  if (unread("attention.causal") && file_.has(key("attention.causal"))) {
    BULKHEAD_TRY(const auto causal, file_.get_bool(key("attention.causal")));
    if (!causal.value_or(true))
      return unsupported(
          "has attention that is not causal, as models for embeddings have; for architecture " +
          prefix_ + " only models that generate text are supported");
  }
  struct Wish {
    const char* name;
    bool computed;
  };
  const Wish kWishes[] = {{"expert_weights_norm", renormalises_experts(graph_)},
                          {"use_parallel_residual", false}};
  for (const auto& [name, computed] : kWishes) {
    if (!unread(name) || !file_.has(key(name))) continue;
    BULKHEAD_TRY(const auto wanted, file_.get_bool(key(name)));
    if (wanted.value_or(false) && !computed) return refused_key(name);
  }
  return refuse_other_numbers();
}

// Refuses a file whose numbers differ from those that the architecture's description computes with. A 0 counts as
// absent.
Status GraphBuilder::refuse_other_numbers() const {
  struct Computed {
    const char* name;
    std::vector<double> numbers;
  };
  const Computed kNumbers[] = {
      {"logit_scale", {1}},
      {"residual_scale", {1}},
      {"embedding_scale", {graph_.embedding_scale}},
      {"attention.scale", score_factors(graph_)},
      {"attention.value_scale", {1}},
      {"attention.output_scale", {1}},
      {"rope.scaling.alpha", {1}},
      {"attention.temperature_scale", {0}},
      {"attention.clamp_kqv", {0}},
      {"attention.max_alibi_bias", {0}},
      // llama.cpp gives these numbers to every model that it saves. Other numbers are a model's own.
      {"attn_logit_softcapping", {50}},
      {"final_logit_softcapping", {30}},
      {"router_logit_softcapping", {30}},
  };
  for (const auto& [name, numbers] : kNumbers) {
    if (read_keys_.contains(name)) continue;
    BULKHEAD_TRY(const auto value, file_.get_float(key(name)));
    if (!value || *value == 0.0) continue;
    for (const double number : numbers) {
      if (!(std::abs(*value - number) <= 1e-5 * std::abs(number))) return refused_key(name);
    }
  }
  return {};
}

Status GraphBuilder::refuse_other_tensors() const {
  // Tables of rotary frequencies that old converters copied; the values are computed anyway.
  static constexpr std::string_view kInert[] = {"attn_rot_embd.weight", "attn_rot_embd.freqs",
                                                "attn.rotary_emb.inv_freq"};
  std::size_t drafting = 0, seeing = 0;
  for (const TensorInfo& each : file_.tensors()) {
    const std::string_view name = each.name;
    if (used_tensors_.contains(name)) continue;
    if (computes_beside_layers(name)) return refused_tensor(name);
    if (of_another_sense(name)) {
      ++seeing;
      continue;
    }
    if (name.starts_with("cls.")) continue;  // ranking.cpp reads what the host computes with it
    if (!name.starts_with("blk.")) {
      spdlog::debug("{}: tensor {} is not used", file_.name(), name);
      continue;
    }
    const std::size_t dot = name.find('.', 4);
    const std::string_view part = dot == std::string_view::npos ? "" : name.substr(dot + 1);
    std::uint64_t layer = 0;
    std::from_chars(name.data() + 4, name.data() + std::min(dot, name.size()), layer);
    const std::uint64_t blocks =
        layers_ + (read_keys_.contains("nextn_predict_layers")
                       ? file_.get_uint(key("nextn_predict_layers"))->value_or(0)
                       : 0);
    if (layer >= blocks)
      return damaged("tensor " + std::string(name) + " belongs to no layer: " + key("block_count") +
                     " is " + std::to_string(blocks));
    if (layer >= layers_) {
      ++drafting;
    } else if (std::find(std::begin(kInert), std::end(kInert), part) == std::end(kInert)) {
      return refused_tensor(name);
    }
  }
  if (drafting > 0)
    spdlog::info("{}: {} tensors of blocks that draft tokens are not a part of the model{}",
                 file_.name(), drafting,
                 architecture_.drafts ? "; models[].draft: mtp makes the first block guess" : "");
  if (seeing > 0)
    spdlog::info(
        "{}: {} tensors of a part that reads images or sound are not used; the model serves text",
        file_.name(), seeing);
  return {};
}

// Windowed attention equals full attention as long as the window holds all positions, so that is the limit for an
// architecture without windows.
Status GraphBuilder::cap_context() {
  if (read_keys_.contains("attention.sliding_window")) return {};
  BULKHEAD_TRY(const auto window, file_.get_uint(key("attention.sliding_window")));
  if (window && *window > 0 && *window < graph_.context) {
    spdlog::warn(
        "{}: attention slides over a window of {} tokens; the context is limited to it "
        "(the file says {})",
        file_.name(), *window, graph_.context);
    graph_.context = static_cast<std::uint32_t>(*window);
  }
  return {};
}

// An architecture's file may be wrong, too.
Status GraphBuilder::check_operations() const {
  const auto fits = [this](const auto& operation) {
    if constexpr (HasOwnKernel<std::decay_t<decltype(operation)>>)
      return operation.fits(graph_.activations);
    else
      return true;
  };
  ActivationIndex read_by_last = kAbsent;  // by the product that added to the stream last
  const auto mistake = [this](std::size_t layer, const char* what) {
    return Error(ErrorCode::kInternal, file_.name() + ": layer " + std::to_string(layer) +
                                           " of architecture \"" + graph_.architecture +
                                           "\" has an operation " + what +
                                           "; this is a mistake in Bulkhead, not in the file");
  };
  for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
    for (const Operation& operation : graph_.layers[i].operations) {
      if (!std::visit(fits, operation))
        return mistake(i, "whose activations' widths don't fit each other");
      // What adds to the stream may write the result of the next norm at the same time.
      const auto* const norm = std::get_if<Norm>(&operation);
      if (norm != nullptr && norm->in == kStream && norm->out == read_by_last)
        return mistake(i, "that norms the stream to what the operation before it reads");
      const auto* const product = std::get_if<Product>(&operation);
      if (product != nullptr && product->out == kStream) read_by_last = product->in;
    }
  }
  return {};
}

Result<ModelGraph> GraphBuilder::finish() {
  BULKHEAD_RETURN_IF_ERROR(status_);
  if (graph_.activations.size() > kMostGraphActivations)
    return unsupported("has layers of too many different widths: it needs " +
                       std::to_string(graph_.activations.size()) +
                       " buffers for activations, and " + std::to_string(kMostGraphActivations) +
                       " are supported");
  BULKHEAD_RETURN_IF_ERROR(check_operations());
  BULKHEAD_RETURN_IF_ERROR(refuse_other_computations());
  if (!has_ && !drafts()) BULKHEAD_RETURN_IF_ERROR(refuse_other_tensors());
  BULKHEAD_RETURN_IF_ERROR(cap_context());
  return std::move(graph_);
}

}  // namespace bulkhead::model

// Finds what a file holds beyond what its architecture's description has asked for. Everything that would change the
// result is refused by name: without it the tokens would be wrong.
#include <algorithm>
#include <charconv>
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

}  // namespace

Error GraphBuilder::refused_tensor(std::string_view name) const {
  return unsupported("tensor " + std::string(name) +
                     " takes part in a computation that is not supported for architecture " +
                     prefix_);
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
  // Numbers that change nothing; a 0 never does.
  struct Neutral {
    const char* name;
    double number;
  };
  constexpr Neutral kNumbers[] = {{"logit_scale", 1},           {"residual_scale", 1},
                                  {"embedding_scale", 1},       {"attention.scale", 1},
                                  {"attention.value_scale", 1}, {"attention.output_scale", 1},
                                  {"rope.scaling.alpha", 1},    {"attention.temperature_scale", 0},
                                  {"attention.clamp_kqv", 0},   {"attention.max_alibi_bias", 0}};
  for (const auto& [name, neutral] : kNumbers) {
    if (!unread(name)) continue;
    BULKHEAD_TRY(const auto value, file_.get_float(key(name)));
    if (value && *value != 0.0 && *value != neutral)
      return unsupported("metadata key " + key(name) +
                         " asks for a computation that is not supported");
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
    spdlog::info("{}: {} tensors of blocks that draft several tokens at once are not used",
                 file_.name(), drafting);
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
  if (!has_) BULKHEAD_RETURN_IF_ERROR(refuse_other_tensors());
  BULKHEAD_RETURN_IF_ERROR(cap_context());
  return std::move(graph_);
}

}  // namespace bulkhead::model

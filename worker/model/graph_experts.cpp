// Builds mixtures of experts for architectures' files: reads the keys expert_*, and names a layer's tensors of
// experts.
#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

Gate function_of(const std::vector<Gate>& functions, std::uint32_t layer) {
  return functions.empty() ? Gate::kSilu : functions[layer];
}

// The names of the bias of the experts' choice. Converters keep the name without an ending that
// some checkpoints have.
constexpr const char* kChoiceBiases[] = {"exp_probs_b.bias", "exp_probs_b"};

// The values of the key expert_gating_func.
constexpr std::uint64_t kSoftmax = 1, kSigmoid = 2, kMostScorings = 16;

}  // namespace

std::optional<Router> GraphBuilder::router() {
  const std::optional<Router> made = any_router();
  if (!made) return made;
  if (count("expert_gating_func", kMostScorings, kSoftmax) != kSoftmax)
    refuse("weights its experts by another function than softmax, which is not supported for " +
           std::string("architecture ") + prefix_);
  if (count("expert_group_count", kMaxExperts, 0) > 1)
    refuse("chooses experts by groups, which is not supported for architecture " + prefix_);
  return made;
}

Router GraphBuilder::required_router() {
  Router made = router().value_or(Router{});
  if (made.experts == 0) corrupt("metadata key " + key("expert_count") + " is missing");
  made.experts = std::max(made.experts, 1U);
  made.used = std::max(made.used, 1U);
  return made;
}

std::uint32_t GraphBuilder::expert_feed_forward(const Router& router) {
  constexpr const char* kWidth = "expert_feed_forward_length";
  if (has_count(kWidth) || !has_key("feed_forward_length")) return count(kWidth, kMaxWidth);
  return std::max(feed_forward() / router.used, 1U);
}

std::optional<Router> GraphBuilder::scored_router(bool sigmoid) {
  std::optional<Router> made = any_router();
  if (!made) return made;
  const std::uint32_t scoring =
      count("expert_gating_func", kMostScorings, sigmoid ? kSigmoid : kSoftmax);
  if (scoring != kSoftmax && scoring != kSigmoid)
    refuse("weights its experts by another function than softmax and sigmoid (" +
           key("expert_gating_func") + " " + std::to_string(scoring) + "), which is not supported");
  made->sigmoid = scoring == kSigmoid;
  made->renormalise = flag("expert_weights_norm", false);
  made->groups = std::max(count("expert_group_count", kMaxExpertGroups, 0), 1U);
  made->groups_used =
      std::max(count("expert_group_used_count", kMaxExpertGroups, made->groups), 1U);
  if (made->experts % made->groups != 0 || made->groups_used > made->groups ||
      made->experts / made->groups * made->groups_used < made->used)
    corrupt("a token's " + std::to_string(made->used) + " experts can't be of " +
            std::to_string(made->groups_used) + " of the " + std::to_string(made->groups) +
            " groups of " + std::to_string(made->experts) + " experts");
  return made;
}

std::optional<Router> GraphBuilder::any_router() {
  Router made;
  made.experts = count("expert_count", kMaxExperts, 0);
  made.used = count("expert_used_count", kMaxUsedExperts, 0);
  if (made.experts == 0) return std::nullopt;
  if (made.used == 0 || made.used > made.experts) {
    corrupt("metadata key " + key("expert_used_count") + " is " + std::to_string(made.used) +
            ", not from 1 to the " + std::to_string(made.experts) + " experts that there are");
    made.used = 1;
  }
  // The router takes entries in groups of four.
  if (embedding() % 4 != 0)
    refuse("is a mixture of experts whose embedding_length " + std::to_string(embedding()) +
           " is not a multiple of 4");
  const double scale = number("expert_weights_scale", 1.0);
  if (!(std::isfinite(scale) && scale >= 0))
    corrupt("metadata key " + key("expert_weights_scale") + " is not a positive number");
  if (scale != 0) made.scale = static_cast<float>(scale);  // 0 counts as absent
  return made;
}

std::vector<MatrixPart> LayerBuilder::expert_rows(const std::string& name, std::uint64_t width,
                                                  std::uint64_t rows, std::uint32_t experts) {
  const std::string stacked = block_ + name + "_exps.weight";
  const std::string first = block_ + name + ".0.weight";
  // Older files have one tensor for each expert.
  const bool apart = !model_.has_ && model_.file().find_tensor(stacked) == nullptr &&
                     model_.file().find_tensor(first) != nullptr;
  if (!apart) return {{model_.tensor(stacked, width, rows, experts), 0, rows}};
  std::vector<MatrixPart> parts;
  for (std::uint32_t expert = 0; expert < experts; ++expert)
    parts.push_back(this->rows(name + "." + std::to_string(expert), width, rows));
  const auto type_of = [&](const MatrixPart& part) {
    return model_.file().find_tensor(model_.graph_.tensors[part.tensor].name)->type;
  };
  for (std::uint32_t expert = 1; expert < experts && model_.status().ok(); ++expert) {
    if (type_of(parts[expert]) == type_of(parts.front())) continue;
    model_.refuse("has experts of different tensor types: " + block_ + name + ".0.weight is " +
                  traits(type_of(parts.front()))->name + ", and " + block_ + name + "." +
                  std::to_string(expert) + ".weight is " + traits(type_of(parts[expert]))->name +
                  "; convert the model anew, because today's converters write one tensor for all "
                  "experts of a layer (" +
                  block_ + name + "_exps.weight)");
  }
  return parts;
}

void LayerBuilder::add_gates_and_ups(Experts& experts, std::uint64_t embedding) {
  const std::uint64_t width = experts.width;
  const std::uint32_t count = experts.router.experts;
  const TensorIndex both =
      model_.optional_tensor(name("ffn_gate_up_exps.weight"), embedding, 2 * width, count);
  if (both != kAbsent) {
    experts.gate = {{both, 0, width}};
    experts.up = {{both, width, width}};
    return;
  }
  experts.gate = expert_rows("ffn_gate", embedding, width, count);
  experts.up = expert_rows("ffn_up", embedding, width, count);
}

Experts LayerBuilder::experts_without_products(Router router, const std::string& norm,
                                               float epsilon, ActivationIndex in,
                                               std::uint32_t width) {
  const std::uint32_t embedding = model_.embedding();
  Experts made;
  made.in = in;
  made.width = width;
  made.router = router;
  made.router.rows = model_.add(
      VectorRow{{{model_.float_rows(name("ffn_gate_inp.weight"), embedding, router.experts)}}});
  if (norm.empty()) return made;
  made.router.gain = vector(norm, embedding);
  made.router.epsilon = epsilon;
  return made;
}

Experts LayerBuilder::experts(Router router, const std::string& norm, float epsilon,
                              ActivationIndex in, std::uint32_t width) {
  Experts made = experts_without_products(router, norm, epsilon, in, width);
  add_gates_and_ups(made, model_.embedding());
  made.down = expert_rows("ffn_down", width, model_.embedding(), router.experts);
  return made;
}

Experts LayerBuilder::ungated_experts(Router router, const std::string& norm, float epsilon,
                                      ActivationIndex in, std::uint32_t width, Gate function) {
  Experts made = experts_without_products(router, norm, epsilon, in, width);
  made.function = function;
  made.up = expert_rows("ffn_up", this->width(in), width, router.experts);
  made.down = expert_rows("ffn_down", width, this->width(in), router.experts);
  add_choice_bias(made.router);
  return made;
}

bool GraphBuilder::some_choice_is_biased() const {
  return std::ranges::any_of(kChoiceBiases,
                             [this](const char* name) { return some_layer_has(name); });
}

void LayerBuilder::add_choice_bias(Router& router) {
  for (const char* const each : kChoiceBiases) {
    const TensorIndex bias = model_.optional_tensor(name(each), router.experts);
    if (bias == kAbsent) continue;
    router.choice_bias = model_.add(VectorRow{{{bias}}});
    return;
  }
}

FeedForwards GraphBuilder::feed_forwards(bool sigmoid) {
  FeedForwards made;
  made.router = scored_router(sigmoid);
  made.dense_layers =
      made.router ? count("leading_dense_block_count", kMaxLayers, 0) : layer_count();
  if (made.dense_layers > 0) made.dense_hidden = input("hidden", feed_forward());
  if (!made.router) return made;
  made.expert_width = count("expert_feed_forward_length", kMaxWidth);
  const std::uint32_t shared = count("expert_shared_count", kMaxExperts, 0);
  std::uint64_t shared_width = shared == 0 ? 0
                                           : count("expert_shared_feed_forward_length", kMaxWidth,
                                                   std::uint64_t{made.expert_width} * shared);
  // The key may be the width of each of several shared experts, which are one matrix.
  const std::string up = "blk." + std::to_string(made.dense_layers) + ".ffn_up_shexp.weight";
  const TensorInfo* const all = file().find_tensor(up);
  if (all != nullptr && all->ne[1] == shared_width * shared) shared_width *= shared;
  if (shared_width > kMaxWidth)
    corrupt("the shared experts' width " + std::to_string(shared_width) + " is too large");
  add_shared_expert(made, static_cast<std::uint32_t>(std::min(shared_width, kMaxWidth)));
  return made;
}

FeedForwards GraphBuilder::feed_forwards_by_tensors() {
  FeedForwards made;
  made.router = scored_router(true);
  if (!made.router) {
    corrupt("metadata key " + key("expert_count") + " is missing");
    made.router = Router{.experts = 1, .used = 1};
  }
  while (made.dense_layers < layers_ &&
         !has_tensor("blk." + std::to_string(made.dense_layers) + ".ffn_gate_inp.weight"))
    ++made.dense_layers;
  if (made.dense_layers > 0) made.dense_hidden = input("hidden", feed_forward());
  made.expert_width = expert_feed_forward(*made.router);
  add_shared_expert(made, count("expert_shared_feed_forward_length", kMaxWidth, made.expert_width));
  return made;
}

DenseFeedForward GraphBuilder::dense_feed_forward(std::uint32_t width) {
  DenseFeedForward made;
  made.hidden = shared_input("hidden", width);
  if (some_layer_has("ffn_gate.bias") || some_layer_has("ffn_up.bias"))
    made.up = shared_floats("up", width);
  return made;
}

void GraphBuilder::add_shared_expert(FeedForwards& made, std::uint32_t width, std::string gate) {
  made.shared_width = width;
  if (width == 0) return;
  made.shared_gate = std::move(gate);
  made.shared_hidden = input("shared expert's hidden", width);
  made.shared = floats("shared expert's result", embedding());
}

void LayerBuilder::feed_forward(const FeedForwards& shape, const std::string& norm, float epsilon,
                                ActivationIndex in, ActivationIndex out) {
  const std::uint32_t embedding = model_.embedding();
  if (index_ < shape.dense_layers) {
    gated_product("ffn_gate", "ffn_up", in, shape.dense_hidden,
                  function_of(shape.functions, index_));
    const MatrixPart down = rows("ffn_down", width(shape.dense_hidden), embedding);
    if (out == kStream)
      product_added(down, shape.dense_hidden, out);
    else
      product({down}, shape.dense_hidden, out);
    return;
  }
  Experts made = experts_beside_shared(shape, norm, epsilon, in);
  made.out = out;
  add_choice_bias(made.router);
  append(made);
}

void LayerBuilder::feed_forward(const DenseFeedForward& shape, ActivationIndex in) {
  const std::uint32_t hidden = width(shape.hidden), embedding = model_.embedding();
  if (shape.up == kAbsent) {
    gated_product("ffn_gate", "ffn_up", in, shape.hidden, Gate::kSilu);
  } else {
    product({rows("ffn_up", width(in), hidden)}, in, shape.up, optional_bias("ffn_up", hidden));
    GatedProduct gate{rows("ffn_gate", width(in), hidden), {}, in, shape.hidden, Gate::kSilu};
    gate.factors = shape.up;
    gate.bias = optional_bias("ffn_gate", hidden);
    append(gate);
  }
  product_added(rows("ffn_down", hidden, embedding), shape.hidden, kStream,
                optional_bias("ffn_down", embedding));
}

Experts LayerBuilder::experts_beside_shared(const FeedForwards& shape, const std::string& norm,
                                            float epsilon, ActivationIndex in) {
  if (shape.shared_width != 0) {
    gated_product("ffn_gate_shexp", "ffn_up_shexp", in, shape.shared_hidden,
                  function_of(shape.functions, index_));
    product({rows("ffn_down_shexp", shape.shared_width, model_.embedding())}, shape.shared_hidden,
            shape.shared);
  }
  Experts made = experts(*shape.router, norm, epsilon, in, shape.expert_width);
  made.function = function_of(shape.expert_functions, index_);
  if (shape.shared_width != 0) share(made, shape);
  return made;
}

void LayerBuilder::add_biases(Experts& experts) {
  const auto biases = [&](const char* part, std::uint64_t rows) {
    return model_.add(VectorRow{{{model_.float_rows(name(std::string(part) + "_exps.bias"), rows,
                                                    experts.router.experts)}}});
  };
  experts.router.bias =
      model_.add(VectorRow{{{model_.tensor(name("ffn_gate_inp.bias"), experts.router.experts)}}});
  experts.gate_bias = biases("ffn_gate", experts.width);
  experts.up_bias = biases("ffn_up", experts.width);
  experts.down_bias = biases("ffn_down", model_.embedding());
}

void LayerBuilder::share(Experts& experts, const FeedForwards& shape) {
  experts.shared = shape.shared;
  if (shape.shared_gate.empty() || !model_.status().ok()) return;
  experts.router.shared_gate = true;
  model_.graph_.vectors[experts.router.rows].parts.push_back(
      {model_.tensor(name(shape.shared_gate + ".weight"), model_.embedding())});
}

}  // namespace bulkhead::model

// Gemma 4 (Gemma team 2026): Gemma 3's norms and gate, with these differences. Layers with a sliding window and other
// layers have heads of two sizes. Some layers use an earlier layer's keys and values. Each layer has a small input of
// its own, made of the token, or experts beside the feed-forward.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// The attention of one kind of layers: those with a window, or the others.
struct Kind {
  std::uint32_t window = 0;
  std::uint32_t size = 0;  // of a head
  RopeIndex rope = kAbsent;
  ActivationIndex qkv = kAbsent, attended = kAbsent;
  KvIndex kv = kAbsent;        // of the last layer of this kind that stored keys and values
  std::uint32_t kv_heads = 0;  // of that layer
};

class Gemma4 {
 public:
  explicit Gemma4(GraphBuilder& model) : model_(model) {
    const std::uint32_t layers = model.layer_count();
    window_ = model.window(0);
    slides_ = model.counts("attention.sliding_window_pattern", 1, 0);
    const bool some_slide = std::find(slides_.begin(), slides_.end(), 1U) != slides_.end();
    if (window_ != 0 && !model.has_key("attention.sliding_window_pattern"))
      model.corrupt(
          "metadata key gemma4.attention.sliding_window_pattern, which says what layers have the "
          "sliding window, is missing");
    if (window_ == 0 && some_slide)
      model.corrupt(
          "metadata key gemma4.attention.sliding_window is missing or 0, but "
          "gemma4.attention.sliding_window_pattern names layers with a window");
    kv_heads_ = model.counts("attention.head_count_kv", kMaxHeads);
    feed_forward_ = model.counts("feed_forward_length", kMaxWidth);
    const std::uint32_t sharing = model.count("attention.shared_kv_layers", kMaxLayers, 0);
    if (sharing >= layers) model.corrupt("no layer stores keys and values");
    storing_ = layers - std::min(sharing, layers - 1);
    make_kinds();
    make_token_inputs();
    normed_ = model.input("normed stream", model.embedding());
    branch_ = model.floats("branch", model.embedding());
    router_ = model.router();
    if (!router_) return;
    router_->renormalise = true;
    expert_width_ = model.count("expert_feed_forward_length", kMaxWidth);
    both_ = model.floats("both feed-forwards", model.embedding());
  }

  void describe() {
    const std::uint32_t width = model_.embedding();
    model_.embed(std::sqrt(static_cast<float>(width)));
    if (token_width_ != 0)
      model_.lookup("per_layer_token_embd.weight", token_inputs_,
                    std::sqrt(static_cast<float>(token_width_) / 2));
    for (std::uint32_t i = 0; i < model_.layer_count(); ++i) {
      LayerBuilder layer = model_.layer(i);
      if (i == 0 && token_width_ != 0) project_embedding(layer);
      add_attention(layer);
      add_feed_forward(layer);
      if (token_width_ != 0) add_token_input(layer);
      const TensorIndex scale = model_.optional_tensor(layer.name("layer_output_scale.weight"), 1);
      if (scale != kAbsent) layer.append(Copy{kStream, kStream, model_.add(VectorRow{{{scale}}})});
    }
    model_.output(epsilon_);
    model_.cap_logits("final_logit_softcapping");
  }

 private:
  HeadShape heads_of(std::uint32_t layer, const Kind& kind) const {
    return {heads_, kv_heads_[layer], kind.size};
  }
  Kind& kind_of(std::uint32_t layer) { return slides_[layer] != 0 ? sliding_ : full_; }

  std::uint32_t head_size(const std::string& ending, std::uint64_t fallback) {
    const std::uint32_t size =
        model_.count("attention.key_length" + ending, kMaxHeadSize, fallback);
    if (model_.count("attention.value_length" + ending, kMaxHeadSize, fallback) != size)
      model_.refuse("attention.key_length" + ending + " and attention.value_length" + ending +
                    " differ; only models with equal ones are supported");
    if (size == 0)
      model_.corrupt("metadata key gemma4.attention.key_length is missing, and embedding_length " +
                     std::to_string(model_.embedding()) + " is less than the " +
                     std::to_string(heads_) + " attention heads");
    return size;
  }

  void make_kinds() {
    heads_ = model_.count("attention.head_count", kMaxHeads);
    for (const std::uint32_t each : kv_heads_) {
      if (heads_ % each != 0)
        model_.corrupt(std::to_string(heads_) + " attention heads are not a multiple of " +
                       std::to_string(each) + " key-value heads");
    }
    full_.size = head_size("", model_.embedding() / heads_);
    sliding_.size = head_size("_swa", full_.size);
    sliding_.window = window_;
    full_.rope = model_.rope({heads_, heads_, full_.size}, RopePairing::kHalves);
    sliding_.rope = model_.window_rope({heads_, heads_, sliding_.size}, RopePairing::kHalves);
    const std::uint32_t most = *std::max_element(kv_heads_.begin(), kv_heads_.end());
    for (Kind* const kind : {&full_, &sliding_}) {
      const HeadShape widest{heads_, most, kind->size};
      kind->qkv = model_.floats("q, k, v", widest.qkv_width());
      kind->attended = model_.input("attention result", widest.query_width());
    }
  }

  void make_token_inputs() {
    token_width_ = model_.count("embedding_length_per_layer_input", kMaxWidth, 0);
    if (token_width_ == 0) return;
    const std::uint64_t all = std::uint64_t{token_width_} * model_.layer_count();
    token_inputs_ = model_.floats("token's inputs", all);
    projected_ = model_.floats("projected embedding", all);
    stream_input_ = model_.input("stream as input", model_.embedding());
    token_hidden_ = model_.input("hidden of the token's input", token_width_);
  }

  // A layer's input is the mean of a row of the token and of a normed projection of its embedding. The projection's
  // scale 1 / sqrt(width) is part of its norm: it changes what epsilon means.
  void project_embedding(LayerBuilder& layer) {
    const std::uint64_t width = model_.embedding(),
                        all = std::uint64_t{token_width_} * model_.layer_count();
    layer.copy(kStream, stream_input_);
    layer.product({{model_.tensor("per_layer_model_proj.weight", width, all), 0, all}},
                  stream_input_, projected_);
    token_gain_ = model_.add(
        VectorRow{{{model_.tensor("per_layer_proj_norm.weight", token_width_)}}, std::sqrt(0.5F)});
  }

  void add_attention(LayerBuilder& layer) {
    const std::uint32_t i = layer.index(), width = model_.embedding();
    Kind& kind = kind_of(i);
    const HeadShape heads = heads_of(i, kind);
    const bool stores = i < storing_;
    layer.norm(kStream, "attn_norm", normed_, epsilon_);
    std::vector<MatrixPart> parts{layer.rotating_rows("attn_q", width, heads.query_width())};
    if (stores) {
      parts.push_back(layer.rotating_rows("attn_k", width, heads.kv_width()));
      // If there is no matrix of values, values are the keys before norm and rotation.
      const TensorIndex v =
          model_.optional_tensor(layer.name("attn_v.weight"), width, heads.kv_width());
      parts.push_back(v != kAbsent ? MatrixPart{v, 0, heads.kv_width()} : parts.back());
      parts.back().rotates = false;
    } else {
      check_shared_keys(layer, kind, heads);
    }
    layer.product(std::move(parts), normed_, kind.qkv);
    Rotate rotate{.qkv = kind.qkv, .heads = heads, .epsilon = epsilon_, .rope = kind.rope};
    rotate.q_gain = layer.vector("attn_q_norm", kind.size);
    rotate.k_gain = stores ? layer.vector("attn_k_norm", kind.size) : rotate.q_gain;
    rotate.kv = stores ? kAbsent : kind.kv;
    rotate.scale = 1;
    rotate.stores_nothing = !stores;
    rotate.norms_values = stores;
    kind.kv = layer.attention(rotate, kind.attended, {.window = kind.window});
    kind.kv_heads = heads.kv_heads;
    layer.product({layer.rows("attn_output", heads.query_width(), width)}, kind.attended, branch_);
    layer.norm_added(branch_, "post_attention_norm", kStream, epsilon_);
  }

  // The layer uses the keys and values of an earlier layer of its kind. Google's first checkpoints,
  // and files made from them, have matrices for its own keys and values all the same; no program
  // computes with them.
  void check_shared_keys(const LayerBuilder& layer, const Kind& kind, const HeadShape& heads) {
    const std::string number = std::to_string(layer.index());
    for (const char* const unused : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"})
      model_.leave_unused(layer.name(unused));
    if (kind.kv == kAbsent) {
      model_.corrupt("layer " + number +
                     " has no keys and values, nor has an earlier layer of its kind");
    } else if (heads.kv_heads != kind.kv_heads) {
      model_.corrupt("layer " + number + " has " + std::to_string(heads.kv_heads) +
                     " key-value heads, but uses those of a layer with " +
                     std::to_string(kind.kv_heads));
    }
  }

  void add_feed_forward(LayerBuilder& layer) {
    const std::uint32_t hidden_width = feed_forward_[layer.index()];
    const ActivationIndex hidden = model_.shared_input("hidden", hidden_width);
    layer.norm(kStream, "ffn_norm", normed_, epsilon_);
    layer.gated_product("ffn_gate", "ffn_up", normed_, hidden, Gate::kGelu);
    layer.product({layer.rows("ffn_down", hidden_width, model_.embedding())}, hidden, branch_);
    if (!router_) return layer.norm_added(branch_, "post_ffw_norm", kStream, epsilon_);
    layer.norm(branch_, "post_ffw_norm_1", both_, epsilon_);
    add_experts(layer);
    layer.norm_added(branch_, "post_ffw_norm_2", both_, epsilon_);
    layer.norm_added(both_, "post_ffw_norm", kStream, epsilon_);
  }

  // The router's input is the stream's norm times a gain of its own, divided by the root of the width.
  void add_experts(LayerBuilder& layer) {
    const std::uint32_t width = model_.embedding(), hidden = expert_width_;
    const std::uint32_t count = router_->experts;
    layer.norm(kStream, "pre_ffw_norm_2", normed_, epsilon_);
    Experts experts;
    experts.router = *router_;
    experts.router.rows = model_.add(
        VectorRow{{{model_.float_rows(layer.name("ffn_gate_inp.weight"), width, count)}}});
    experts.router.gain =
        model_.add(VectorRow{{{model_.tensor(layer.name("ffn_gate_inp.scale"), width)}},
                             1 / std::sqrt(static_cast<float>(width))});
    experts.router.epsilon = epsilon_;
    const TensorIndex scales = model_.optional_tensor(layer.name("ffn_down_exps.scale"), count);
    if (scales != kAbsent) experts.router.expert_scales = model_.add(VectorRow{{{scales}}});
    experts.width = hidden;
    layer.add_gates_and_ups(experts, width);
    experts.down = {
        {model_.tensor(layer.name("ffn_down_exps.weight"), hidden, width, count), 0, width}};
    experts.in = normed_;
    experts.out = branch_;
    experts.function = Gate::kGelu;
    layer.append(std::move(experts));
  }

  void add_token_input(LayerBuilder& layer) {
    const std::uint32_t width = model_.embedding(), first = layer.index() * token_width_;
    const float epsilon = epsilon_ * static_cast<float>(width);
    layer.append(Norm{projected_, token_inputs_, token_gain_, epsilon, first, token_width_, true});
    layer.copy(kStream, stream_input_);
    GatedProduct gated;
    gated.gate = layer.rows("inp_gate", width, token_width_);
    gated.in = stream_input_;
    gated.out = token_hidden_;
    gated.function = Gate::kGelu;
    gated.factors = token_inputs_;
    gated.first_factor = first;
    layer.append(gated);
    layer.product({layer.rows("proj", token_width_, width)}, token_hidden_, branch_);
    layer.norm_added(branch_, "post_norm", kStream, epsilon_);
  }

  GraphBuilder& model_;
  const float epsilon_ = model_.rms_epsilon();
  std::uint32_t heads_ = 1, window_ = 0, storing_ = 0;
  std::vector<std::uint32_t> slides_, kv_heads_, feed_forward_;
  Kind full_, sliding_;
  std::uint32_t token_width_ = 0;  // of a layer's own input; 0: layers have none
  ActivationIndex token_inputs_ = kAbsent, projected_ = kAbsent, stream_input_ = kAbsent,
                  token_hidden_ = kAbsent, normed_ = kAbsent, branch_ = kAbsent;
  VectorIndex token_gain_ = kAbsent;
  std::optional<Router> router_;
  std::uint32_t expert_width_ = 0;
  ActivationIndex both_ = kAbsent;  // holds the sum of the feed-forward's result and the experts'
};

void describe_gemma4(GraphBuilder& model) {
  Gemma4(model).describe();
}

}  // namespace

BULKHEAD_ARCHITECTURE(gemma4, "gemma4", describe_gemma4);

}  // namespace bulkhead::model

// Step 3.5 Flash and Step 3.7 Flash (StepFun 2026, huggingface.co/stepfun-ai/Step-3.5-Flash). Most layers see a sliding
// window. Their heads are more, and turn as a whole and with other frequencies; in the other layers half of each head
// turns. Each head of attention's result has a gate. Behind leading dense layers there are experts, which a router
// chooses by sigmoids plus biases, and one more expert that every token takes. The functions of the last layers'
// experts have limits.
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// Returns the functions of the layers' gates, whose limits the key has. 0: there is none.
std::vector<Gate> step35_functions(GraphBuilder& model, const std::string& key) {
  std::vector<Gate> made;
  for (const double limit : model.numbers_of_layers(key, 0)) {
    made.push_back(limit == 7 ? Gate::kSiluTo7 : limit == 16 ? Gate::kSiluTo16 : Gate::kSilu);
    if (made.back() == Gate::kSilu && limit != 0)
      model.refuse("metadata key " + key + " has a limit that is not 0, 7 or 16");
  }
  return made;
}

struct Step35 {
  std::vector<HeadShape> heads;  // of each layer
  std::vector<bool> windowed;
  std::uint32_t window = 0;
  float epsilon = 0;  // of all norms
  RopeIndex rope = kAbsent, window_rope = kAbsent;
  FeedForwards feed_forwards;
  ActivationIndex normed = kAbsent, qkv = kAbsent, gates = kAbsent;
};

Step35 read_step35(GraphBuilder& model) {
  Step35 made;
  made.heads = model.heads_of_layers();
  for (const HeadShape& each : made.heads) {
    if (each.kv_heads == 0)
      model.corrupt("metadata key step35.attention.head_count_kv is 0 for a layer");
  }
  const HeadShape widest = widest_of(made.heads);
  made.window = model.window();
  if (!model.has_key("attention.sliding_window_pattern"))
    model.corrupt(
        "metadata key step35.attention.sliding_window_pattern, which says what layers have the "
        "sliding window, is missing");
  made.windowed = model.windowed_layers(1);
  made.epsilon = model.rms_epsilon();
  made.rope = model.half_rope(widest, RopePairing::kHalves);
  made.window_rope = model.window_rope(widest, RopePairing::kHalves, model.rope_base());
  made.feed_forwards = model.feed_forwards_by_tensors();
  if (model.count("moe_every_n_layers", kMaxLayers, 1) != 1)
    model.refuse(
        "has dense layers between those with experts (step35.moe_every_n_layers is not 1)");
  made.feed_forwards.expert_functions = step35_functions(model, "step35.swiglu_clamp_exp");
  made.feed_forwards.functions = step35_functions(model, "step35.swiglu_clamp_shexp");
  made.normed = model.input("normed stream", model.embedding());
  made.qkv = model.floats("q, k, v", widest.qkv_width());
  if (model.some_layer_has("attn_gate.weight")) made.gates = model.floats("gates", widest.heads);
  return made;
}

void attend_with_gates(GraphBuilder& model, LayerBuilder& layer, const Step35& shape) {
  const std::uint32_t i = layer.index(), width = model.embedding();
  const HeadShape& heads = shape.heads[i];
  const ActivationIndex attended = model.shared_input("attention result", heads.query_width());
  layer.norm(kStream, "attn_norm", shape.normed, shape.epsilon);
  ActivationIndex plain = attended;
  if (shape.gates != kAbsent) {
    plain = model.shared_floats("attention without gates", heads.query_width());
    layer.product({layer.rows("attn_gate", width, heads.heads)}, shape.normed, shape.gates);
  }
  layer.product(layer.qkv(heads, width), shape.normed, shape.qkv);
  Rotate rotate{.qkv = shape.qkv, .heads = heads, .epsilon = shape.epsilon};
  rotate.rope = shape.windowed[i] ? shape.window_rope : shape.rope;
  layer.add_head_gains(rotate, heads.size);
  layer.attention(rotate, plain, {.window = shape.windowed[i] ? shape.window : 0});
  if (plain != attended) layer.append(HeadGates{shape.gates, plain, attended, heads.size});
  layer.product_added(layer.rows("attn_output", heads.query_width(), width), attended, kStream);
}

void describe_step35(GraphBuilder& model) {
  const Step35 shape = read_step35(model);

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    attend_with_gates(model, layer, shape);
    layer.norm(kStream, "ffn_norm", shape.normed, shape.epsilon);
    layer.feed_forward(shape.feed_forwards, "ffn_norm", shape.epsilon, shape.normed);
  }
  model.output(shape.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(step35, "step35", describe_step35);

}  // namespace bulkhead::model

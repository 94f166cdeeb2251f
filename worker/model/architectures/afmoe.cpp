// Trinity (Arcee AI 2025, huggingface.co/arcee-ai/Trinity-Mini): a norm before and behind each branch, scaled
// embeddings, norms of q and k, and gates that multiply attention's result. Three of four layers see a sliding window,
// and only the heads of these layers turn by position. The leading layers have dense feed-forwards, the others experts,
// which a router chooses by sigmoids plus biases, and one more expert that every token takes.
#include <cmath>
#include <utility>
#include <vector>

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {
namespace {

// The last of so many layers sees all positions, and its heads don't turn.
constexpr std::uint32_t kAfmoePeriod = 4;

struct AfmoeShape {
  HeadShape heads;
  float epsilon = 0;  // of all norms
  RopeIndex rope = kAbsent;
  std::uint32_t window = 0;
  std::vector<bool> windowed;
  FeedForwards feed_forwards;
  ActivationIndex normed = kAbsent, qkvg = kAbsent, plain = kAbsent, attended = kAbsent,
                  branch = kAbsent;
};

AfmoeShape read_afmoe(GraphBuilder& model) {
  AfmoeShape made;
  made.heads = model.heads();
  made.epsilon = model.rms_epsilon();
  made.rope = model.rope(made.heads, RopePairing::kHalves);
  made.window = model.window(0);
  made.windowed = model.windowed_layers(kAfmoePeriod);
  made.feed_forwards = model.feed_forwards(true);
  made.normed = model.input("normed stream", model.embedding());
  made.qkvg = model.floats("q, k, v, gates", LayerBuilder::gated_qkv_width(made.heads));
  made.plain = model.floats("attention without gates", made.heads.query_width());
  made.attended = model.input("attention result", made.heads.query_width());
  made.branch = model.floats("branch", model.embedding());
  return made;
}

void attend_gated(LayerBuilder& layer, const AfmoeShape& shape, std::uint32_t width) {
  const HeadShape& heads = shape.heads;
  const bool turns = (layer.index() + 1) % kAfmoePeriod != 0;
  layer.norm(kStream, "attn_norm", shape.normed, shape.epsilon);
  std::vector<MatrixPart> parts = layer.qkv(heads, width);
  parts.push_back(layer.rows("attn_gate", width, heads.query_width()));
  layer.product(std::move(parts), shape.normed, shape.qkvg);
  layer.attention({.qkv = shape.qkvg,
                   .heads = heads,
                   .q_gain = layer.vector("attn_q_norm", heads.size),
                   .k_gain = layer.vector("attn_k_norm", heads.size),
                   .epsilon = shape.epsilon,
                   .rope = turns ? shape.rope : kAbsent},
                  shape.plain, {.window = shape.windowed[layer.index()] ? shape.window : 0});
  layer.append(Gated{shape.qkvg, shape.plain, shape.attended, heads.qkv_width(), Gate::kSigmoid});
  layer.product({layer.rows("attn_output", heads.query_width(), width)}, shape.attended,
                shape.branch);
  layer.norm_added(shape.branch, "post_attention_norm", kStream, shape.epsilon);
}

void describe_afmoe(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  const AfmoeShape shape = read_afmoe(model);

  model.embed(std::sqrt(static_cast<float>(width)));
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    attend_gated(layer, shape, width);
    layer.norm(kStream, "ffn_norm", shape.normed, shape.epsilon);
    layer.feed_forward(shape.feed_forwards, "ffn_norm", shape.epsilon, shape.normed, shape.branch);
    layer.norm_added(shape.branch, "post_ffw_norm", kStream, shape.epsilon);
  }
  model.output(shape.epsilon);
}

}  // namespace

BULKHEAD_ARCHITECTURE(afmoe, "afmoe", describe_afmoe);

}  // namespace bulkhead::model

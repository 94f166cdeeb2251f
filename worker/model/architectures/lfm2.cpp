// LFM2 and LFM2.5 (Liquid AI 2025, arXiv 2511.23404): most layers have a gated short convolution in place of attention;
// the others have Qwen 3's attention. LFM2's mixtures of experts (lfm2moe.cpp) have leading dense layers, then experts,
// which a router chooses by sigmoids plus biases, and whose weights add up to one.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

// The convolutions' shape, which all layers share.
struct ShortConvolutions {
  std::uint32_t taps = 0;
  ActivationIndex projected = kAbsent, convolved = kAbsent;
};

ShortConvolutions short_convolutions(GraphBuilder& model) {
  ShortConvolutions made;
  made.taps = model.count("shortconv.l_cache", kMaxTaps);
  if (made.taps < 2)
    model.refuse("has a convolution over a single position, which is not supported");
  made.projected = model.floats("convolution's b, c, x", 3ULL * model.embedding());
  made.convolved = model.input("convolution's result", model.embedding());
  return made;
}

void convolve(GraphBuilder& model, LayerBuilder& layer, const ShortConvolutions& shape,
              const GroupedAttention& attention) {
  const std::uint32_t width = model.embedding();
  layer.norm(kStream, "attn_norm", attention.normed, attention.epsilon);
  layer.product({layer.rows("shortconv.in_proj", width, 3ULL * width)}, attention.normed,
                shape.projected);
  const TensorIndex taps = model.float_rows(layer.name("shortconv.conv.weight"), shape.taps, width);
  ShortConvolution made;
  made.in = shape.projected;
  made.out = shape.convolved;
  made.taps = shape.taps;
  made.weights = model.add(VectorRow{{{taps}}});
  made.state = model.add(StateStore{std::uint64_t{shape.taps - 1} * width});
  layer.append(made);
  layer.product_added(layer.rows("shortconv.out_proj", width, width), shape.convolved, kStream);
}

}  // namespace

void describe_lfm2(GraphBuilder& model) {
  std::vector<bool> attends;
  const HeadShape heads = model.heads_of_some(attends);
  const GroupedAttention attention = model.grouped_attention(heads, RopePairing::kHalves);
  const ShortConvolutions convolutions = short_convolutions(model);
  FeedForwards feed_forwards = model.feed_forwards(true);
  if (feed_forwards.router) feed_forwards.router->renormalise = true;

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    if (attends[i]) {
      layer.project(attention);
      layer.attend(attention, {.q_gain = layer.vector("attn_q_norm", heads.size),
                               .k_gain = layer.vector("attn_k_norm", heads.size)});
    } else {
      convolve(model, layer, convolutions, attention);
    }

    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.feed_forward(feed_forwards, "ffn_norm", attention.epsilon, attention.normed);
  }
  // llama.cpp's converter gives the last norm the name of BERT's first one; Ollama's does not.
  model.output(attention.epsilon, 1,
               model.has_tensor("output_norm.weight") ? "output_norm" : "token_embd_norm");
}

BULKHEAD_ARCHITECTURE(lfm2, "lfm2", describe_lfm2);

}  // namespace bulkhead::model

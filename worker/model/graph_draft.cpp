// The block behind a model's layers that drafts tokens: multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section
// 2.2). For a token and the hidden state from which the model chose it, the block computes logits of the token after
// it: the norms of the token's embedding and of the hidden state, one after the other, are multiplied by a matrix, and
// the product goes through one more layer of the architecture. Files name the block's tensors blk.N.nextn.*; tensors of
// the model stand for those that they lack.
//
// The hidden state is what the model multiplies by its output matrix, after the last norm. To guess further tokens, the
// block continues from its own hidden state after its last norm.
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

void GraphBuilder::choose_block(std::uint32_t drafting) {
  if (drafting == 0)
    refuse("has no block that drafts tokens (" + key("nextn_predict_layers") + ")");
  if (!architecture_.drafts)
    refuse("has a block that drafts tokens, which is not supported for architecture " + prefix_);
  first_layer_ = layers_++;
}

std::string GraphBuilder::drafting_name(const std::string& name, const std::string& other) const {
  if (!drafts()) return other;
  const std::string own = "blk." + std::to_string(first_layer_) + ".nextn." + name + ".weight";
  return has_tensor(own) ? own : other;
}

// The stream begins with the hidden state; the product takes its place.
void GraphBuilder::join_hidden_states(const std::string& embedding, float scale) {
  const std::uint32_t width = graph_.embedding;
  const ActivationIndex embedded = floats("embedded token", width),
                        pair = floats("token and hidden state", 2ULL * width),
                        joined = input("input of the block", 2ULL * width);
  graph_.start = StreamStart::kHidden;
  lookup(embedding, embedded, scale);
  LayerBuilder block = layer(first_layer_);
  const auto norm = [&](ActivationIndex in, const std::string& gain, std::uint32_t shift) {
    Norm made;
    made.in = in;
    made.out = pair;
    made.gain = block.vector(gain, width);
    made.epsilon = rms_epsilon();
    made.width = width;
    made.shift = shift;
    block.append(made);
  };
  norm(embedded, "nextn.enorm", 0);
  norm(kStream, "nextn.hnorm", width);
  block.copy(pair, joined);
  block.product({block.rows("nextn.eh_proj", 2ULL * width, width)}, joined, kStream);
}

}  // namespace bulkhead::model

// What BERT and its descendants share: a description of their graph, and how an encoder pools.
#pragma once

#include <cstdint>

#include "worker/model/graph.hpp"
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

struct EncoderShape {
  RopeIndex rope = kAbsent;  // kAbsent: the file has a table of positions, position_embd
  Gate function = Gate::kGelu;
  bool gated = false;  // the feed-forward has gates and no biases
};

// Describes a whole encoder (Devlin et al. 2018, arXiv 1810.04805). The stream begins with the sum of the embeddings
// of token, type 0 and position, normalised. Each branch is added to the stream, which is then normalised in place.
// Attention sees the whole text. The text's embedding comes out as the hidden state of its last column.
void describe_encoder(GraphBuilder& model, const EncoderShape& shape);

// What stands for a text: its tokens' mean, or its first or last token.
enum class TextPooling : std::uint8_t { kMean, kFirst, kLast };
// Changes what the file says.
void set_pooling(ModelGraph& encoder, TextPooling pooling);

}  // namespace bulkhead::model

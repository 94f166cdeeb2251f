// What encoders share: how a text is pooled, and a description of the graph of BERT and its descendants.
#pragma once

#include <cstdint>
#include <string>

#include "worker/model/graph.hpp"
#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

struct EncoderShape {
  RopeIndex rope = kAbsent;  // kAbsent: the file has a table of positions, position_embd
  Gate function = Gate::kGelu;
  bool gated = false;  // the feed-forward has gates and no biases
  // Layers 1, 1 + expert_period, ... have experts without gates; 0: no layer has.
  std::uint32_t expert_period = 0;
};

// Describes a whole encoder (Devlin et al. 2018, arXiv 1810.04805). The stream begins with the sum of the embeddings
// of token, type 0 and position, normalised. Each branch is added to the stream, which is then normalised in place.
// Attention sees the whole text. The text's embedding comes out as the hidden state of its last column.
void describe_encoder(GraphBuilder& model, const EncoderShape& shape);

// The values of the key pooling_type in GGUF files, as llama.cpp numbers them. kRank: a head for ranking reads what
// classifier.pooling_type names.
enum class PoolingType : std::uint32_t { kNone = 0, kMean = 1, kFirst = 2, kLast = 3, kRank = 4 };

// What stands for a text: its tokens' mean, or its first or last token.
enum class TextPooling : std::uint8_t { kMean, kFirst, kLast };
// Returns what the file says (pooling_type), and refuses a file that says that attention is causal. `of_rankers` is
// what a head for ranking reads if its file doesn't say it (classifier.pooling_type).
TextPooling read_pooling(GraphBuilder& model, TextPooling of_rankers = TextPooling::kFirst);
// Returns how many positions a column sees on each side in layers with a window, its own included; 0: all. The file has
// the window of both sides together.
std::uint32_t window_of_each_side(GraphBuilder& model);
// Returns a norm that works on the stream in place. Its gain is the tensor NAME.weight.
Norm norm_of_stream(GraphBuilder& model, const std::string& name, float epsilon);
// Ends the description of an encoder that has norms before its branches: with the RMS norm of the
// stream, whose gain is the tensor NAME.weight, and with the pooling that the file names.
void end_encoder(GraphBuilder& model, float epsilon, const std::string& name = "output_norm");
// Brings the text's embedding from all columns of the stream, which the model's last norm has made, into the last
// column. Call it when the last layer is complete.
void pool_text(GraphBuilder& model, TextPooling pooling);
// Changes how a whole encoder pools.
void set_pooling(ModelGraph& encoder, TextPooling pooling);

}  // namespace bulkhead::model

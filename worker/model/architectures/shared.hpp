// Descriptions that several architectures share, each in the file of the first of them.
#pragma once

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

// Describes a model from the embedding to the last layer, and returns the epsilon of its norms. `both_ways`: attention
// sees the positions behind a column's own, too.
float describe_gemma3_layers(GraphBuilder& model, bool both_ways);
void describe_deepseek2(GraphBuilder& model);
void describe_lfm2(GraphBuilder& model);
void describe_llama(GraphBuilder& model);
// `both_ways`: attention sees the positions behind a column's own, too, and a text's embedding is the result.
void describe_llama_with(GraphBuilder& model, bool both_ways);
// The factors of Llama's graph in Granite and MiniCPM: of the embedding, of each branch and of scores (0: as usual),
// and what divides the logits.
struct LlamaScales {
  double embedding = 1, residual = 1, scores = 0, logit_divisor = 1;
};
void describe_scaled_llama(GraphBuilder& model, const HeadShape& heads, RopeIndex rope,
                           const LlamaScales& scales);
void describe_nemotron_h(GraphBuilder& model);
void describe_qwen2(GraphBuilder& model);
void describe_qwen3(GraphBuilder& model);
void describe_qwen3moe(GraphBuilder& model);
void describe_cohere2(GraphBuilder& model);
void describe_dots1(GraphBuilder& model);
void describe_dots1_with(GraphBuilder& model, const FeedForwards& feed_forwards);

}  // namespace bulkhead::model

// Descriptions that several architectures share, each in the file of the first of them.
#pragma once

#include "worker/model/graph_builder.hpp"

namespace bulkhead::model {

void describe_lfm2(GraphBuilder& model);
void describe_llama(GraphBuilder& model);
void describe_nemotron_h(GraphBuilder& model);
void describe_qwen2(GraphBuilder& model);
void describe_qwen3(GraphBuilder& model);
void describe_qwen3moe(GraphBuilder& model);
void describe_cohere2(GraphBuilder& model);
void describe_dots1(GraphBuilder& model);

}  // namespace bulkhead::model

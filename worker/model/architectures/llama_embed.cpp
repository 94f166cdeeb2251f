// llama-embed-nemotron (NVIDIA 2025, huggingface.co/nvidia/llama-embed-nemotron-8b): the graph of llama.cpp, whose
// attention sees a text in both directions. Its files are for embeddings alone.
#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {

BULKHEAD_ARCHITECTURE(llama_embed, "llama-embed",
                      [](GraphBuilder& model) { describe_llama_with(model, true); });

}  // namespace bulkhead::model

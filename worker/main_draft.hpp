// Loads a draft model (engine/draft_model.hpp) beside a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/base/error.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::worker {

// Says whether both files have the same vocabulary: as many tokens, and the same ones. kUnsupported names both files
// and what differs.
Status same_vocabulary(const model::GgufFile& model, const model::ModelGraph& graph,
                       const model::GgufFile& draft, const model::ModelGraph& draft_graph);

// What a draft model's KV cache holds, from the context of the model that it guesses for.
struct DraftCache {
  std::uint32_t context = 0;  // positions of a sequence
  std::uint32_t megabytes = 0;
};
// `asked_context`: that the settings ask for; 0: the models' own, lowered to what a part of `free_bytes` holds. A cache
// holds up to four contexts, and one at least.
DraftCache draft_cache(const forward::KvNeed& need, std::uint32_t asked_context,
                       std::uint32_t model_context, std::uint32_t draft_context,
                       std::uint64_t free_bytes);

// Loads the draft model at `path` for the model of `file`. `options` are those of that model, before it is loaded: the
// draft model's memory is taken first, so that the model's KV pages get what is left. kUnsupported: it can't guess for
// this model. kResourceExhausted: it does not fit.
Result<std::unique_ptr<forward::Transformer>> load_draft(const std::string& path,
                                                         gpu::Device& device,
                                                         const model::GgufFile& file,
                                                         const model::ModelGraph& graph,
                                                         forward::TransformerOptions options);

}  // namespace bulkhead::worker

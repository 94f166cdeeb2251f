// Loads a draft model (engine/draft_model.hpp), or the model's own block that drafts tokens, beside a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/base/error.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::worker {

// The capacity of a draft model's KV cache, derived from the context of the model for which it guesses.
struct DraftCache {
  std::uint32_t context = 0;  // positions that a sequence may have
  std::uint32_t megabytes = 0;
};
// `asked_context` is the setting; 0: the models' own context, reduced to what a part of `free_bytes` can hold. A
// cache holds up to four contexts, and at least one.
DraftCache draft_cache(const forward::KvNeed& need, std::uint32_t asked_context,
                       std::uint32_t model_context, std::uint32_t draft_context,
                       std::uint64_t free_bytes);

// Loads the draft model at `path` for the model of `file`; config::kOwnBlock in place of a path means that model's own
// block. `options` are those of that model, before it is loaded: the draft model gets its memory first, so that the
// model's KV pages get what is left. kUnsupported: it can't guess for this model. kResourceExhausted: it does not fit.
Result<std::unique_ptr<forward::Transformer>> load_draft(const std::string& path,
                                                         gpu::Device& device,
                                                         const model::GgufFile& file,
                                                         const model::ModelGraph& graph,
                                                         forward::TransformerOptions options);

}  // namespace bulkhead::worker

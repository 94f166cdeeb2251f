#include "worker/main_draft.hpp"

#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "config/draft_file.hpp"
#include "gpu/kernels/kv_layout.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/shared_vocabulary.hpp"

namespace bulkhead::worker {
namespace {

// A step has at most this many drafts, so no more sequences can have guesses.
constexpr std::uint32_t kSequences = engine::kMostDrafts + 1;
constexpr std::uint32_t kReadColumns = 256;
constexpr std::uint64_t kContexts = 4;
// The most of the free memory that the draft model takes if the settings name no context.
constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30, kShare = 8;

Status same_vocabulary(const model::GgufFile& file, const model::GgufFile& draft) {
  const Status shared = model::check_shared_vocabulary(file, draft);
  if (shared.ok() || shared.error().code() != ErrorCode::kUnsupported) return shared;
  return Error(ErrorCode::kUnsupported,
               fmt::format("models[].draft: {} can't guess for {}, because its vocabulary is "
                           "another one: {}; name a model of the same family, or leave out "
                           "models[].draft",
                           draft.name(), file.name(), shared.error().message()));
}

struct Draft {
  std::unique_ptr<model::GgufFile> own;  // null: the block is in the model's file
  model::ModelGraph graph;
  std::string name;
};

Result<Draft> open_draft(const std::string& path, const model::GgufFile& file) {
  Draft draft;
  if (path == config::kOwnBlock) {
    auto block = model::read_drafting_block(file);
    if (!block.ok())
      return Error(block.error().code(),
                   "models[].draft: mtp: " + block.error().message() +
                       "; leave out models[].draft, or name the GGUF file of a small model");
    draft.graph = *std::move(block);
    draft.name = "the block of " + file.name() + " that drafts tokens";
    return draft;
  }
  BULKHEAD_TRY(draft.own, model::GgufFile::open(path));
  BULKHEAD_TRY(draft.graph, model::read_model(*draft.own));
  BULKHEAD_RETURN_IF_ERROR(same_vocabulary(file, *draft.own));
  draft.name = "the draft model " + path;
  return draft;
}

}  // namespace

DraftCache draft_cache(const forward::KvNeed& need, std::uint32_t asked_context,
                       std::uint32_t model_context, std::uint32_t draft_context,
                       std::uint64_t free_bytes) {
  constexpr std::uint64_t kPage = gpu::kernels::kPageTokens;
  const std::uint64_t budget = std::min(kMostBytes, free_bytes / kShare);
  DraftCache cache;
  cache.context = std::min(asked_context != 0 ? asked_context : model_context, draft_context);
  const auto bytes_of = [&](std::uint64_t positions) {
    return std::max<std::uint64_t>(need.bytes(positions), 1);
  };
  if (asked_context == 0) {
    while (cache.context > kPage && bytes_of(cache.context) > budget)
      cache.context /= 2;
  }
  const std::uint64_t bytes = bytes_of(cache.context);
  const std::uint64_t contexts = std::clamp<std::uint64_t>(budget / bytes, 1, kContexts);
  // One page of each kind is for the warm-up; steps write some window pages before others are released.
  const std::uint64_t more =
      need.per_token * 2 * kPage + need.per_window_token * (kReadColumns + 2 * kPage);
  cache.megabytes = static_cast<std::uint32_t>(((contexts * bytes + more) >> 20) + 1);
  return cache;
}

Result<std::unique_ptr<forward::Transformer>> load_draft(const std::string& path,
                                                         gpu::Device& device,
                                                         const model::GgufFile& file,
                                                         const model::ModelGraph& graph,
                                                         forward::TransformerOptions options) {
  BULKHEAD_TRY(const Draft draft, open_draft(path, file));
  const model::ModelGraph& draft_graph = draft.graph;
  config::EngineSettings& engine = options.engine;
  const std::uint64_t free = device.free_memory_bytes();
  const DraftCache cache =
      draft_cache(forward::kv_need(draft_graph, forward::kv_format(engine.kv_type)),
                  options.context, graph.context, draft_graph.context, free);
  engine.max_batch = kSequences;
  engine.prefill_chunk = engine.prefill_chunk_alone = kReadColumns;
  engine.speculation = config::Speculation::kOff;
  // The draft model has no use for states that are saved beside pages (draft_model.hpp).
  engine.prefix_cache = draft_graph.states.empty();
  engine.kv_cache_mb = cache.megabytes;
  engine.kv_cache_max_mb = 0;
  options.context = cache.context;
  options.exportable = false;
  options.predecessor = nullptr;
  if (options.progress) {
    options.progress = [report = std::move(options.progress)](
                           const std::string& stage, std::uint64_t done, std::uint64_t total) {
      report("the draft model's " + stage, done, total);
    };
  }
  auto executor =
      forward::make_transformer(device, draft.own ? *draft.own : file, draft_graph, options);
  if (executor.ok()) {
    spdlog::info("{} guesses tokens, in up to {} tokens of context", draft.name, cache.context);
    return executor;
  }
  if (executor.error().code() != ErrorCode::kResourceExhausted)
    return executor.error().within(draft.name);
  spdlog::info("{}: {}", draft.name, executor.error().message());
  return Error(
      ErrorCode::kResourceExhausted,
      fmt::format("{} and its KV cache of {} MiB for a context of {} tokens do not fit: {} MiB are "
                  "free on {}; set a lower models[].context, or leave out models[].draft",
                  draft.name, cache.megabytes, cache.context, free >> 20, device.info().name));
}

}  // namespace bulkhead::worker

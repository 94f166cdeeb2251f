#include "worker/forward/wanted_pages.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// When a process dies on a GPU, most of the time goes into unmapping and mapping memory (22 ms for each GiB, NVIDIA
// H200). So a cache whose size the settings leave open takes no more than this, or than kFullContexts contexts need
// if that is more.
constexpr std::uint64_t kMostUnasked = std::uint64_t{8} << 30;
constexpr std::uint64_t kFullContexts = 4;

}  // namespace

std::uint64_t Wanted::most_unasked() const {
  return std::max(kMostUnasked, of_pages(kFullContexts * full));
}

Wanted wanted_pages(const KvNeed& kv, std::uint32_t context, std::uint32_t max_batch,
                    std::uint32_t columns_ahead) {
  Wanted wanted{kv.per_token * k::kPageTokens, kv.per_window_token * k::kPageTokens,
                pages_for(context)};
  wanted.ahead = pages_for(columns_ahead);
  if (kv.window == 0) return wanted;
  wanted.least_windows = kv.window_pages(wanted.full);
  const std::uint64_t least = wanted.least_windows;
  wanted.most_windows = std::max(std::min<std::uint64_t>(max_batch, kWholeSequences) * 2 * least,
                                 max_batch * std::min(least, kPagesOfEach)) +
                        wanted.ahead;
  return wanted;
}

std::uint64_t room_for_pages(const model::ModelGraph& graph, const config::EngineSettings& engine) {
  if (engine.kv_cache_mb != 0) return std::uint64_t{engine.kv_cache_mb} << 20;
  const KvNeed kv = kv_need(graph, kv_format(engine.kv_type));
  const std::uint32_t step = widest_step(graph, engine, false);
  const Wanted wanted = wanted_pages(kv, graph.context, engine.max_batch, step);
  return (wanted.most_unasked() / kPartsTaken + 1) * kPartsOfFree;
}

}  // namespace bulkhead::forward

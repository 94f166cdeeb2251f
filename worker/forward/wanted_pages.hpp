// How many KV pages a cache should have where memory does not bound it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/settings.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

// On a GPU a cache whose size the settings leave open takes at most nine tenths of the memory that everything else
// leaves.
inline constexpr std::uint64_t kPartsTaken = 9, kPartsOfFree = 10;
// A cache whose size the settings leave open holds the whole contexts of kWholeSequences sequences, or
// kPagesOfEach pages for each sequence that may run if that is more. Sequences that need more lose pages now and
// then, and compute them again (engine/scheduler.hpp).
inline constexpr std::uint64_t kWholeSequences = 16, kPagesOfEach = 512 / gpu::kernels::kPageTokens;

constexpr std::uint64_t pages_for(std::uint64_t positions) {
  return (positions + gpu::kernels::kPageTokens - 1) / gpu::kernels::kPageTokens;
}

// The sizes of pages of both kinds, and how many of each the cache should have.
struct Wanted {
  std::uint64_t full_bytes = 0, window_bytes = 0;  // bytes of one page
  std::uint64_t full = 0;                          // full pages of a whole context
  std::uint64_t least_windows = 0;                 // window pages of such a sequence
  // The most window pages that are useful: those of the sequences that have whole contexts and as many again for the
  // prefix cache, or a few for each sequence that may run; and those that steps in flight write.
  std::uint64_t most_windows = 0;
  std::uint64_t ahead = 0;  // pages that steps in flight write

  std::uint64_t of_context() const { return full * full_bytes + least_windows * window_bytes; }
  // Returns the bytes of `count` full pages and of the window pages that are useful beside them.
  std::uint64_t of_pages(std::uint64_t count) const {
    const std::uint64_t windows = std::min(most_windows, count);
    return (count + 1) * full_bytes + (windows + (windows > 0 ? 1 : 0)) * window_bytes;
  }
  // Returns the most bytes of a cache whose size the settings leave open.
  std::uint64_t most_unasked() const;
};
Wanted wanted_pages(const KvNeed& kv, std::uint32_t context, std::uint32_t max_batch,
                    std::uint32_t columns_ahead);

// Returns how much of a GPU's memory everything else must leave, so that a cache that does not grow gets its most
// pages, or what engine.kv_cache_mb asks for. The context is the model's.
std::uint64_t room_for_pages(const model::ModelGraph& graph, const config::EngineSettings& engine);

}  // namespace bulkhead::forward

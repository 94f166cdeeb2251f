// Says which key-value stores have window pages: those whose layers see only a sliding window of positions. A
// sequence releases the window pages that its window has passed.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct KvWindows {
  std::uint32_t window = 0;  // positions of the widest of these windows; 0: no store slides
  std::vector<bool> slides;  // for each of the graph's stores: whether it has window pages

  bool exist() const { return window > 0; }
};

// Returns no windows if every store has one, if layers carry states (ModelGraph::states; a sequence then continues
// only from a saved state), or if a window is as wide as the model's context.
KvWindows kv_windows(const model::ModelGraph& graph);

}  // namespace bulkhead::forward

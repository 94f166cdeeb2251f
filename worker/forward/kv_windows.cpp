#include "worker/forward/kv_windows.hpp"

#include <algorithm>
#include <variant>

namespace bulkhead::forward {

KvWindows kv_windows(const model::ModelGraph& graph) {
  // For each store: the most positions that a layer which reads it sees.
  constexpr std::uint32_t kEverything = 0xFFFFFFFF;
  std::vector<std::uint32_t> seen(graph.kv.size());
  for (const model::Layer& layer : graph.layers) {
    for (const model::Operation& operation : layer.operations) {
      const auto* const attend = std::get_if<model::Attend>(&operation);
      if (attend == nullptr) continue;
      const std::uint32_t window = attend->rules.window;
      const bool slides = window > 0 && window < graph.context;
      seen[attend->kv] = std::max(seen[attend->kv], slides ? window : kEverything);
    }
  }
  KvWindows made;
  made.slides.resize(graph.kv.size());
  const bool some_see_all = std::ranges::find(seen, kEverything) != seen.end();
  // All positions of an encoder's text are in one step.
  if (!graph.states.empty() || !some_see_all || is_encoder(graph)) return made;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == kEverything) continue;
    made.slides[i] = true;
    made.window = std::max(made.window, seen[i]);
  }
  if (!made.exist()) made.slides.assign(graph.kv.size(), false);
  return made;
}

}  // namespace bulkhead::forward

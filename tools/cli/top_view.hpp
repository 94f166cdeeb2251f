// Computes what `bulkhead top` shows: a frame from two looks at a daemon, and a frame's text or JSON. Nothing here
// knows terminal modes or connections.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace bulkhead::cli {

// What the daemon answered.
struct Look {
  double seconds = 0;      // the time, on a clock that never goes back
  nlohmann::json workers;  // /v1/workers; anything but a list counts as an empty one
  std::string metrics;     // /metrics
  std::string error;       // why there is no answer; empty: there is one
};

struct TopWorker {
  std::string name, model, state, device, last_death;  // fit for a terminal
  std::string pid;                                     // "-": no process
  std::uint64_t requests = 0, running = 0, waiting = 0, restarts = 0;
  double tokens_per_second = 0;
  double kv_share =
      -1;  // share of the KV cache's pages in use, 0 to 1; negative: there is no cache
};

struct TopFrame {
  std::string error;  // why there are no figures now
  std::uint64_t requests = 0, waiting = 0;
  double tokens_per_second = 0;
  // Medians of the times that the daemon measured between the looks; negative if it measured none.
  double first_token_ms = -1, inter_token_ms = -1;
  // For all workers, between the looks (or since the start, if there was nothing between them), 0 to 1; negative if
  // there never was anything: buffers that came from the memory pool, transfers' time during which the device
  // computed, steps that reused recorded commands.
  double pool_hits = -1, blit_overlap = -1, ring_reuse = -1;
  std::uint64_t ring_depth_bytes = 0;  // the most bytes that wait in a worker's message ring
  std::vector<TopWorker> workers;
};
TopFrame frame_of(const Look& before, const Look& now);

// `name` sorts upwards; the other orders put the largest first. Equal workers are sorted by name.
enum class TopOrder { kName, kState, kRequests, kTokens, kKv, kRestarts };
inline constexpr const char* kTopOrders[] = {"name",   "state", "requests",
                                             "tokens", "kv",    "restarts"};
void sort_workers(TopFrame& frame, TopOrder order);

struct TopLayout {
  std::size_t width = 0;   // columns of the terminal; 0: lines are as long as they are
  std::size_t height = 0;  // lines of the terminal; 0: any number
  std::string selected;    // worker whose line is marked; empty: none
  bool colours = false;
  std::string foot;  // a line at the end
};
// Renders lines that end with '\n'. If the workers don't fit the height, a line counts the rest. If the height has few
// lines, the foot comes first, then the selected worker.
std::string to_text(const TopFrame& frame, const TopLayout& layout);
nlohmann::json to_json(const TopFrame& frame);

}  // namespace bulkhead::cli

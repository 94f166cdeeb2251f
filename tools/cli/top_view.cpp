#include "tools/cli/top_view.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "tools/cli/columns.hpp"
#include "tools/cli/table.hpp"

namespace bulkhead::cli {

using nlohmann::json;

namespace {

// ---- reading ----

std::uint64_t number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// Returns values by the name of a worker.
std::map<std::string, const json*> by_name(const json& workers) {
  std::map<std::string, const json*> found;
  if (!workers.is_array()) return found;
  for (const json& worker : workers) {
    if (worker.is_object()) found.emplace(cell_of(worker, "name"), &worker);
  }
  return found;
}

std::uint64_t tokens_of(const json& worker) {
  const auto ipc = worker.find("ipc");
  return ipc != worker.end() && ipc->is_object() ? number_of(*ipc, "tokens_received") : 0;
}

// Calls `use(labels, value)` for each sample of that name in Prometheus text.
template <typename Use>
void for_samples(std::string_view metrics, std::string_view name, Use use) {
  while (!metrics.empty()) {
    const std::size_t end = std::min(metrics.find('\n'), metrics.size());
    std::string_view line = metrics.substr(0, end);
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    std::string_view labels;
    if (line.starts_with('{')) {
      const std::size_t close = line.rfind('}');
      if (close == std::string_view::npos) continue;
      labels = line.substr(1, close - 1);
      line.remove_prefix(close + 1);
    }
    if (line.starts_with(' ')) use(labels, std::strtod(std::string(line).c_str(), nullptr));
  }
}

double sum_of(const Look& look, std::string_view name) {
  double sum = 0;
  for_samples(look.metrics, name, [&](std::string_view, double value) { sum += value; });
  return sum;
}

std::uint64_t sample_of(const Look& look, std::string_view name) {
  const double sum = sum_of(look, name);
  return sum > 0 && sum < 1e18 ? static_cast<std::uint64_t>(sum) : 0;
}

// Returns by which share of `whole` the counter `part` grew between the looks; the share of all time if `whole` did not
// grow, or a worker's successor began to count anew; -1 if `whole` is 0.
double share_between(const Look& before, const Look& now, std::string_view part,
                     std::string_view whole) {
  double parts = sum_of(now, part) - sum_of(before, part);
  double all = sum_of(now, whole) - sum_of(before, whole);
  if (!(all > 0) || parts < 0) {
    parts = sum_of(now, part);
    all = sum_of(now, whole);
  }
  return std::isfinite(all) && all > 0 && parts >= 0 ? std::min(parts / all, 1.0) : -1;
}

std::uint64_t most_of(const Look& look, std::string_view name) {
  double most = 0;
  for_samples(look.metrics, name,
              [&](std::string_view, double value) { most = std::max(most, value); });
  return most < 1e18 ? static_cast<std::uint64_t>(most) : 0;
}

// Returns the upper bounds of a histogram's buckets, each with the count at or below it.
std::map<double, double> buckets_of(const Look& look, const std::string& name) {
  std::map<double, double> buckets;
  for_samples(look.metrics, name + "_bucket", [&](std::string_view labels, double value) {
    constexpr std::string_view kBound = "le=\"";
    const std::size_t at = labels.find(kBound);
    if (at == std::string_view::npos) return;
    const std::string bound(labels.substr(at + kBound.size()));
    buckets[std::strtod(bound.c_str(), nullptr)] += value;  // "+Inf" is infinity
  });
  return buckets;
}

// Returns the median, in milliseconds, of what a histogram of seconds counted between two looks;
// the function takes values as spread evenly in their bucket. -1 if the histogram counted nothing.
double median_ms(const Look& before, const Look& now, const std::string& name) {
  const std::map<double, double> earlier = buckets_of(before, name);
  std::map<double, double> counts = buckets_of(now, name);
  for (auto& [bound, count] : counts) {
    const auto was = earlier.find(bound);
    if (was != earlier.end() && was->second <= count) count -= was->second;
  }
  const double total = counts.empty() ? 0 : counts.rbegin()->second;
  if (!(total > 0)) return -1;
  double low = 0, below = 0;
  for (const auto& [bound, count] : counts) {
    if (count >= total / 2) {
      if (!std::isfinite(bound)) return low * 1000;
      return (low + (bound - low) * (total / 2 - below) / std::max(count - below, 1e-9)) * 1000;
    }
    low = bound;
    below = count;
  }
  return low * 1000;
}

TopWorker worker_of(const json& now, const json* before, double seconds) {
  TopWorker worker;
  worker.name = cell_of(now, "name");
  worker.model = cell_of(now, "model");
  worker.state = cell_of(now, "state");
  worker.device = device_cell(now);
  worker.last_death = cell_of(now, "last_death");
  worker.pid = cell_of(now, "pid");
  worker.requests = number_of(now, "outstanding_requests");
  worker.running = number_of(now, "active_sequences");
  worker.waiting = number_of(now, "waiting_sequences");
  worker.restarts = number_of(now, "restarts");
  const std::uint64_t earlier = before == nullptr ? 0 : tokens_of(*before);
  if (before != nullptr && seconds > 0 && tokens_of(now) >= earlier)
    worker.tokens_per_second = static_cast<double>(tokens_of(now) - earlier) / seconds;
  if (const std::uint64_t pages = number_of(now, "kv_pages_total"); pages > 0) {
    const auto used = static_cast<double>(number_of(now, "kv_pages_used"));
    worker.kv_share = std::min(1.0, used / static_cast<double>(pages));
  }
  return worker;
}

// ---- writing ----

std::string rounded(double value, int digits) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string milliseconds(double value) {
  return value < 0 ? "-" : rounded(value, value < 10 ? 2 : 0) + " ms";
}

std::string percent(double share) {
  return share < 0 ? "-" : rounded(share * 100, 0) + " %";
}

const char* colour_of(const std::string& state) {
  if (state == "ready" || state == "standby") return "\033[32m";
  if (state == "failed" || state == "stopped") return "\033[31m";
  return state == "unloaded" ? "\033[2m" : "\033[33m";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

json none_if_negative(double value) {
  return value < 0 ? json(nullptr) : json(value);
}

}  // namespace

TopFrame frame_of(const Look& before, const Look& now) {
  TopFrame frame;
  frame.error = now.error;
  if (!now.error.empty()) return frame;
  const double seconds = now.seconds - before.seconds;
  const auto earlier = by_name(before.workers);
  for (const auto& [name, worker] : by_name(now.workers)) {
    const auto found = earlier.find(name);
    frame.workers.push_back(
        worker_of(*worker, found == earlier.end() ? nullptr : found->second, seconds));
    frame.tokens_per_second += frame.workers.back().tokens_per_second;
  }
  frame.requests = sample_of(now, "bulkhead_requests_outstanding");
  frame.waiting = sample_of(now, "bulkhead_requests_waiting");
  frame.ring_depth_bytes = most_of(now, "bulkhead_ipc_depth_bytes");
  if (!before.error.empty()) return frame;
  frame.first_token_ms = median_ms(before, now, "bulkhead_time_to_first_token_seconds");
  frame.inter_token_ms = median_ms(before, now, "bulkhead_inter_token_seconds");
  frame.pool_hits = share_between(before, now, "bulkhead_worker_pool_hits_total",
                                  "bulkhead_worker_pool_acquires_total");
  frame.blit_overlap = share_between(before, now, "bulkhead_worker_blit_overlapped_seconds_total",
                                     "bulkhead_worker_blit_transfer_seconds_total");
  frame.ring_reuse = share_between(before, now, "bulkhead_worker_ring_replays_total",
                                   "bulkhead_worker_ring_submissions_total");
  return frame;
}

void sort_workers(TopFrame& frame, TopOrder order) {
  // Returns a key to sort by; the smallest comes first. Each order uses the number or the words,
  // and leaves the other part equal.
  const auto rank = [order](const TopWorker& worker) -> std::pair<std::string, double> {
    switch (order) {
      case TopOrder::kName:
        return {worker.name, 0};
      case TopOrder::kState:
        return {worker.state, 0};
      case TopOrder::kRequests:
        return {"", -static_cast<double>(worker.requests)};
      case TopOrder::kTokens:
        return {"", -worker.tokens_per_second};
      case TopOrder::kKv:
        return {"", -worker.kv_share};
      case TopOrder::kRestarts:
        return {"", -static_cast<double>(worker.restarts)};
    }
    return {};
  };
  std::ranges::sort(frame.workers, [&](const TopWorker& a, const TopWorker& b) {
    return std::pair(rank(a), a.name) < std::pair(rank(b), b.name);
  });
}

namespace {

// The lines above the workers.
std::vector<std::string> head_of(const TopFrame& frame) {
  if (!frame.error.empty()) return {cell(frame.error)};
  return {std::to_string(frame.requests) + " requests, " + std::to_string(frame.waiting) +
              " waiting; " + rounded(frame.tokens_per_second, 1) + " tokens/s; first token " +
              milliseconds(frame.first_token_ms) + ", between tokens " +
              milliseconds(frame.inter_token_ms),
          "memory pool hits " + percent(frame.pool_hits) + "; transfers beside computing " +
              percent(frame.blit_overlap) + "; command ring reuse " + percent(frame.ring_reuse) +
              "; message ring " + std::to_string(frame.ring_depth_bytes) + " bytes deep"};
}

// How many lines of each kind a screen has room for. The workers' titles are among the head's lines.
struct Lines {
  std::size_t head = 0, workers = 0;
  bool counts_rest = false;  // a line says how many workers more there are
};

Lines lines_for(std::size_t head, std::size_t workers, const TopLayout& layout) {
  if (layout.height == 0) return {head, workers, false};
  const std::size_t foot = layout.foot.empty() ? 0 : 1;
  const std::size_t height = layout.height - std::min(foot, layout.height);
  Lines lines;
  lines.head = std::min(head, height - std::min({height, workers, std::size_t{1}}));
  const std::size_t rest = height - lines.head;
  lines.counts_rest = rest < workers && rest > 1;
  lines.workers = std::min(workers, lines.counts_rest ? rest - 1 : rest);
  return lines;
}

}  // namespace

std::string to_text(const TopFrame& frame, const TopLayout& layout) {
  std::vector<std::vector<std::string>> rows = {{"WORKER", "STATE", "REQUESTS", "RUNNING",
                                                 "WAITING", "TOKENS/S", "KV CACHE", "RESTARTS",
                                                 "PID", "MODEL", "DEVICE", "LAST DEATH"}};
  for (const TopWorker& each : frame.workers) {
    rows.push_back(
        {each.name, each.state, std::to_string(each.requests), std::to_string(each.running),
         std::to_string(each.waiting), rounded(each.tokens_per_second, 1), percent(each.kv_share),
         std::to_string(each.restarts), each.pid, each.model, each.device, each.last_death});
  }
  const std::vector<std::string> shown = lines_of(table(rows));
  std::vector<std::string> head = head_of(frame);
  // The titles come after the figures, and an error is more than both.
  head.insert(frame.error.empty() ? head.begin() : head.end(), shown[0]);
  const Lines lines = lines_for(head.size(), frame.workers.size(), layout);
  head.resize(lines.head);
  if (frame.error.empty() && !head.empty()) std::ranges::rotate(head, head.begin() + 1);
  // The selected worker always stays visible.
  std::size_t first = 0;
  for (std::size_t i = 0; i < frame.workers.size(); ++i) {
    if (frame.workers[i].name == layout.selected && i >= lines.workers && lines.workers > 0)
      first = i + 1 - lines.workers;
  }
  const auto fitted = [&](const std::string& line) {
    return layout.width == 0 ? line : std::string(first_columns(line, layout.width));
  };
  std::string text;
  for (const std::string& line : head)
    text += fitted(line) + "\n";
  for (std::size_t i = first; i < first + lines.workers; ++i) {
    const TopWorker& worker = frame.workers[i];
    const bool selected = !layout.selected.empty() && worker.name == layout.selected;
    std::string line = fitted(shown[i + 1]);
    const std::size_t at = line.find("  ");
    const std::size_t state = at == std::string::npos ? at : line.find(worker.state, at);
    if (layout.colours && !selected && state != std::string::npos) {
      line.insert(state + worker.state.size(), "\033[0m");
      line.insert(state, colour_of(worker.state));
    }
    text += selected ? "\033[7m" + line + "\033[0m\n" : line + "\n";
  }
  if (lines.counts_rest) {
    const std::size_t rest = frame.workers.size() - lines.workers;
    text += fitted(std::to_string(rest) + " more workers") + "\n";
  }
  if (!layout.foot.empty()) text += fitted(layout.foot) + "\n";
  return text;
}

json to_json(const TopFrame& frame) {
  json workers = json::array();
  for (const TopWorker& each : frame.workers) {
    workers.push_back(
        {{"name", each.name},
         {"model", each.model},
         {"state", each.state},
         {"requests", each.requests},
         {"running", each.running},
         {"waiting", each.waiting},
         {"tokens_per_second", each.tokens_per_second},
         {"kv_share", none_if_negative(each.kv_share)},
         {"restarts", each.restarts},
         {"pid", each.pid == "-" ? json(nullptr) : json(std::atoll(each.pid.c_str()))},
         {"device", each.device},
         {"last_death", each.last_death == "-" ? json(nullptr) : json(each.last_death)}});
  }
  return {{"error", frame.error.empty() ? json(nullptr) : json(frame.error)},
          {"requests", frame.requests},
          {"waiting", frame.waiting},
          {"tokens_per_second", frame.tokens_per_second},
          {"first_token_ms", none_if_negative(frame.first_token_ms)},
          {"inter_token_ms", none_if_negative(frame.inter_token_ms)},
          {"pool_hit_rate", none_if_negative(frame.pool_hits)},
          {"blit_overlap", none_if_negative(frame.blit_overlap)},
          {"ring_reuse", none_if_negative(frame.ring_reuse)},
          {"ring_depth_bytes", frame.ring_depth_bytes},
          {"workers", std::move(workers)}};
}

}  // namespace bulkhead::cli

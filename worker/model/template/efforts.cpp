#include "worker/model/template/efforts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace bulkhead::jinja {
namespace {

// From the least effort to the most. The first one means no reasoning, so it never takes the place of another one.
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};
constexpr std::size_t kLow = 2, kHigh = 4;
constexpr std::string_view kNoReasoning = "no_think";  // Hunyuan's word for none

// A word that no template contains.
constexpr std::string_view kMark = "Qf7effort";

bool names(std::string_view source, std::string_view effort) {
  for (const char quote : {'"', '\''}) {
    if (source.find(quote + std::string(effort) + quote) != source.npos) return true;
  }
  return false;
}

}  // namespace

Efforts::Efforts(std::string_view source, const Render& render) {
  if (source.find("reasoning_effort") == source.npos) return;
  const std::optional<std::string> marked = render(kMark);
  const bool shown = marked && marked->find(kMark) != std::string::npos;
  std::array<bool, kEfforts.size()> known = {};
  for (std::size_t i = 0; i < kEfforts.size(); ++i) {
    // A template that does not show the effort counts as knowing `none` even if its source does not name it.
    const bool expected = i == 0 ? !shown : i >= kLow && i <= kHigh;
    known[i] = (expected || names(source, kEfforts[i])) && render(kEfforts[i]);
  }
  for (std::size_t wanted = 0; wanted < kEfforts.size(); ++wanted) {
    if (known[wanted]) continue;
    if (wanted == 0 && names(source, kNoReasoning) && render(kNoReasoning)) {
      nearest_[kEfforts[wanted]] = kNoReasoning;
      continue;
    }
    for (std::size_t distance = 1; distance < kEfforts.size(); ++distance) {
      const std::size_t higher = wanted + distance;
      const bool lower_is_known = wanted > distance && known[wanted - distance];
      if (higher >= kEfforts.size() || !known[higher]) {
        if (!lower_is_known) continue;
        nearest_[kEfforts[wanted]] = kEfforts[wanted - distance];
      } else {
        nearest_[kEfforts[wanted]] = kEfforts[higher];
      }
      break;
    }
  }
}

std::string_view Efforts::nearest(std::string_view effort) const {
  const auto found = nearest_.find(effort);
  return found == nearest_.end() ? effort : found->second;
}

}  // namespace bulkhead::jinja

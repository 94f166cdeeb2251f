// Requests that wait for a worker of one model, taken in turns between the clients' keys: one request of a key,
// then one of the next that has any. So a key that sends many delays each other key by one request a turn, and
// none starves. Within a key the oldest is first. Requests that a worker had already go before all others.
//
// Round robin over queues, as in J. Nagle, "On packet switches with infinite storage" (RFC 970, 1985). One thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/strong_id.hpp"

namespace bulkhead::orchestrator {

class TurnQueue {
 public:
  // A new request of the key, at the end of the key's line; a key that had none waiting gets the last turn.
  void push(RequestId request, std::string_view key) {
    const auto line = std::ranges::find(lines_, key, &Line::key);
    if (line == lines_.end()) {
      lines_.push_back({std::string(key), {request}});
    } else {
      line->requests.push_back(request);
    }
  }
  // One that had begun: after, or before, the others that had.
  void push_begun(RequestId request) { begun_.push_back(request); }
  void put_back(RequestId request) { begun_.push_front(request); }

  bool empty() const { return begun_.empty() && lines_.empty(); }
  std::size_t size() const {
    std::size_t count = begun_.size();
    for (const Line& line : lines_)
      count += line.requests.size();
    return count;
  }

  // Takes the next one that `may` be taken out, and ends its key's turn; empty: there is none.
  template <std::predicate<RequestId> May>
  std::optional<RequestId> take(const May& may) {
    if (const auto request = take_from(begun_, may)) return request;
    for (auto line = lines_.begin(); line != lines_.end(); ++line) {
      const auto request = take_from(line->requests, may);
      if (!request) continue;
      if (line->requests.empty()) {
        lines_.erase(line);
      } else {
        lines_.splice(lines_.end(), lines_, line);
      }
      return request;
    }
    return std::nullopt;
  }

  void erase(RequestId request) {
    std::erase(begun_, request);
    for (Line& line : lines_)
      std::erase(line.requests, request);
    std::erase_if(lines_, [](const Line& line) { return line.requests.empty(); });
  }

  // In no order that counts.
  std::vector<RequestId> all() const {
    std::vector<RequestId> requests(begun_.begin(), begun_.end());
    for (const Line& line : lines_)
      requests.insert(requests.end(), line.requests.begin(), line.requests.end());
    return requests;
  }

 private:
  struct Line {
    std::string key;
    std::deque<RequestId> requests;  // never empty
  };

  template <typename May>
  static std::optional<RequestId> take_from(std::deque<RequestId>& requests, const May& may) {
    const auto found = std::ranges::find_if(requests, may);
    if (found == requests.end()) return std::nullopt;
    const RequestId request = *found;
    requests.erase(found);
    return request;
  }

  std::deque<RequestId> begun_;
  std::list<Line> lines_;  // in the order of their turns
};

}  // namespace bulkhead::orchestrator

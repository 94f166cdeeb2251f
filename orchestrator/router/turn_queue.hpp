// The requests that wait for a worker of one model. The router takes them in turns between the clients' keys: one
// request of a key, then one of the next key that has any. So a key that sends many requests delays each other key by
// only one request per turn, and no key starves. Within a key the oldest request comes first. Requests that a worker
// had already come before all others.
//
// The algorithm is round robin over queues, as in J. Nagle, "On packet switches with infinite storage" (RFC 970,
// 1985). One thread.
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
  // Adds a new request at the end of its key's line. A key without waiting requests gets the last turn.
  void push(RequestId request, std::string_view key) {
    const auto line = std::ranges::find(lines_, key, &Line::key);
    if (line == lines_.end()) {
      lines_.push_back({std::string(key), {request}});
    } else {
      line->requests.push_back(request);
    }
  }
  // Adds a request that a worker had already: after the others of that kind (push_begun), or before them (put_back).
  void push_begun(RequestId request) { begun_.push_back(request); }
  void put_back(RequestId request) { begun_.push_front(request); }

  bool empty() const { return begun_.empty() && lines_.empty(); }
  std::size_t size() const {
    std::size_t count = begun_.size();
    for (const Line& line : lines_)
      count += line.requests.size();
    return count;
  }

  // Takes the next request for which `may` returns true, and ends its key's turn. Empty if there is none.
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

  // Returns all requests, in no particular order.
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
  std::list<Line> lines_;  // the keys' lines in the order of their turns
};

}  // namespace bulkhead::orchestrator

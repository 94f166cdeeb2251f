// What the Responses API's answers have said, by the ids of their output items. A client may name an item by its id
// ("item_reference") in place of the item itself; the AI SDK does so unless a request has "store": false.
//
// Items are kept in memory only, and the oldest go when there is no more room. An id contains 64 random bits, so nobody
// but the client that got it can name it.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace bulkhead::orchestrator {

// Thread-safe: large requests are read in threads other than the event loop's.
class StoredItems {
 public:
  // Keeps at most so many bytes of ids and items.
  explicit StoredItems(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Keeps an item, which is a JSON object. An item that has no room at all is not kept.
  void keep(const std::string& id, std::string item);
  // Empty: there is no item with that id, or none any more.
  std::optional<std::string> find(const std::string& id) const;

 private:
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;  // guards the rest
  std::unordered_map<std::string, std::string> items_;
  std::deque<std::string> ids_;  // the oldest first
  std::size_t bytes_ = 0;
};

// Those of this daemon.
StoredItems& stored_items();

}  // namespace bulkhead::orchestrator

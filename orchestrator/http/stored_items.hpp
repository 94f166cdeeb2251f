// The output items of the Responses API's answers, by their ids. A later request may contain an item's id
// ("item_reference") instead of the item. The AI SDK sends ids unless the client sets "store" to false.
//
// The items are in memory only. If there is no room for a new item, the oldest items are dropped. An id contains 64
// random bits, so only the client that received an id has it.
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
  // Keeps at most `most_bytes` of ids and items.
  explicit StoredItems(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // Keeps an item, a JSON object. Drops an item that is larger than all the room.
  void keep(const std::string& id, std::string item);
  // Empty: no item has that id, or the item has been dropped.
  std::optional<std::string> find(const std::string& id) const;

 private:
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;  // guards the rest
  std::unordered_map<std::string, std::string> items_;
  std::deque<std::string> ids_;  // the oldest first
  std::size_t bytes_ = 0;
};

// The items of this daemon.
StoredItems& stored_items();

}  // namespace bulkhead::orchestrator

// The output items of the Responses API's answers, by their ids. A later request may contain an item's id
// ("item_reference") instead of the item. The AI SDK sends ids unless the client sets "store" to false.
//
// The items are in memory only. If there is no room for a new item, the oldest items are dropped. An id contains 64
// random bits, so only the client that received an id has it.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
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
  // Empty: no item has that id, or the item has been dropped. Throws ItemsTooLong if a ShortItems of this thread does
  // not allow the item.
  std::optional<std::string> find(const std::string& id) const;

 private:
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;  // guards the rest
  std::unordered_map<std::string, std::string> items_;
  std::deque<std::string> ids_;  // the oldest first
  std::size_t bytes_ = 0;
};

// As long as one exists, this thread finds items of at most `most_bytes` together. The event loop reads short requests
// itself, and a short request can name long items.
class ShortItems {
 public:
  explicit ShortItems(std::size_t most_bytes);
  ~ShortItems();
  ShortItems(const ShortItems&) = delete;
  ShortItems& operator=(const ShortItems&) = delete;
};
struct ItemsTooLong : std::exception {
  const char* what() const noexcept override { return "items that are too long for the loop"; }
};

// The items of this daemon.
StoredItems& stored_items();

}  // namespace bulkhead::orchestrator

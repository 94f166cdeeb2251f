#include "orchestrator/http/stored_items.hpp"

#include <cstdint>
#include <utility>

namespace bulkhead::orchestrator {

namespace {

thread_local std::size_t bytes_allowed = SIZE_MAX;

}  // namespace

ShortItems::ShortItems(std::size_t most_bytes) {
  bytes_allowed = most_bytes;
}
ShortItems::~ShortItems() {
  bytes_allowed = SIZE_MAX;
}

void StoredItems::keep(const std::string& id, std::string item) {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = id.size() + item.size();
  if (bytes > most_bytes_ || items_.contains(id)) return;
  while (bytes_ + bytes > most_bytes_) {
    const auto oldest = items_.find(ids_.front());
    bytes_ -= oldest->first.size() + oldest->second.size();
    items_.erase(oldest);
    ids_.pop_front();
  }
  items_.emplace(id, std::move(item));
  ids_.push_back(id);
  bytes_ += bytes;
}

std::optional<std::string> StoredItems::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = items_.find(id);
  if (found == items_.end()) return std::nullopt;
  if (found->second.size() > bytes_allowed) throw ItemsTooLong();
  if (bytes_allowed != SIZE_MAX) bytes_allowed -= found->second.size();
  return found->second;
}

StoredItems& stored_items() {
  static StoredItems items(std::size_t{16} << 20);
  return items;
}

}  // namespace bulkhead::orchestrator

#include "worker/engine/kv_cache.hpp"

#include <utility>

namespace bulkhead::engine {

PagePool::PagePool(std::uint32_t pages, std::uint32_t page_tokens)
    : total_(pages), page_tokens_(page_tokens == 0 ? 1 : page_tokens) {
  free_.reserve(pages);
  for (std::uint32_t page = pages; page > 0; --page)
    free_.push_back(page - 1);
}

PageList::PageList(PageList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), pages_(std::move(other.pages_)) {
  other.pages_.clear();
}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::move(other.pages_);
    other.pages_.clear();
  }
  return *this;
}

void PageList::reserve(std::uint32_t positions) {
  pages_.reserve(pool_->pages_for(positions));
}

bool PageList::cover(std::uint32_t positions) {
  const std::uint32_t needed = pool_->pages_for(positions);
  if (needed <= pages_.size()) return true;
  if (needed - pages_.size() > pool_->free_.size()) return false;
  while (pages_.size() < needed) {
    pages_.push_back(pool_->free_.back());
    pool_->free_.pop_back();
  }
  return true;
}

void PageList::clear() {
  // In reverse, so that the stack hands them out again in the order they had.
  while (!pages_.empty()) {
    pool_->free_.push_back(pages_.back());
    pages_.pop_back();
  }
}

}  // namespace bulkhead::engine

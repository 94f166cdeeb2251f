// Who owns which pages of the KV cache. The pages themselves are the executor's; here they are
// numbers.
//
// A page holds the keys and values of `page_tokens` consecutive positions of one sequence. Every
// page is either on the free list or in exactly one PageList: that is the invariant, and the tests
// check it against a random model. Not thread-safe: the engine's thread only. Nothing here
// allocates memory after construction and reserve().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class PagePool {
 public:
  PagePool(std::uint32_t pages, std::uint32_t page_tokens);

  std::uint32_t page_tokens() const { return page_tokens_; }
  std::uint32_t total_pages() const { return total_; }
  std::uint32_t free_pages() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t used_pages() const { return total_ - free_pages(); }
  std::uint64_t total_positions() const { return std::uint64_t{total_} * page_tokens_; }
  // Pages that hold positions [0, positions).
  std::uint32_t pages_for(std::uint32_t positions) const {
    return positions / page_tokens_ + (positions % page_tokens_ != 0 ? 1 : 0);
  }

 private:
  friend class PageList;
  std::uint32_t total_;
  std::uint32_t page_tokens_;
  std::vector<PageIndex> free_;  // a stack: a page used lately is used again first
};

// The pages of one sequence, in the order of its positions. Gives them back when destroyed; the
// pool must outlive it.
class PageList {
 public:
  PageList() = default;
  explicit PageList(PagePool& pool) : pool_(&pool) {}
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;
  ~PageList() { clear(); }

  // Room for this many positions' page numbers, so that cover() need not allocate host memory.
  void reserve(std::uint32_t positions);
  // Makes positions [0, positions) covered. False, with nothing taken, when too few pages are free.
  [[nodiscard]] bool cover(std::uint32_t positions);
  void clear();

  std::span<const PageIndex> pages() const { return pages_; }

 private:
  PagePool* pool_ = nullptr;
  std::vector<PageIndex> pages_;
};

}  // namespace bulkhead::engine

// The pages that nobody uses and that hold nothing. Pages of the cache's first part are handed out before those of the
// slabs that it grew by, and those of lower slabs before those of higher ones, so that the highest slabs empty first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class EmptyPages {
 public:
  // Pages [0, first) are the first part; after them come slabs of `slab` pages. Allocates all that it ever needs.
  EmptyPages(std::uint32_t pages, std::uint32_t first, std::uint32_t slab)
      : first_(first), slab_(slab), parts_(1 + (slab == 0 ? 0 : (pages - first) / slab)) {
    parts_.front().reserve(first);
    for (std::size_t i = 1; i < parts_.size(); ++i)
      parts_[i].reserve(slab);
  }

  std::uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // In each part, the page that was put back last is taken first.
  void push(PageIndex page) {
    const std::size_t part = part_of(page);
    parts_[part].push_back(page);
    lowest_ = std::min(lowest_, part);
    ++size_;
  }
  PageIndex pop() {  // not empty()
    while (parts_[lowest_].empty())
      ++lowest_;
    const PageIndex page = parts_[lowest_].back();
    parts_[lowest_].pop_back();
    --size_;
    return page;
  }
  // Takes out the pages for which `wanted` is true, and returns them in their order.
  template <typename Wanted>
  std::vector<PageIndex> take_if(Wanted wanted) {
    std::vector<PageIndex> taken;
    for (std::vector<PageIndex>& part : parts_) {
      const auto kept = std::stable_partition(part.begin(), part.end(),
                                              [&](PageIndex page) { return !wanted(page); });
      taken.insert(taken.end(), kept, part.end());
      part.erase(kept, part.end());
    }
    size_ -= static_cast<std::uint32_t>(taken.size());
    return taken;
  }
  void take_slab(std::uint32_t slab) {
    size_ -= static_cast<std::uint32_t>(parts_[slab + 1].size());
    parts_[slab + 1].clear();
  }

 private:
  std::size_t part_of(PageIndex page) const {
    return page < first_ || slab_ == 0 ? 0 : 1 + (page - first_) / slab_;
  }

  std::uint32_t first_, slab_;
  std::vector<std::vector<PageIndex>> parts_;
  std::size_t lowest_ = 0;  // no lower part has a page
  std::uint32_t size_ = 0;
};

}  // namespace bulkhead::engine

// A list of pages that nobody uses and that can still be found, in the order of their last use. The links are in the
// owner's pages, so the list allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

inline constexpr PageIndex kNoPage = 0xFFFFFFFF;

struct IdleLinks {
  PageIndex older = kNoPage, newer = kNoPage;
};

class IdlePages {
 public:
  // `links[page - first]`: the links of that page.
  explicit IdlePages(std::vector<IdleLinks>& links, PageIndex first = 0)
      : links_(links), first_(first) {}

  std::uint32_t size() const { return size_; }
  PageIndex oldest() const { return oldest_; }
  PageIndex newer(PageIndex page) const { return links_[page - first_].newer; }

  // Adds the page as the most recently used one. The page must not be in a list that uses the same links.
  void add(PageIndex page) {
    at(page) = {newest_, kNoPage};
    (newest_ == kNoPage ? oldest_ : at(newest_).newer) = page;
    newest_ = page;
    ++size_;
  }
  void remove(PageIndex page) {
    const IdleLinks gone = at(page);
    (gone.older == kNoPage ? oldest_ : at(gone.older).newer) = gone.newer;
    (gone.newer == kNoPage ? newest_ : at(gone.newer).older) = gone.older;
    --size_;
  }

 private:
  IdleLinks& at(PageIndex page) { return links_[page - first_]; }

  std::vector<IdleLinks>& links_;
  PageIndex first_;
  PageIndex oldest_ = kNoPage, newest_ = kNoPage;
  std::uint32_t size_ = 0;
};

}  // namespace bulkhead::engine

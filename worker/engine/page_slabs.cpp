// The page pool's part that deals with slabs, by which the cache grows and shrinks.
#include <algorithm>
#include <vector>

#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

std::uint32_t PagePool::slabs_present() const {
  return static_cast<std::uint32_t>(std::ranges::count(slabs_, Slab::kPresent));
}

std::optional<std::uint32_t> PagePool::absent_slab() const {
  const auto slab = std::ranges::find(slabs_, Slab::kAbsent);
  if (slab == slabs_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(slab - slabs_.begin());
}

void PagePool::add_slab(std::uint32_t slab) {
  if (leaving_ == slab) leaving_.reset();
  slabs_[slab] = Slab::kPresent;
  present_ += slab_pages_;
  const PageIndex first = first_ + slab * slab_pages_;
  for (PageIndex page = first + slab_pages_; page > first; --page) {
    if (pages_[page - 1].users == 0 && !pages_[page - 1].left_out) empty_.push(page - 1);
  }
}

void PagePool::let_slab_leave() {
  if (leaving_ || !withheld_.empty()) return;
  std::ptrdiff_t least = 0;
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab] != Slab::kPresent) continue;
    const std::span<const Page> pages = pages_of(slab);
    if (std::ranges::any_of(pages, &Page::left_out)) continue;
    const auto used = std::ranges::count_if(pages, [](const Page& page) { return page.users > 0; });
    if (leaving_ && used > least) continue;
    leaving_ = slab;
    least = used;
  }
  if (!leaving_) return;
  const PageIndex first = first_ + *leaving_ * slab_pages_;
  std::vector<PageIndex> unused;
  for (PageIndex page = first; page < first + slab_pages_; ++page) {
    if (pages_[page].users > 0 || sharing_ == Sharing::kNone || !index_.contains(page)) continue;
    idle_.remove(page);  // drop() leaves the lists of a slab that leaves alone
    unused.push_back(page);
  }
  empty_.take_slab(*leaving_);
  slabs_[*leaving_] = Slab::kLeaving;
  present_ -= slab_pages_;
  if (!unused.empty()) drop(unused, Fate::kUseAgain);
}

std::optional<std::uint32_t> PagePool::slab_that_left() {
  if (!leaving_) return std::nullopt;
  const std::uint32_t slab = *leaving_;
  const std::span<const Page> pages = pages_of(slab);
  if (std::ranges::any_of(pages, &Page::left_out)) {
    add_slab(slab);
    return std::nullopt;
  }
  if (std::ranges::any_of(pages, [](const Page& page) { return page.users > 0; }))
    return std::nullopt;
  leaving_.reset();
  slabs_[slab] = Slab::kAbsent;
  return slab;
}

}  // namespace bulkhead::engine

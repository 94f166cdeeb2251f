#include "worker/engine/kv_cache.hpp"

#include <algorithm>
#include <utility>

#include "worker/engine/state_book.hpp"

namespace bulkhead::engine {

PagePool::PagePool(std::uint32_t pages, std::uint32_t page_tokens, Sharing sharing)
    : total_(pages),
      page_tokens_(page_tokens == 0 ? 1 : page_tokens),
      sharing_(sharing),
      pages_(pages),
      index_(sharing == Sharing::kPrefixes ? pages : 0, page_tokens_) {
  empty_.reserve(pages);
  for (std::uint32_t page = pages; page > 0; --page)
    empty_.push_back(page - 1);
}

PageIndex PagePool::take() {
  PageIndex page = kNone;
  if (!empty_.empty()) {
    page = empty_.back();
    empty_.pop_back();
  } else {
    // The oldest has no followers (see above). Should that ever fail, an older page is better kept
    // than a follower found behind another page's tokens.
    page = oldest_;
    while (index_.follower_count(page) != 0)
      page = pages_[page].newer;
    unlink(page);
    index_.erase(page);
    ++evictions_;
  }
  if (states_ != nullptr) states_->left(page);
  if (ledger_ != nullptr) ledger_->left(page);
  pages_[page].users = 1;
  return page;
}

void PagePool::retain(PageIndex page) {
  if (pages_[page].users++ == 0) unlink(page);
}

void PagePool::release(PageIndex page) {
  if (--pages_[page].users > 0) return;
  if (pages_[page].left_out) return;
  if (sharing_ == Sharing::kNone || !index_.contains(page)) {
    empty_.push_back(page);
    return;
  }
  make_idle(page);
}

std::uint32_t PagePool::take_over(std::span<const KeptPage> pages) {
  if (sharing_ == Sharing::kNone || empty_.size() != total_) return 0;
  std::vector<PageIndex> taken;
  for (const KeptPage& kept : pages) {
    const bool sound =
        kept.page < total_ && !index_.contains(kept.page) && kept.tokens.size() == page_tokens_ &&
        (kept.before == kNone || (kept.before < total_ && index_.contains(kept.before))) &&
        !index_.find(kept.before, kept.tokens);
    if (sound) {
      index_.insert(kept.page, kept.before, kept.tokens);
      taken.push_back(kept.page);
    } else if (ledger_ != nullptr && kept.page < total_ && !index_.contains(kept.page)) {
      ledger_->left(kept.page);
    }
  }
  // Who follows another is older than that one (see above).
  for (auto page = taken.rbegin(); page != taken.rend(); ++page)
    make_idle(*page);
  std::erase_if(empty_, [this](PageIndex page) { return index_.contains(page); });
  return static_cast<std::uint32_t>(taken.size());
}

std::uint32_t PagePool::withhold(std::span<const PageIndex> pages) {
  std::vector<bool> wanted(total_);
  for (const PageIndex page : pages) {
    if (page < total_) wanted[page] = true;
  }
  // In their order, so that they come back as they were.
  const auto kept = std::stable_partition(empty_.begin(), empty_.end(),
                                          [&](PageIndex page) { return !wanted[page]; });
  withheld_.insert(withheld_.end(), kept, empty_.end());
  empty_.erase(kept, empty_.end());
  return static_cast<std::uint32_t>(withheld_.size());
}

void PagePool::settle() {
  std::erase_if(withheld_, [this](PageIndex page) { return pages_[page].left_out; });
  empty_.insert(empty_.end(), withheld_.begin(), withheld_.end());
  withheld_.clear();
}

std::vector<bool> PagePool::drop(std::span<const PageIndex> pages, Fate fate) {
  std::vector<bool> dropped(total_);
  if (fate == Fate::kLeaveOut) {
    for (const PageIndex page : pages) {
      if (page >= total_ || pages_[page].left_out) continue;
      pages_[page].left_out = true;
      ++left_out_;
      std::erase(empty_, page);
    }
  }
  if (sharing_ == Sharing::kNone) return dropped;
  for (const PageIndex page : pages) {
    if (page < total_ && index_.contains(page)) dropped[page] = true;
  }
  // Down to the root from each page: whoever comes to a dropped one is dropped, too.
  std::vector<PageIndex> way;
  for (PageIndex page = 0; page < total_; ++page) {
    if (!index_.contains(page)) continue;
    way.clear();
    PageIndex at = page;
    for (; at != kNone && !dropped[at]; at = index_.before(at))
      way.push_back(at);
    if (at == kNone) continue;
    for (const PageIndex follower : way)
      dropped[follower] = true;
  }
  // Empties each chain from its last page on.
  for (PageIndex page = 0; page < total_; ++page) {
    PageIndex at = page;
    while (at != kNone && dropped[at] && index_.contains(at) && index_.follower_count(at) == 0) {
      const PageIndex before = index_.before(at);
      index_.erase(at);
      if (states_ != nullptr) states_->left(at);
      if (ledger_ != nullptr) ledger_->left(at);
      if (pages_[at].users == 0) {
        unlink(at);
        if (!pages_[at].left_out) empty_.push_back(at);
      }
      at = before;
    }
  }
  return dropped;
}

void PagePool::make_idle(PageIndex page) {
  pages_[page].older = newest_;
  pages_[page].newer = kNone;
  (newest_ == kNone ? oldest_ : pages_[newest_].newer) = page;
  newest_ = page;
  ++idle_;
}

void PagePool::unlink(PageIndex page) {
  const Page& gone = pages_[page];
  (gone.older == kNone ? oldest_ : pages_[gone.older].newer) = gone.newer;
  (gone.newer == kNone ? newest_ : pages_[gone.newer].older) = gone.older;
  --idle_;
}

PageList::PageList(PageList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pages_(std::move(other.pages_)),
      shared_(std::exchange(other.shared_, 0)) {
  other.pages_.clear();
}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::move(other.pages_);
    shared_ = std::exchange(other.shared_, 0);
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
  if (needed - pages_.size() > pool_->free_pages()) return false;
  while (pages_.size() < needed)
    pages_.push_back(pool_->take());
  return true;
}

void PageList::clear() {
  // In reverse: empty pages are handed out again in the order they had, and of the shared ones the
  // last becomes the oldest.
  while (!pages_.empty()) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  shared_ = 0;
}

std::uint32_t PageList::adopt(std::span<const TokenId> tokens) {
  if (pool_->sharing_ == Sharing::kNone) return 0;
  const std::uint32_t had = shared_;
  for (auto wanted = next_page(tokens); !wanted.empty(); wanted = next_page(tokens)) {
    const auto found = pool_->index_.find(before(), wanted);
    if (!found) break;
    pool_->retain(*found);
    if (pool_->ledger_ != nullptr) pool_->ledger_->found(*found);
    replace(shared_++, *found);
  }
  return shared_ - had;
}

std::uint32_t PageList::adopt(std::span<const TokenId> tokens, const StateBook& states,
                              std::uint32_t& known) {
  known = shared_;
  if (pool_->sharing_ == Sharing::kNone) return 0;
  const std::size_t size = pool_->page_tokens();
  std::uint32_t taken = shared_;
  PageIndex at = before();
  while ((known + 1) * size <= tokens.size()) {
    const auto found = pool_->index_.find(at, tokens.subspan(known * size, size));
    if (!found) break;
    at = *found;
    ++known;
    if (states.has(at)) taken = known;
  }
  return adopt(tokens.first(taken * size));
}

void PageList::publish(std::span<const TokenId> tokens) {
  if (pool_->sharing_ == Sharing::kNone) return;
  for (auto full = next_page(tokens); !full.empty(); full = next_page(tokens)) {
    if (const auto known = pool_->index_.find(before(), full)) {
      pool_->retain(*known);
      if (pool_->ledger_ != nullptr) pool_->ledger_->found(*known);
      replace(shared_, *known);
    } else {
      pool_->index_.insert(pages_[shared_], before(), full);
      if (pool_->ledger_ != nullptr) pool_->ledger_->entered({pages_[shared_], before(), full, {}});
    }
    ++shared_;
  }
}

std::span<const TokenId> PageList::next_page(std::span<const TokenId> tokens) const {
  const std::size_t begin = std::size_t{shared_} * pool_->page_tokens();
  if (begin + pool_->page_tokens() > tokens.size()) return {};
  return tokens.subspan(begin, pool_->page_tokens());
}

void PageList::replace(std::uint32_t at, PageIndex page) {
  if (at == pages_.size()) {
    pages_.push_back(page);
  } else {
    pool_->release(std::exchange(pages_[at], page));
  }
}

}  // namespace bulkhead::engine

#include "worker/engine/kv_cache.hpp"

#include <algorithm>
#include <utility>

#include "worker/engine/state_book.hpp"

namespace bulkhead::engine {

namespace {

ExecutorLimits limits_of(std::uint32_t pages, std::uint32_t page_tokens) {
  ExecutorLimits limits;
  limits.total_pages = pages;
  limits.page_tokens = page_tokens;
  return limits;
}

}  // namespace

PagePool::PagePool(std::uint32_t pages, std::uint32_t page_tokens, Sharing sharing)
    : PagePool(limits_of(pages, page_tokens), sharing) {}

PagePool::PagePool(const ExecutorLimits& limits, Sharing sharing)
    : total_(limits.total_pages),
      slabs_(limits, PageKind::kFull),
      page_tokens_(limits.page_tokens == 0 ? 1 : limits.page_tokens),
      sharing_(sharing),
      empty_(total_, slabs_.always(), slabs_.slab_pages()),
      pages_(total_),
      links_(total_),
      index_(sharing == Sharing::kPrefixes ? total_ : 0, page_tokens_),
      windows_(limits, index_, sharing == Sharing::kPrefixes) {
  for (std::uint32_t page = slabs_.always(); page > 0; --page)
    empty_.push(page - 1);
}

EnteredPage PagePool::entry_of(PageIndex page) const {
  const PageIndex full = windows_.owns(page) ? windows_.full_page(page) : page;
  return {page, full == page ? index_.before(page) : full, index_.tokens(full), {}};
}

PageIndex PagePool::take() {
  PageIndex page = kNone;
  if (!empty_.empty()) {
    page = empty_.pop();
  } else {
    // The oldest page has no followers (see above). If that ever fails, it is better to keep an older page than to
    // find a follower after another page's tokens.
    page = idle_.oldest();
    while (index_.follower_count(page) != 0)
      page = idle_.newer(page);
    idle_.remove(page);
    windows_.leave(page);
    index_.erase(page);
    ++evictions_;
  }
  if (states_ != nullptr) states_->left(page);
  if (ledger_ != nullptr) ledger_->left(page);
  pages_[page].users = 1;
  return page;
}

void PagePool::retain(PageIndex page) {
  if (pages_[page].users++ == 0 && !slabs_.is_leaving(page)) idle_.remove(page);
}

void PagePool::release(PageIndex page) {
  if (--pages_[page].users > 0) return;
  if (pages_[page].left_out) return;
  if (slabs_.is_leaving(page)) {
    if (sharing_ == Sharing::kPrefixes && index_.contains(page))
      drop(std::span(&page, 1), Fate::kUseAgain);
    return;
  }
  if (sharing_ == Sharing::kNone || !index_.contains(page)) {
    empty_.push(page);
    return;
  }
  idle_.add(page);
}

std::uint32_t PagePool::adopt(std::span<const EnteredPage> pages) {
  if (sharing_ == Sharing::kNone || empty_.size() != present_pages()) return 0;
  std::vector<PageIndex> taken;
  for (const EnteredPage& each : pages) {
    if (windows_.owns(each.page)) continue;
    const bool sound =
        is_present(each.page) && !index_.contains(each.page) &&
        each.tokens.size() == page_tokens_ &&
        (each.before == kNone || (each.before < total_ && index_.contains(each.before))) &&
        !index_.find(each.before, each.tokens);
    if (sound) {
      index_.insert(each.page, each.before, each.tokens);
      taken.push_back(each.page);
    } else if (ledger_ != nullptr && each.page < total_ && !index_.contains(each.page)) {
      ledger_->left(each.page);
    }
  }
  // A page that follows another one is older than that one (see above).
  for (auto page = taken.rbegin(); page != taken.rend(); ++page)
    idle_.add(*page);
  static_cast<void>(empty_.take_if([this](PageIndex page) { return index_.contains(page); }));
  windows_.adopt(pages);
  return static_cast<std::uint32_t>(taken.size());
}

std::uint32_t PagePool::withhold(std::span<const PageIndex> pages) {
  std::vector<bool> wanted(all_pages());
  for (const PageIndex page : pages) {
    if (page < wanted.size()) wanted[page] = true;
  }
  // The pages keep their order, so that they come back in the same order.
  const std::vector<PageIndex> taken = empty_.take_if([&](PageIndex page) { return wanted[page]; });
  withheld_.insert(withheld_.end(), taken.begin(), taken.end());
  windows_.withhold(wanted);
  return static_cast<std::uint32_t>(withheld_.size()) + windows_.withheld();
}

void PagePool::settle() {
  std::erase_if(withheld_, [this](PageIndex page) { return pages_[page].left_out; });
  for (const PageIndex page : withheld_)
    empty_.push(page);
  withheld_.clear();
  windows_.settle();
}

std::vector<bool> PagePool::drop(std::span<const PageIndex> pages, Fate fate) {
  std::vector<bool> dropped(total_), kept(total_);
  if (fate == Fate::kLeaveOut) {
    for (const PageIndex page : pages) {
      if (windows_.owns(page)) windows_.leave_out(page);
      if (page >= total_ || pages_[page].left_out) continue;
      pages_[page].left_out = true;
      ++left_out_;
      static_cast<void>(empty_.take_if([page](PageIndex each) { return each == page; }));
    }
  }
  if (sharing_ == Sharing::kNone) return dropped;
  for (const PageIndex page : pages) {
    const PageIndex full = windows_.owns(page) ? windows_.full_page(page) : page;
    if (full < total_ && index_.contains(full)) dropped[full] = true;
  }
  // Goes from each page to the root: a page that leads to a dropped page is dropped, too.
  std::vector<PageIndex> way;
  for (PageIndex page = 0; page < total_; ++page) {
    if (!index_.contains(page)) continue;
    way.clear();
    PageIndex at = page;
    for (; at != kNone && !dropped[at] && !kept[at]; at = index_.before(at))
      way.push_back(at);
    std::vector<bool>& fate_of_way = at == kNone || kept[at] ? kept : dropped;
    for (const PageIndex follower : way)
      fate_of_way[follower] = true;
  }
  // Empties each chain, beginning with its last page.
  for (PageIndex page = 0; page < total_; ++page) {
    PageIndex at = page;
    while (at != kNone && dropped[at] && index_.contains(at) && index_.follower_count(at) == 0) {
      const PageIndex before = index_.before(at);
      windows_.leave(at);
      index_.erase(at);
      if (states_ != nullptr) states_->left(at);
      if (ledger_ != nullptr) ledger_->left(at);
      if (pages_[at].users == 0 && !slabs_.is_leaving(at)) {
        idle_.remove(at);
        if (!pages_[at].left_out) empty_.push(at);
      }
      at = before;
    }
  }
  return dropped;
}

bool PagePool::can_leave_out(std::span<const PageIndex> pages, std::uint32_t least) const {
  const auto of_windows = static_cast<std::uint32_t>(
      std::ranges::count_if(pages, [this](PageIndex page) { return windows_.owns(page); }));
  const auto full = static_cast<std::uint32_t>(pages.size()) - of_windows;
  const std::uint32_t least_windows = std::min(least, windows_.reserve());
  return least + left_out_ + full <= present_pages() &&
         least_windows + windows_.pages_left_out() + of_windows <= windows_.present_pages();
}

PageList::PageList(PageList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pages_(std::exchange(other.pages_, {})),
      windows_(std::exchange(other.windows_, {})),
      shared_(std::exchange(other.shared_, 0)) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::exchange(other.pages_, {});
    windows_ = std::exchange(other.windows_, {});
    shared_ = std::exchange(other.shared_, 0);
  }
  return *this;
}

void PageList::reserve(std::uint32_t positions) {
  pages_.reserve(pool_->pages_for(positions));
  if (pool_->windows_.exists()) windows_.reserve(pool_->pages_for(positions));
}

bool PageList::cover(std::uint32_t positions) {
  const std::uint32_t needed = pool_->pages_for(positions);
  if (needed <= pages_.size()) return true;
  if (needed - pages_.size() > pool_->free_pages()) return false;
  while (pages_.size() < needed)
    pages_.push_back(pool_->take());
  return true;
}

bool PageList::cover_windows(std::uint32_t positions) {
  return windows_.cover(pool_->pages_for(positions));
}

bool PageList::cover_all(std::uint32_t positions) {
  return cover(positions) && cover_windows(positions);
}

std::uint64_t PageList::covered() const {
  const std::size_t pages = pool_->windows_.exists()
                                ? std::min<std::size_t>(pages_.size(), windows_.end())
                                : pages_.size();
  return std::uint64_t{pages} * pool_->page_tokens();
}

void PageList::clear() {
  windows_.clear();
  // In reverse, so that empty pages are handed out again in the order that they had, and the last of the shared pages
  // becomes the oldest.
  while (!pages_.empty()) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  shared_ = 0;
}

std::uint32_t PageList::reuse(std::span<const TokenId> tokens) {
  if (pool_->sharing_ == Sharing::kNone) return 0;
  std::uint32_t known = 0;
  return pool_->windows_.exists() ? reuse(tokens, nullptr, known) : reuse_full(tokens);
}

std::uint32_t PageList::reuse_full(std::span<const TokenId> tokens) {
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

std::uint32_t PageList::reuse(std::span<const TokenId> tokens, const StateBook* states,
                              std::uint32_t& known) {
  known = shared_;
  if (pool_->sharing_ == Sharing::kNone) return 0;
  const WindowPool& windows = pool_->windows_;
  const std::size_t size = pool_->page_tokens();
  const std::uint32_t had = shared_;
  std::uint32_t taken = shared_;
  // From this index up to page `known`, the list has all window pages, or can find them.
  std::uint32_t gapless_from = windows_.from();
  PageIndex at = before();
  while ((known + 1) * size <= tokens.size()) {
    const auto found = pool_->index_.find(at, tokens.subspan(known * size, size));
    if (!found) break;
    at = *found;
    ++known;
    if (windows.exists() && windows.of(at) == kNoPage) gapless_from = known;
    const bool seen = gapless_from <= windows.first_seen(static_cast<std::uint32_t>(known * size));
    if (seen && (states == nullptr || states->has(at))) taken = known;
  }
  reuse_full(tokens.first(taken * size));
  if (windows.exists() && taken > had) reuse_windows(had);
  return taken - had;
}

// Reuses the window pages of the shared pages from index `had` on, as far as a window after
// them sees them.
void PageList::reuse_windows(std::uint32_t had) {
  const std::uint32_t seen = pool_->windows_.first_seen(shared_positions());
  for (std::uint32_t at = std::max(had, seen); at < shared_; ++at)
    windows_.reuse(at, pages_[at]);
  windows_.begin_behind(shared_);
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
    if (const PageIndex window = windows_.at(shared_); window != kNoPage)
      pool_->windows_.enter(pages_[shared_], window);
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

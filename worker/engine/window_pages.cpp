#include "worker/engine/window_pages.hpp"

#include <utility>

#include "worker/engine/kv_cache.hpp"
#include "worker/engine/prefix_index.hpp"

namespace bulkhead::engine {

WindowPool::WindowPool(const ExecutorLimits& limits, const PrefixIndex& index, bool shares)
    : first_(limits.total_pages),
      page_tokens_(std::max(1U, limits.page_tokens)),
      window_(limits.window),
      reserve_(limits.window > 0 ? window_reserve(limits.window, page_tokens_) : 0),
      shares_(shares),
      index_(index),
      slabs_(limits, PageKind::kWindow),
      pages_(limits.window > 0 ? limits.window_pages : 0),
      links_(pages_.size()),
      passing_(links_, first_),
      likely_(links_, first_),
      empty_(total_pages(), slabs_.always(), slabs_.slab_pages()),
      of_full_(window_ > 0 && shares ? limits.total_pages : 0, kNoPage) {
  for (PageIndex i = std::min(slabs_.always(), total_pages()); i > 0; --i)
    empty_.push(i - 1);
}

PageIndex WindowPool::take() {
  PageIndex page = kNoPage;
  if (!empty_.empty()) {
    page = first_ + empty_.pop();
  } else {
    page = passing_.size() > 0 ? passing_.oldest() : likely_.oldest();
    idle_of(at(page)).remove(page);
    detach(page);
    ++evictions_;
  }
  if (ledger_ != nullptr) ledger_->left(page);
  at(page).users = 1;
  return page;
}

void WindowPool::retain(PageIndex page) {
  Page& kept = at(page);
  if (kept.users++ == 0 && !slabs_.is_leaving(page)) idle_of(kept).remove(page);
}

void WindowPool::release(PageIndex page, bool likely) {
  Page& freed = at(page);
  if (--freed.users > 0 || freed.left_out) return;
  if (slabs_.is_leaving(page)) {
    if (freed.full != kNoPage) forget(page);
    return;
  }
  if (freed.full == kNoPage) return empty_.push(page - first_);
  freed.likely = likely;
  idle_of(freed).add(page);
}

void WindowPool::detach(PageIndex page) {
  Page& gone = at(page);
  of_full_[std::exchange(gone.full, kNoPage)] = kNoPage;
  --cached_;
}

// The page can't be found any more.
void WindowPool::forget(PageIndex page) {
  detach(page);
  if (ledger_ != nullptr) ledger_->left(page);
}

void WindowPool::enter(PageIndex full, PageIndex page) {
  if (!shares_ || of_full_[full] != kNoPage || at(page).full != kNoPage) return;
  of_full_[full] = page;
  at(page).full = full;
  ++cached_;
  if (ledger_ != nullptr) ledger_->entered({page, full, index_.tokens(full), {}});
}

void WindowPool::leave(PageIndex full) {
  const PageIndex page = of(full);
  if (page == kNoPage) return;
  forget(page);
  Page& gone = at(page);
  if (gone.users > 0) return;
  idle_of(gone).remove(page);
  if (!gone.left_out) empty_.push(page - first_);
}

void WindowPool::adopt(std::span<const EnteredPage> pages) {
  for (const EnteredPage& each : pages) {
    if (!owns(each.page) || at(each.page).full != kNoPage) continue;
    const bool belongs = shares_ && slabs_.is_present(each.page) && each.before < of_full_.size() &&
                         of_full_[each.before] == kNoPage && index_.contains(each.before) &&
                         std::ranges::equal(index_.tokens(each.before), each.tokens);
    if (!belongs) {
      if (ledger_ != nullptr) ledger_->left(each.page);
      continue;
    }
    of_full_[each.before] = each.page;
    at(each.page).full = each.before;
    ++cached_;
  }
  static_cast<void>(empty_.take_if([this](PageIndex i) { return at(first_ + i).full != kNoPage; }));
  line_up(pages);
}

// Returns the ends of the adopted chains of full pages, and the pages where chains part. Where window pages are
// missing, a chain ends at the last full page after which a sequence can go on.
std::vector<WindowPool::End> WindowPool::ends_among(std::span<const EnteredPage> adopted) const {
  struct Place {
    std::uint32_t pages = 0;    // up to this full page, which they include
    std::uint32_t gapless = 0;  // how many of the last ones have their window pages
    End end;                    // the last one so far
  };
  std::vector<Place> places(of_full_.size());
  std::vector<End> ends;
  for (const EnteredPage& each : adopted) {  // each comes after the one before it
    if (owns(each.page) || each.page >= places.size() || !index_.contains(each.page)) continue;
    const PageIndex before = index_.before(each.page);
    Place& place = places[each.page] = before == kNoPage ? Place() : places[before];
    ++place.pages;
    place.gapless = of(each.page) == kNoPage ? 0 : place.gapless + 1;
    const std::uint32_t seen = place.pages - first_seen(place.pages * page_tokens_);
    if (place.gapless >= seen) place.end = {each.page, seen};
    if (index_.follower_count(each.page) != 1) ends.push_back(place.end);
  }
  return ends;
}

// Puts adopted pages into the lists of idle ones. The predecessor's sequences come back one after another, and each
// takes a few further pages. These must not be pages that the others need, so pages that no end's window sees are
// emptied first, and those that a sequence needs if it has lost its last pages come after them. The pages of a window
// lie next to each other in their list: a sequence that takes several pages spoils one window, not many.
void WindowPool::line_up(std::span<const EnteredPage> adopted) {
  if (cached_ == 0) return;
  std::vector<End> ends = ends_among(adopted);
  std::vector<bool> placed(pages_.size());
  std::vector<PageIndex> likely, behind;
  const auto place = [&](PageIndex page, std::vector<PageIndex>& line) {
    if (page == kNoPage || placed[page - first_]) return;
    placed[page - first_] = true;
    line.push_back(page);
  };
  for (End& end : ends) {
    for (; end.seen > 0; --end.seen, end.full = index_.before(end.full))
      place(of(end.full), likely);
  }
  for (std::uint32_t i = 0; i < kPagesBehindWindow; ++i) {
    for (End& end : ends) {
      if (end.full == kNoPage) continue;
      place(of(end.full), behind);
      end.full = index_.before(end.full);
    }
  }
  std::vector<PageIndex> passed;
  for (const EnteredPage& each : adopted) {
    if (owns(each.page) && full_page(each.page) != kNoPage) place(each.page, passed);
  }
  passed.insert(passed.end(), behind.rbegin(), behind.rend());
  for (const PageIndex page : passed)
    passing_.add(page);
  for (const PageIndex page : likely) {
    at(page).likely = true;
    likely_.add(page);
  }
}

void WindowPool::withhold(const std::vector<bool>& wanted) {
  for (const PageIndex i : empty_.take_if([&](PageIndex i) { return wanted[first_ + i]; }))
    withheld_.push_back(first_ + i);
}

void WindowPool::settle() {
  std::erase_if(withheld_, [this](PageIndex page) { return at(page).left_out; });
  for (const PageIndex page : withheld_)
    empty_.push(page - first_);
  withheld_.clear();
}

bool WindowPool::leave_out(PageIndex page) {
  if (std::exchange(at(page).left_out, true)) return false;
  ++left_out_;
  static_cast<void>(empty_.take_if([&](PageIndex i) { return first_ + i == page; }));
  return true;
}

bool WindowList::cover(std::uint32_t end) {
  if (!pool_->exists() || end <= pages_.size()) return true;
  if (end - pages_.size() > pool_->free_pages()) return false;
  while (pages_.size() < end)
    pages_.push_back(pool_->take());
  return true;
}

void WindowList::slide(std::uint32_t position, std::span<const std::uint32_t> ends) {
  if (!pool_->exists()) return;
  const std::uint32_t seen = pool_->first_seen(position);
  const std::uint32_t from = std::min(seen - std::min(seen, kPagesBehindWindow), end());
  for (; from_ < from; ++from_) {
    const bool likely = std::ranges::any_of(ends, [this](std::uint32_t end) {
      return from_ < end && pool_->first_seen(end * pool_->page_tokens_) <= from_;
    });
    pool_->release(std::exchange(pages_[from_], kNoPage), likely);
  }
}

void WindowList::reuse(std::uint32_t index, PageIndex full) {
  if (index >= pages_.size()) pages_.resize(index + 1, kNoPage);
  const PageIndex page = pool_->of(full);
  pool_->retain(page);
  if (pool_->ledger_ != nullptr) pool_->ledger_->found(page);
  if (pages_[index] != kNoPage) pool_->release(pages_[index], false);
  pages_[index] = page;
}

void WindowList::begin_behind(std::uint32_t end) {
  const std::uint32_t from = pool_->first_seen(end * pool_->page_tokens_);
  if (pages_.size() < end) pages_.resize(end, kNoPage);
  for (; from_ < from; ++from_) {
    if (pages_[from_] != kNoPage) pool_->release(std::exchange(pages_[from_], kNoPage), false);
  }
}

void WindowList::clear() {
  // Releases the last page first, like PageList.
  while (end() > from_) {
    pool_->release(pages_.back(), true);
    pages_.pop_back();
  }
  pages_.clear();
  from_ = 0;
}

}  // namespace bulkhead::engine

#include "worker/engine/page_slabs.hpp"

#include <algorithm>
#include <span>

#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {
namespace {

// Returns how many of a slab's pages are in use; nothing if one of them is left out, because the slab then stays.
template <typename Page>
std::optional<std::uint32_t> used_in_slab(std::span<const Page> pages) {
  if (std::ranges::any_of(pages, &Page::left_out)) return std::nullopt;
  return static_cast<std::uint32_t>(
      std::ranges::count_if(pages, [](const Page& page) { return page.users > 0; }));
}

}  // namespace

PageSlabs::PageSlabs(const ExecutorLimits& limits, PageKind kind)
    : first_page_(kind == PageKind::kFull ? 0 : limits.total_pages),
      always_(kind == PageKind::kFull ? limits.pages_at_first() : limits.window_pages_at_first()),
      slab_pages_(kind == PageKind::kFull ? limits.slab_pages : limits.window_slab_pages),
      first_number_(kind == PageKind::kFull ? 0 : limits.slabs()),
      states_(kind == PageKind::kFull ? limits.slabs() : limits.window_slabs()) {}

std::uint32_t PageSlabs::present() const {
  return static_cast<std::uint32_t>(std::ranges::count(states_, State::kPresent));
}

std::optional<std::uint32_t> PageSlabs::absent() const {
  const auto slab = std::ranges::find(states_, State::kAbsent);
  if (slab == states_.end()) return std::nullopt;
  return first_number_ + static_cast<std::uint32_t>(slab - states_.begin());
}

void PageSlabs::add(std::uint32_t slab) {
  if (leaving_ == slab) leaving_.reset();
  at(slab) = State::kPresent;
}

std::span<const PagePool::Page> PagePool::pages_of(std::uint32_t slab) const {
  return std::span(pages_).subspan(slabs_.begin_of(slab), slabs_.slab_pages());
}

std::uint32_t PagePool::slabs_there() const {
  std::uint32_t there = slabs_present();
  for (const PageKind kind : kPageKinds)
    there += slabs(kind).leaving() ? 1 : 0;
  return there;
}

std::optional<std::uint32_t> PagePool::absent_slab(PageKind kind) const {
  return slabs_there() < slabs_.count() ? slabs(kind).absent() : std::nullopt;
}

void PagePool::add_slab(std::uint32_t slab) {
  if (windows_.slabs().owns(slab)) return windows_.add_slab(slab);
  slabs_.add(slab);
  const PageIndex first = slabs_.begin_of(slab);
  for (PageIndex page = first + slabs_.slab_pages(); page > first; --page) {
    if (pages_[page - 1].users == 0 && !pages_[page - 1].left_out) empty_.push(page - 1);
  }
}

void PagePool::let_slab_leave(PageKind kind) {
  if (kind == PageKind::kWindow) return windows_.let_slab_leave();
  if (!withheld_.empty()) return;
  const std::optional<std::uint32_t> slab =
      slabs_.let_leave([this](std::uint32_t number) { return used_in_slab(pages_of(number)); });
  if (!slab) return;
  const PageIndex first = slabs_.begin_of(*slab);
  std::vector<PageIndex> unused;
  for (PageIndex page = first; page < first + slabs_.slab_pages(); ++page) {
    if (pages_[page].users > 0 || sharing_ == Sharing::kNone || !index_.contains(page)) continue;
    idle_.remove(page);  // drop() leaves the lists of a slab that leaves alone
    unused.push_back(page);
  }
  empty_.take_slab(slabs_.place_of(*slab));
  if (!unused.empty()) drop(unused, Fate::kUseAgain);
}

std::optional<std::uint32_t> PagePool::slab_that_left() {
  const std::optional<std::uint32_t> slab =
      slabs_.that_left([this](std::uint32_t number) { return used_in_slab(pages_of(number)); },
                       [this](std::uint32_t number) { add_slab(number); });
  return slab ? slab : windows_.slab_that_left();
}

std::span<const WindowPool::Page> WindowPool::pages_of(std::uint32_t slab) const {
  return std::span(pages_).subspan(slabs_.begin_of(slab) - first_, slabs_.slab_pages());
}

void WindowPool::add_slab(std::uint32_t slab) {
  slabs_.add(slab);
  const PageIndex first = slabs_.begin_of(slab);
  for (PageIndex page = first + slabs_.slab_pages(); page > first; --page) {
    if (at(page - 1).users == 0 && !at(page - 1).left_out) empty_.push(page - 1 - first_);
  }
}

void WindowPool::let_slab_leave() {
  if (!withheld_.empty()) return;
  const std::optional<std::uint32_t> slab =
      slabs_.let_leave([this](std::uint32_t number) { return used_in_slab(pages_of(number)); });
  if (!slab) return;
  const PageIndex first = slabs_.begin_of(*slab);
  for (PageIndex page = first; page < first + slabs_.slab_pages(); ++page) {
    if (at(page).users > 0 || at(page).full == kNoPage) continue;
    idle_of(at(page)).remove(page);
    forget(page);
  }
  empty_.take_slab(slabs_.place_of(*slab));
}

std::optional<std::uint32_t> WindowPool::slab_that_left() {
  return slabs_.that_left([this](std::uint32_t number) { return used_in_slab(pages_of(number)); },
                          [this](std::uint32_t number) { add_slab(number); });
}

}  // namespace bulkhead::engine

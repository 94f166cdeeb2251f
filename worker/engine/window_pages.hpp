// Records the use of the pages of layers that see a sliding window of positions (ExecutorLimits::window). Such layers
// have separate pages, called window pages here. So a sequence can release window pages that its window has passed,
// and keep its full pages: those of the layers that see every position. A window page is in one of three states:
//
//     empty     nobody uses it, and it cannot be found
//     used      one or several WindowLists use it
//     idle      nobody uses it, but it belongs to a full page that can be found by its tokens
//
// A window page whose positions are all computed belongs to the full page of the same positions
// (enter()). A sequence that reuses full pages up to some position also reuses the window
// pages that a window ending there sees. If one of these is missing, the sequence reuses fewer
// pages (PageList::reuse). Before a full page leaves the index, its window page does.
//
// When no empty page is left, the pool empties idle ones, longest unused first. It begins with pages that a sequence
// left behind on its way; pages at an end from where other sequences are likely to continue come last. A successor
// sorts the pages that it adopts in the same way (line_up()), because the streams of the dead process come back one
// after another.
//
// If the cache grows, window pages have slabs of their own (page_slabs.hpp).
//
// Not thread-safe: only the engine's thread calls this. Nothing here allocates memory after
// construction and WindowList::reserve().
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/engine/empty_pages.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/idle_pages.hpp"
#include "worker/engine/page_slabs.hpp"

namespace bulkhead::engine {

class PageLedger;
class PrefixIndex;
struct EnteredPage;

class WindowPool {
 public:
  // The pool has the pages [limits.total_pages, limits.total_pages + limits.window_pages). `index` finds the full
  // pages and must outlive the pool. If limits.window is 0, the pool has no pages, and nobody asks for one.
  WindowPool(const ExecutorLimits& limits, const PrefixIndex& index, bool shares);
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;

  bool exists() const { return window_ > 0; }
  std::uint32_t total_pages() const {  // absent ones included
    return static_cast<std::uint32_t>(pages_.size());
  }
  std::uint32_t present_pages() const { return slabs_.present_pages(); }
  bool owns(PageIndex page) const { return page >= first_ && page - first_ < pages_.size(); }
  // Returns how many pages a list can get: the empty and the idle ones.
  std::uint32_t free_pages() const { return unlikely_pages() + likely_.size(); }
  // Returns how many of these no other sequence is likely to reuse.
  std::uint32_t unlikely_pages() const { return empty_.size() + passing_.size(); }
  std::uint32_t used_pages() const { return present_pages() - free_pages(); }
  // Returns how many pages, used and idle, can be found with their full pages.
  std::uint32_t cached_pages() const { return cached_; }
  std::uint64_t evictions() const { return evictions_; }
  std::uint32_t users(PageIndex page) const { return pages_[page - first_].users; }

  // Returns the index, among a sequence's pages, of the first page that a column at `position`
  // sees.
  std::uint32_t first_seen(std::uint32_t position) const {
    return (position + 1 - std::min(position + 1, window_)) / page_tokens_;
  }
  // Returns the number of pages that a long sequence needs to continue (window_reserve()).
  std::uint32_t reserve() const { return reserve_; }

  // Returns the window page that belongs to a full page, or the reverse; kNoPage if there is none.
  PageIndex of(PageIndex full) const { return of_full_.empty() ? kNoPage : of_full_[full]; }
  PageIndex full_page(PageIndex page) const { return pages_[page - first_].full; }

  // Makes `page` belong to `full`, which has the same positions. `page` must be in use, and it must
  // be possible to find `full`. If another page belongs to `full` already, nothing changes: both
  // have the same bits.
  void enter(PageIndex full, PageIndex page);
  // Call this when `full` is about to leave the index: its window page can't be found any more.
  void leave(PageIndex full);
  // Adopts a predecessor's pages; no list may have pages yet. EnteredPage::before names the full page
  // that a page belongs to. The pool leaves out pages without such a full page, and takes them out of
  // the ledger.
  void adopt(std::span<const EnteredPage> pages);

  // See PagePool.
  const PageSlabs& slabs() const { return slabs_; }
  void add_slab(std::uint32_t slab);
  void let_slab_leave();
  std::optional<std::uint32_t> slab_that_left();

  // See PagePool::withhold().
  void withhold(const std::vector<bool>& wanted);
  std::uint32_t withheld() const { return static_cast<std::uint32_t>(withheld_.size()); }
  void settle();
  // Never hands the page out again. Returns false if the page was already left out.
  bool leave_out(PageIndex page);
  std::uint32_t pages_left_out() const { return left_out_; }
  void set_ledger(PageLedger* ledger) { ledger_ = ledger; }

 private:
  friend class WindowList;
  struct Page {
    std::uint32_t users = 0;
    PageIndex full = kNoPage;  // the full page that it belongs to
    bool likely = false;       // which of the two lists it is in while idle
    bool left_out = false;
  };
  // A full page after which a sequence can go on, and how many window pages it then sees.
  struct End {
    PageIndex full = kNoPage;
    std::uint32_t seen = 0;
  };
  Page& at(PageIndex page) { return pages_[page - first_]; }
  IdlePages& idle_of(const Page& page) { return page.likely ? likely_ : passing_; }
  PageIndex take();  // needs free_pages() > 0
  void retain(PageIndex page);
  // `likely`: other sequences are likely to continue from this page's positions.
  void release(PageIndex page, bool likely);
  void detach(PageIndex page);
  void forget(PageIndex page);
  std::vector<End> ends_among(std::span<const EnteredPage> adopted) const;
  void line_up(std::span<const EnteredPage> adopted);
  std::span<const Page> pages_of(std::uint32_t slab) const;

  PageIndex first_;
  std::uint32_t page_tokens_, window_, reserve_;
  bool shares_;
  const PrefixIndex& index_;
  PageSlabs slabs_;
  std::vector<Page> pages_;
  std::vector<IdleLinks> links_;
  IdlePages passing_, likely_;
  EmptyPages empty_;                 // without first_
  std::vector<PageIndex> withheld_;  // as in PagePool
  std::vector<PageIndex> of_full_;
  std::uint32_t cached_ = 0, left_out_ = 0;
  std::uint64_t evictions_ = 0;
  PageLedger* ledger_ = nullptr;
};

// The window pages of one sequence; a PageList owns this list. The sequence has released the pages
// before from().
class WindowList {
 public:
  WindowList() = default;
  explicit WindowList(WindowPool& pool) : pool_(&pool) {}

  void reserve(std::uint32_t pages) { pages_.reserve(pages); }
  // The two indices are among the sequence's pages.
  std::uint32_t from() const { return from_; }
  std::uint32_t end() const { return static_cast<std::uint32_t>(pages_.size()); }
  PageIndex at(std::uint32_t index) const {
    return index < pages_.size() ? pages_[index] : kNoPage;
  }
  WindowPages pages() const { return {from_, std::span(pages_).subspan(from_)}; }

  // Takes pages up to index `end`. Returns false and takes none if too few are free.
  [[nodiscard]] bool cover(std::uint32_t end);
  // Releases pages that no column from `position` on sees. `ends` has the indices of pages from where other sequences
  // are likely to continue. A page counts as likely if a window that ends at one of them sees it.
  void slide(std::uint32_t position, std::span<const std::uint32_t> ends);
  // Puts the window page of `full` at `index`, in place of the list's own page there, if any.
  void reuse(std::uint32_t index, PageIndex full);
  // Sets from() as for a sequence that goes on after page `end`. The list must have the pages up to
  // `end` already.
  void begin_behind(std::uint32_t end);
  void clear();

 private:
  WindowPool* pool_ = nullptr;
  std::vector<PageIndex> pages_;  // by index; kNoPage for those before from_
  std::uint32_t from_ = 0;
};

}  // namespace bulkhead::engine

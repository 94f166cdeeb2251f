// Records which sequences use which pages of the KV cache. The executor owns the pages themselves; here a page is a
// number.
//
// A page holds the keys and values of `page_tokens` consecutive positions. Every page is in one of
// four states:
//
//     empty    nobody uses it, and it cannot be found
//     used     by one PageList, or, when it is full and shared, by several
//     idle     nobody uses it, but it is full and can be found by its tokens: a prompt that begins with
//              them can use it. When no empty page is left, the idle page that was used longest ago is
//              emptied; so idle pages count as free.
//     absent   the page's slab has no memory now (ExecutorLimits::slab_pages)
//
// A cache that grows has a first part, which is always there, and further pages in slabs (page_slabs.hpp). The engine
// adds a slab when pages run out, and gives one back when fewer pages have sufficed for some time. Empty pages of
// lower slabs are handed out first.
//
// Only full pages are shared, and nobody writes to a full page again, so pages are never copied. Equal tokens from
// position 0 on make pages that are equal to the last bit, whichever sequence computed them and in whatever batches
// or chunks (the executor's contract: one order of additions for all columns). If kernels that differ in a bit ever
// computed prompts and generated positions, a page would also have to be identified by its kernel.
//
// Layers with a sliding window keep their keys and values in separate pages (window_pages.hpp). A page here (a full
// page) then holds the keys and values of the other layers. A full page and its window page together count as one
// page.
//
// A list that uses a page uses all pages before it, and it releases the last page first. So an idle page was released
// before the idle pages that it follows, and is emptied before them: a page is never emptied while a page after it
// can still be found.
//
// Not thread-safe: only the engine's thread calls this. Nothing here but drop() and slabs that leave allocates memory
// after construction and reserve().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/engine/empty_pages.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/idle_pages.hpp"
#include "worker/engine/page_slabs.hpp"
#include "worker/engine/prefix_index.hpp"
#include "worker/engine/window_pages.hpp"

namespace bulkhead::engine {

class StateBook;

enum class Sharing : std::uint8_t { kNone, kPrefixes };

// A full page that can be found by its tokens. Ledgers record such pages, and a successor adopts
// them.
struct EnteredPage {
  PageIndex page = 0;
  // The page before it. For a window page this is the full page that it belongs to.
  PageIndex before = PrefixIndex::kRoot;
  std::span<const TokenId> tokens;  // the page's tokens
  PageSum sum{};                    // zeros until the sum has been computed
};

// Records which pages can be found by their tokens. It also gets each page that is handed out, before any step may
// write to that page. So if the process dies, the steps that the device still runs can write only to pages that were
// handed out and have not been entered since.
class PageLedger {
 public:
  virtual ~PageLedger() = default;
  virtual void entered(const EnteredPage& page) = 0;
  virtual void left(PageIndex page) = 0;     // it may be written to from now on
  virtual void found(PageIndex /*page*/) {}  // a list reuses it
  // A slab of pages has got memory, or its memory is about to be given back; all its pages have left.
  virtual void slab_added(std::uint32_t /*slab*/) {}
  virtual void slab_returned(std::uint32_t /*slab*/) {}
};

class PagePool {
 public:
  PagePool(std::uint32_t pages, std::uint32_t page_tokens, Sharing sharing = Sharing::kNone);
  // If the limits say so, the pool also has window pages.
  PagePool(const ExecutorLimits& limits, Sharing sharing);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const WindowPool& windows() const { return windows_; }
  // Window pages are numbered after the full ones.
  std::uint32_t all_pages() const { return total_ + windows_.total_pages(); }
  // Returns the ledger's entry for a page of either kind that can be found.
  EnteredPage entry_of(PageIndex page) const;
  bool can_be_found(PageIndex page) const {
    return windows_.owns(page) ? windows_.full_page(page) != kNoPage
                               : page < total_ && index_.contains(page);
  }

  // Below, a page is a full one unless the comment says otherwise.
  std::uint32_t page_tokens() const { return page_tokens_; }
  std::uint32_t total_pages() const { return total_; }  // absent ones included
  std::uint32_t present_pages() const { return slabs_.present_pages(); }
  // Returns the number of empty and idle pages, which cover() can hand out.
  std::uint32_t free_pages() const { return empty_.size() + idle_.size(); }
  std::uint32_t empty_pages() const { return empty_.size(); }
  std::uint32_t used_pages() const { return present_pages() - free_pages(); }
  // Returns the positions of the pages that are always there.
  std::uint64_t total_positions() const { return std::uint64_t{slabs_.always()} * page_tokens_; }
  // Returns the number of pages that hold positions [0, positions).
  std::uint32_t pages_for(std::uint32_t positions) const {
    return positions / page_tokens_ + (positions % page_tokens_ != 0 ? 1 : 0);
  }

  // Returns the number of pages that can be found by their tokens, used and idle.
  std::uint32_t cached_pages() const { return index_.size(); }
  // Returns how many idle pages were emptied because a sequence needed one.
  std::uint64_t evictions() const { return evictions_; }
  std::uint32_t users(PageIndex page) const { return pages_[page].users; }

  // Sets the ledger for pages of both kinds from now on; null: none. The ledger must outlive the pool.
  void set_ledger(PageLedger* ledger) {
    ledger_ = ledger;
    windows_.set_ledger(ledger);
  }
  // Sets the book that must forget the states after emptied pages; null: there are none. It must outlive the pool.
  void set_states(StateBook* states) { states_ = states; }
  // Adopts pages of both kinds that were computed before this pool existed; each must come after
  // its EnteredPage::before. They are idle from now on and can be found. Call it while every page is
  // empty. Returns how many full pages it took, and takes the others out of the ledger.
  std::uint32_t adopt(std::span<const EnteredPage> pages);
  // Withholds empty pages of both kinds to which a dead predecessor's steps may still write. No
  // sequence gets these pages before settle(), and they count as used. Returns how many it
  // withholds.
  std::uint32_t withhold(std::span<const PageIndex> pages);
  void settle();
  const PrefixIndex& index() const { return index_; }

  // ---- Slabs. Full pages and window pages have slabs of their own. ExecutorLimits::window_slab_pages says how the
  // slabs of both kinds are numbered.
  bool is_present(PageIndex page) const {
    return windows_.owns(page) ? windows_.slabs().is_present(page)
                               : page < total_ && slabs_.is_present(page);
  }
  const PageSlabs& slabs(PageKind kind) const {
    return kind == PageKind::kFull ? slabs_ : windows_.slabs();
  }
  std::uint32_t slabs_present() const { return slabs_.present() + windows_.slabs().present(); }
  // Returns how many slabs are present or leaving.
  std::uint32_t slabs_there() const;
  // Returns the lowest slab of this kind that has no memory, if there is one and one more may have memory.
  std::optional<std::uint32_t> absent_slab(PageKind kind) const;
  // The slab's pages have memory from now on, and can be handed out.
  void add_slab(std::uint32_t slab);
  // A slab leaves in two steps, so that it can leave while pages of it are in use. let_slab_leave() chooses the one
  // that is used least: none of its pages is handed out any more. Its unused pages can't be found any more, and neither
  // can the pages that follow them. Once no list uses a page of the slab, slab_that_left() returns the slab, and its
  // pages are absent. Only one slab of a kind leaves at a time; add_slab() takes it back. A slab with a page that is
  // left out stays, because another page must not get that memory.
  void let_slab_leave(PageKind kind);
  std::optional<std::uint32_t> slab_that_left();

  // Makes these pages, and every page that follows one of them in the cache, impossible to find: what was computed
  // after an untrusted page can't be trusted either. kLeaveOut: the given pages are also never handed out again.
  // Lists that hold one of the pages must be cleared before they publish anything. A window page is dropped with the
  // full page that it belongs to. Returns for each full page whether it was dropped.
  enum class Fate : std::uint8_t { kUseAgain, kLeaveOut };
  std::vector<bool> drop(std::span<const PageIndex> pages, Fate fate);
  std::uint32_t pages_left_out(PageKind kind) const {
    return kind == PageKind::kFull ? left_out_ : windows_.pages_left_out();
  }
  // Returns whether at least `least` full pages, and the window pages that a sequence needs, remain if these pages
  // are left out.
  bool can_leave_out(std::span<const PageIndex> pages, std::uint32_t least) const;

 private:
  friend class PageList;
  static constexpr PageIndex kNone = PrefixIndex::kRoot;
  struct Page {
    std::uint32_t users = 0;
    bool left_out = false;
  };
  PageIndex take();  // free_pages() > 0
  void retain(PageIndex page);
  void release(PageIndex page);
  std::span<const Page> pages_of(std::uint32_t slab) const;

  std::uint32_t total_;
  PageSlabs slabs_;
  std::uint32_t page_tokens_;
  Sharing sharing_;
  EmptyPages empty_;
  std::vector<PageIndex> withheld_;
  std::vector<Page> pages_;
  std::vector<IdleLinks> links_;
  IdlePages idle_{links_};
  std::uint64_t evictions_ = 0;
  std::uint32_t left_out_ = 0;
  PrefixIndex index_;
  WindowPool windows_;
  PageLedger* ledger_ = nullptr;
  StateBook* states_ = nullptr;
};

// The pages of one sequence, in the order of its positions: first those that it shares (or that others may come to
// share), then its own. Its destructor releases them; the pool must outlive it.
class PageList {
 public:
  PageList() = default;
  explicit PageList(PagePool& pool) : pool_(&pool), windows_(pool.windows_) {}
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;
  ~PageList() { clear(); }

  // Allocates room for the page numbers of this many positions, so that cover() need not allocate host memory.
  void reserve(std::uint32_t positions);
  // Gets pages for positions [0, positions). Returns false, and takes nothing, if too few pages are free.
  [[nodiscard]] bool cover(std::uint32_t positions);
  // The same for window pages; the list has the window pages from windows().first on.
  [[nodiscard]] bool cover_windows(std::uint32_t positions);
  // The same for both kinds, one after the other; returns false if too few pages of a kind are free. The list may
  // then have more pages of one kind.
  [[nodiscard]] bool cover_all(std::uint32_t positions);
  // Returns how many positions have pages of both kinds.
  std::uint64_t covered() const;
  void clear();

  // Releases window pages that no column from `position` on sees. `ends` has the indices of pages after which other
  // sequences are likely to continue.
  void slide(std::uint32_t position, std::span<const std::uint32_t> ends) {
    windows_.slide(position, ends);
  }

  // Extends the shared pages by pages that hold the next of `tokens`, as far as full pages can be
  // found. With window pages it stops at a page before which the window's pages can be found, too.
  // The found pages replace pages that the list had there, to which nothing may have been written.
  // Returns how many it found.
  std::uint32_t reuse(std::span<const TokenId> tokens);
  // The same, but if `states` is not null, it stops at the last page that has a snapshot of the
  // states after it. `known` gets the number of pages that could be found without that rule, those
  // that the list had included.
  std::uint32_t reuse(std::span<const TokenId> tokens, const StateBook* states,
                      std::uint32_t& known);
  // Declares that these pages hold the keys and values of `tokens`, from position 0 on, and that the steps that wrote
  // them have ended on the device. Others can find the full pages from now on. If an equal page is known already, the
  // list takes that one and releases its own: the bits are the same, and steps that were submitted with the old page
  // end before any step that could write to it.
  void publish(std::span<const TokenId> tokens);

  std::span<const PageIndex> pages() const { return pages_; }
  WindowPages windows() const { return windows_.pages(); }
  // Returns how many of the first pages can be found by their tokens.
  std::uint32_t shared() const { return shared_; }
  std::uint32_t shared_positions() const { return shared_ * pool_->page_tokens(); }

 private:
  // The page before index `shared_`, and the tokens of the page there.
  PageIndex before() const { return shared_ == 0 ? PrefixIndex::kRoot : pages_[shared_ - 1]; }
  std::span<const TokenId> next_page(std::span<const TokenId> tokens) const;
  void replace(std::uint32_t at, PageIndex page);
  std::uint32_t reuse_full(std::span<const TokenId> tokens);
  void reuse_windows(std::uint32_t had);

  PagePool* pool_ = nullptr;
  std::vector<PageIndex> pages_;
  WindowList windows_;
  std::uint32_t shared_ = 0;
};

}  // namespace bulkhead::engine

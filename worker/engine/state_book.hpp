// Records the use of the slots that hold what a model's layers carry from position to position
// (ExecutorLimits::states). The executor owns the slots; here a slot is a number. Every slot is in one of three
// states, or it is left out because its memory has changed (leave_out()):
//
//     free
//     lent       a running sequence's own, one that a step in flight saves to, or a draft's
//     snapshot   it holds the states after the last position of a full page that can be found by its
//                tokens. A sequence that reuses pages up to that one goes on from there.
//
// Snapshots have a budget: the slots that running sequences can't need. When it is used up, the snapshot that was
// used longest ago makes room. When a page is emptied, its snapshot is forgotten, too. So a page's number always
// stands for all tokens before it, as in PrefixIndex.
//
// The device computes steps in order. So a slot may get a new owner while a step in flight still reads it or writes
// to it: the new owner's steps come later. Within one step, no sequence may write to a slot that another sequence
// reads; hold() prevents that.
//
// Not thread-safe: only the engine's thread calls this. It allocates nothing after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

// A snapshot: the slot holds the states after the page's last position.
struct EnteredState {
  StateSlot slot = 0;
  PageIndex page = 0;
  PageSum sum{};  // the slot's checksum; zeros if it has not been computed
};

// A ledger of snapshots. The book enters the slots that are snapshots. Before a step may write to such a slot again,
// the book takes its entry back.
class StateLedger {
 public:
  virtual ~StateLedger() = default;
  virtual void saved(const EnteredState& state) = 0;
  virtual void overwritten(StateSlot slot) = 0;  // steps may write to the slot from now on
  virtual void used(StateSlot /*slot*/) {}       // a sequence continues from the slot
};

class StateBook {
 public:
  // `own` is the most slots that running sequences and their drafts need at once. All other slots may be snapshots.
  StateBook(std::uint32_t slots, std::uint32_t own, std::uint32_t pages);

  // Lends a slot to a running sequence or a draft. At most `own` slots may be lent to these at once. give_back()
  // returns the slot.
  StateSlot lend();
  // Lends a slot that a step saves to; kNoState if all snapshots are held. enter() or give_back() returns the slot.
  StateSlot lend_for_saving();
  void give_back(StateSlot slot);

  // Makes the slot the snapshot of `page`. The step that saved to the slot must have ended, and the page must be in
  // the prefix cache. If the page has a snapshot already, that one stays and the slot becomes free, because both hold
  // the same bits. Returns the new snapshot's number, which no other snapshot ever gets, or 0.
  std::uint64_t enter(PageIndex page, StateSlot slot);
  // Makes a slot from lend() the snapshot of `page`, which must be in the prefix cache, as enter() does. Returns 0, and
  // nothing has changed, if the page has a snapshot or all snapshots are held.
  std::uint64_t enter_lent(PageIndex page, StateSlot slot);
  bool has(PageIndex page) const { return slots_of_[page] != kNoState; }
  // Returns the page's snapshot, from which a sequence continues. It becomes the most recently used one, and drop()
  // keeps it from now on. has() must hold.
  StateSlot use(PageIndex page);
  // Forgets the page's snapshot if it still has that number from enter(). A snapshot that a sequence has used no
  // longer has a number.
  void drop(PageIndex page, std::uint64_t number);

  // A held snapshot stays unchanged until let_go() has been called as often as hold().
  void hold(StateSlot slot) { ++all_[slot].holds; }
  void let_go(StateSlot slot) { --all_[slot].holds; }

  // Call it when the page is emptied.
  void left(PageIndex page);
  // Never lends the slot again, and reduces the snapshots' budget by one. Returns false, without a change, if the
  // slot is not free or all slots that snapshots may have are taken.
  bool leave_out(StateSlot slot);
  std::uint32_t left_out() const { return left_out_; }

  // Sets the ledger for all further entries; null: none.
  void set_ledger(StateLedger* ledger) { ledger_ = ledger; }
  // Enters a snapshot that a predecessor made, before the first sequence comes. The page must be in the
  // prefix cache. False: the slot is not free, the page has a snapshot, or the budget is used up.
  bool adopt(PageIndex page, StateSlot slot);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(all_.size()); }
  std::uint32_t snapshots() const { return snapshots_; }
  std::uint64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    PageIndex page = PrefixIndex::kRoot;  // the page of the snapshot
    std::uint64_t number = 0;             // 0: the snapshot is also kept for other sequences
    std::uint64_t used = 0;
    std::uint32_t holds = 0;
    bool saving = false;  // a step in flight saves to it
  };
  StateSlot take_free();
  bool make_room();
  void forget(StateSlot slot);

  std::vector<Slot> all_;
  std::vector<StateSlot> free_;
  std::vector<StateSlot> slots_of_;  // [page]
  std::uint32_t most_;               // the most snapshots, including those that are being made
  std::uint32_t making_ = 0, snapshots_ = 0, left_out_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t evictions_ = 0;
  StateLedger* ledger_ = nullptr;
};

}  // namespace bulkhead::engine

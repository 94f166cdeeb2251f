// Keeps account of the slots that hold what a model's layers carry from position to position
// (ExecutorLimits::states). The executor owns the slots; here a slot is a number. Every slot is in one
// of three states:
//
//     free
//     lent       a running sequence's own, or one that a step in flight saves to
//     snapshot   it holds the states behind the last position of a full page that can be found by its
//                tokens. A sequence that takes over pages up to that one goes on from there.
//
// Snapshots have a budget: the slots that running sequences can't want. When it is used up, the one
// that was wanted longest ago makes room. A page that is emptied takes its snapshot along, so the page's
// number always stands for all tokens before it, as in PrefixIndex.
//
// The device computes steps in order. So a slot may be given away while a step in flight still reads it
// or writes to it: whoever has it next comes later. In one step nothing may write to what another one
// reads; hold() is for that.
//
// Not thread-safe: only the engine's thread calls this. It allocates nothing after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

// Hears which slots are snapshots, and of each one before any step may write to it again.
class StateLedger {
 public:
  virtual ~StateLedger() = default;
  virtual void saved(StateSlot slot, PageIndex page) = 0;
  virtual void overwritten(StateSlot slot) = 0;  // it may be from now on
};

class StateBook {
 public:
  // `own`: how many slots running sequences may want at once, at most; the other ones may be snapshots.
  StateBook(std::uint32_t slots, std::uint32_t own, std::uint32_t pages);

  // For a running sequence, of which there are `own` at most. give_back() follows.
  StateSlot lend();
  // For a step to save to: kNoState where all snapshots are held. enter() or give_back() follows.
  StateSlot lend_for_saving();
  void give_back(StateSlot slot);

  // Makes the slot the snapshot of `page`: the steps that saved to it have ended, and the prefix
  // cache can find the page. If the page has a snapshot already, the slot is freed, since both have
  // the same bits. Returns the snapshot's number, which is never used again.
  std::uint64_t enter(PageIndex page, StateSlot slot);
  bool has(PageIndex page) const { return slots_of_[page] != kNoState; }
  // Somebody goes on from it: it is the latest that was wanted, and drop() keeps it from now on. has()
  // must hold.
  StateSlot use(PageIndex page);
  // Forgets a snapshot that nobody but its maker has ever used, as enter() numbered it.
  void drop(PageIndex page, std::uint64_t number);

  // Nobody writes to a held snapshot.
  void hold(StateSlot slot) { ++all_[slot].holds; }
  void let_go(StateSlot slot) { --all_[slot].holds; }

  // The page is emptied.
  void left(PageIndex page);

  // Who is told from now on; null: nobody.
  void set_ledger(StateLedger* ledger) { ledger_ = ledger; }
  // Snapshots that a predecessor made, while no sequence has come: the page can be found. False: not one
  // more.
  bool take_over(PageIndex page, StateSlot slot);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(all_.size()); }
  std::uint32_t snapshots() const { return snapshots_; }
  std::uint64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    PageIndex page = PrefixIndex::kRoot;  // of a snapshot
    std::uint64_t number = 0;             // 0: kept for others, too
    std::uint64_t used = 0;
    std::uint32_t holds = 0;
    bool saving = false;  // a step in flight saves to it
  };
  StateSlot take_free();
  void forget(StateSlot slot);

  std::vector<Slot> all_;
  std::vector<StateSlot> free_;
  std::vector<StateSlot> slots_of_;  // [page]
  std::uint32_t most_;               // snapshots, and those that are being made
  std::uint32_t making_ = 0, snapshots_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t evictions_ = 0;
  StateLedger* ledger_ = nullptr;
};

}  // namespace bulkhead::engine

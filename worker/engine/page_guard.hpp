// Finds KV pages whose memory has changed since they were full, and saved states (state_book.hpp) whose
// memory has changed since they were saved. The device makes a sum of a page once the step that filled it
// has ended. It makes the sum again, and the guard compares both, when a sequence reuses the page from
// the prefix cache, when a successor adopts what a dead process left, and for all pages in turn in the
// background.
//
//     entered()          A page is full. The guard has the device make its sum.
//       the sum is there The guard enters the page and its sum in the ledger.
//     found()            A sequence reuses the page. The guard has it compared beside the next step,
//                        unless it was compared within the last second and no damage was found lately,
//                        and collect() says whether the step's results are valid.
//     left()             The guard forgets the page.
//
// The device computes sums in lots between steps (Executor::start_sums), and nobody waits for them: when a step has
// ended, the lots that were started before it have ended, too. If the executor makes no sums, the guard only passes
// its calls on to the ledger.
//
// The device makes sums of saved states, too. The guard compares them when a sequence goes on from them
// (used()), when a successor adopts them, and in the background. Every sequence that went on from changed states
// holds the page after which they were saved. A later step in flight may save other states in the slot, so a
// comparison counts for what the slot held when it was started.
//
// The guard does not notice a page that changed before its sum was computed, nor one that changes while a sequence
// computes with it and before the next comparison. Builds with fault injection can damage pages themselves, at the
// points kv.waiting and kv.used (page_guard.cpp). One thread. Only the lists of the background allocate, as they grow.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/kv_cache.hpp"
#include "worker/engine/state_book.hpp"

namespace bulkhead::engine {

struct GuardFigures {
  std::uint64_t summed = 0, checked = 0, damaged = 0;  // pages, and slots of states
};

// Memory that has changed; valid until the next PageGuard::collect().
struct DamagedMemory {
  std::span<const PageIndex> pages;
  std::span<const EnteredState> states;  // with the pages after which they were saved
};

class PageGuard final : public PageLedger, public StateLedger {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;
  // The executor and the pool must outlive the guard. In each time of `pass` the guard compares, in the background, all
  // weights, all pages that can be found and all saved states once; 0: it compares nothing in the background.
  PageGuard(Executor& executor, const PagePool& pool, std::chrono::seconds pass, Now now);

  // The ledger in which the guard enters pages and their sums; null: none.
  void set_ledger(PageLedger* ledger) { ledger_ = ledger; }
  void set_state_ledger(StateLedger* ledger) { state_ledger_ = ledger; }

  void entered(const EnteredPage& page) override;
  void left(PageIndex page) override;
  void found(PageIndex page) override;
  void slab_added(std::uint32_t slab) override {
    if (ledger_ != nullptr) ledger_->slab_added(slab);
  }
  void slab_returned(std::uint32_t slab) override {
    if (ledger_ != nullptr) ledger_->slab_returned(slab);
  }
  void saved(const EnteredState& state) override;
  void overwritten(StateSlot slot) override;
  void used(StateSlot slot) override;

  // Compares pages that a predecessor left with their sums. Returns the pages that have not changed, in the
  // order given, without those that follow a changed one. No step may be in flight.
  Result<std::vector<EnteredPage>> sound(std::span<const EnteredPage> pages);
  // The engine has adopted these pages, which sound() returned.
  void know(std::span<const EnteredPage> pages);
  // Compares saved states that a predecessor left with their sums. Returns for each whether it has not changed. If
  // the executor makes no sums, every state counts as changed. No step may be in flight.
  Result<std::vector<bool>> whole(std::span<const EnteredState> states);
  // The engine has adopted these states, which whole() found unchanged.
  void know(const EnteredState& state);

  // Starts the comparisons and sums that are due. Call it before step number `step` is submitted.
  Status start(std::uint64_t step);
  // Ends the lots that were started before step number `step`, which has ended; kAll: every lot. Returns the damage
  // that the lots have found.
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  Result<DamagedMemory> collect(std::uint64_t step);
  bool waits() const { return lots_count_ > 0 || !to_sum_.empty() || !to_check_.empty(); }
  // Asks for a check of all weights as soon as possible.
  void doubt_weights();

  const GuardFigures& figures() const { return figures_; }

 private:
  enum class State : std::uint8_t { kOpen, kToSum, kSummed };
  struct Page {
    PageSum sum{};
    std::uint32_t life = 0;  // changes each time the page leaves
    State state = State::kOpen;
    bool to_check = false;
    std::chrono::steady_clock::time_point checked{};
  };
  // What a lot does with one of its pages.
  struct Job {
    PageIndex page = 0;
    std::uint32_t life = 0;
    bool check = false;
    // Of a check: what the page or slot held when its lot was started.
    PageSum sum{};
    PageIndex saved_after = 0;  // of a slot: the page of its snapshot
  };
  struct Lot {
    std::vector<Job> jobs;
    std::uint64_t step = 0;
    std::chrono::steady_clock::time_point started{};
  };
  bool current(const Job& job) const { return pages_[job.page].life == job.life; }
  // Returns the slot's number in start_sums(), where pages have their own numbers.
  PageIndex number_of(StateSlot slot) const { return first_state_ + slot; }
  void forget(PageIndex number);
  void want_sum(PageIndex number);
  void want_check(PageIndex number);
  void tell(PageIndex number, const PageSum& sum);
  void take_jobs(std::deque<Job>& from, Lot& to);
  std::uint64_t background();
  Status damage_pages();
  Status start_lot(std::uint64_t step);
  Status end_lot();
  void learn(const Lot& lot, const Job& job, const PageSum& sum);
  void compare(const Lot& lot, const Job& job, const PageSum& sum);

  Executor& executor_;
  const PagePool& pool_;
  std::chrono::seconds pass_;
  Now now_;
  PageLedger* ledger_ = nullptr;
  StateLedger* state_ledger_ = nullptr;
  std::uint32_t most_;  // pages per lot
  PageIndex first_state_;
  std::vector<Page> pages_;            // by number, pages and slots
  std::vector<PageIndex> page_of_;     // [slot]: the page of its snapshot
  std::deque<Job> to_sum_, to_check_;  // in their order
  std::array<Lot, Executor::kSumsInFlight> lots_;
  std::size_t oldest_ = 0, lots_count_ = 0;
  std::vector<PageIndex> batch_;                // of the lot that is started
  std::vector<PageIndex> damaged_;              // since the last collect()
  std::vector<EnteredState> damaged_states_;    // the same
  std::vector<EnteredState> collected_states_;  // by the last collect()
  std::chrono::steady_clock::time_point scrubbed_{};
  bool scrubbed_ever_ = false;
  std::optional<std::chrono::steady_clock::time_point>
      damaged_at_;                                       // when the last damage was found
  std::chrono::steady_clock::time_point compared_at_{};  // when the last sound() or whole() began
  PageIndex cursor_ = 0;
  double pages_due_ = 0, bytes_due_ = 0;
  std::uint64_t weights_left_ = 0;  // bytes of the weights that are still in doubt
  GuardFigures figures_;
};

}  // namespace bulkhead::engine

// Holds finished KV pages to what they were when they were finished. The device makes a sum of each
// page once the step that filled it has ended, and compares it later: whenever a sequence takes the
// page over from the prefix cache, in the background, and when a successor takes over what a dead
// process left.
//
//     entered()          the page is full: its sum is wanted
//       its sum is made  the ledger hears of the page, with its sum
//     found()            a sequence takes it over: it is compared beside the next step, and nothing
//                        that the step gives is believed before (collect())
//     left()             what is known of it is forgotten
//
// Sums are made in lots between steps (Executor::start_sums), and nobody waits for them: a lot that
// was started before a step has ended with it. With an executor that makes no sums the guard only
// hands on what it hears.
//
// A page that was flipped before its sum was made is not noticed, nor is one that changes while a
// sequence computes with it before its next look. One thread. Allocates in the background's lists
// only as far as these grow.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/engine/kv_cache.hpp"

namespace bulkhead::engine {

struct GuardFigures {
  std::uint64_t summed = 0, checked = 0, damaged = 0;  // pages
};

class PageGuard final : public PageLedger {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;
  // All must outlive it. `pass`: all pages that can be found, and all weights, are looked at once in
  // so long; 0: never in the background.
  PageGuard(Executor& executor, const PagePool& pool, std::chrono::seconds pass, Now now);

  // Who hears of pages with their sums; null: nobody.
  void set_ledger(PageLedger* ledger) { ledger_ = ledger; }

  void entered(const KeptPage& page) override;
  void left(PageIndex page) override;
  void found(PageIndex page) override;

  // Of pages that a predecessor left, in their order: those that are what their sums say, without
  // those that follow another one. No step may be in flight.
  Result<std::vector<KeptPage>> sound(std::span<const KeptPage> pages);
  // They were, and have been taken over.
  void know(std::span<const KeptPage> pages);

  // Starts what is to be compared or summed up, before step number `step` is submitted.
  Status start(std::uint64_t step);
  // Ends the lots that were started before step number `step`, which has ended; kAll: every lot.
  // Pages that are not what they were; valid until the next call.
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  Result<std::span<const PageIndex>> collect(std::uint64_t step);
  bool waits() const { return lots_count_ > 0 || !to_sum_.empty() || !to_check_.empty(); }
  // All weights are to be looked at as soon as can be.
  void doubt_weights();

  const GuardFigures& figures() const { return figures_; }

 private:
  enum class State : std::uint8_t { kOpen, kToSum, kSummed };
  struct Page {
    PageSum sum{};
    std::uint32_t life = 0;  // another one each time it leaves
    State state = State::kOpen;
    bool to_check = false;
    std::chrono::steady_clock::time_point checked{};
  };
  // What a lot is to do with one of its pages.
  struct Job {
    PageIndex page = 0;
    std::uint32_t life = 0;
    bool check = false;
  };
  struct Lot {
    std::vector<Job> jobs;
    std::uint64_t step = 0;
  };
  bool current(const Job& job) const { return pages_[job.page].life == job.life; }
  void want_check(PageIndex page);
  void take_jobs(std::deque<Job>& from, Lot& to);
  std::uint64_t background();
  Status start_lot(std::uint64_t step);
  Status end_lot();
  void learn(const Job& job, const PageSum& sum);

  Executor& executor_;
  const PagePool& pool_;
  std::chrono::seconds pass_;
  Now now_;
  PageLedger* ledger_ = nullptr;
  std::uint32_t most_;  // pages of a lot
  std::vector<Page> pages_;
  std::deque<Job> to_sum_, to_check_;  // in their order
  std::array<Lot, Executor::kSumsInFlight> lots_;
  std::size_t oldest_ = 0, lots_count_ = 0;
  std::vector<PageIndex> batch_;    // of the lot that is started
  std::vector<PageIndex> damaged_;  // since the last collect()
  std::chrono::steady_clock::time_point scrubbed_{};
  bool scrubbed_ever_ = false;
  PageIndex cursor_ = 0;
  double pages_due_ = 0, bytes_due_ = 0;
  std::uint64_t weights_left_ = 0;  // of those that are in doubt
  GuardFigures figures_;
};

}  // namespace bulkhead::engine

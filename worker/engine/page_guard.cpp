#include "worker/engine/page_guard.hpp"

#include <algorithm>
#include <csignal>
#include <span>
#include <string_view>
#include <utility>

#include "config/base/fault_points.hpp"

namespace bulkhead::engine {
namespace {

// The guard does not compare a page again for the next sequence if it has compared the page within this time.
constexpr std::chrono::seconds kFresh{1};
// Whatever has changed one page may have changed others meanwhile: for this time after the guard has found a changed
// page, it compares every page that a sequence finds.
constexpr std::chrono::seconds kSuspicious{10};
constexpr std::chrono::milliseconds kBetweenScrubs{250};
// The bytes of weights that a lot compares: few enough that steps and heartbeats continue meanwhile.
constexpr std::uint64_t kMostWeightBytes = std::uint64_t{64} << 20;

}  // namespace

PageGuard::PageGuard(Executor& executor, const PagePool& pool, std::chrono::seconds pass, Now now)
    : executor_(executor),
      pool_(pool),
      pass_(pass),
      now_(std::move(now)),
      most_(executor.limits().most_pages_summed),
      first_state_(executor.limits().first_state()),
      pages_(most_ > 0 ? first_state_ + executor.limits().states : 0),
      page_of_(executor.limits().states) {
  batch_.reserve(most_);
  for (Lot& lot : lots_)
    lot.jobs.reserve(most_);
}

void PageGuard::entered(const EnteredPage& page) {
  if (most_ == 0) {
    if (ledger_ != nullptr) ledger_->entered(page);
    return;
  }
  want_sum(page.page);
}

void PageGuard::want_sum(PageIndex number) {
  pages_[number].state = State::kToSum;
  to_sum_.push_back({number, pages_[number].life, false});
}

void PageGuard::forget(PageIndex number) {
  if (most_ == 0) return;
  Page& gone = pages_[number];
  gone.state = State::kOpen;
  gone.to_check = false;
  ++gone.life;
}

void PageGuard::left(PageIndex page) {
  forget(page);
  if (ledger_ != nullptr) ledger_->left(page);
}

void PageGuard::saved(const EnteredState& state) {
  page_of_[state.slot] = state.page;
  if (most_ > 0) return want_sum(number_of(state.slot));
  if (state_ledger_ != nullptr) state_ledger_->saved(state);
}

void PageGuard::overwritten(StateSlot slot) {
  forget(number_of(slot));
  if (state_ledger_ != nullptr) state_ledger_->overwritten(slot);
}

void PageGuard::used(StateSlot slot) {
  found(number_of(slot));
}

void PageGuard::found(PageIndex page) {
  if (most_ == 0) return;
  const auto now = now_();
  const bool suspicious = damaged_at_ && now - *damaged_at_ < kSuspicious;
  if (suspicious || now - pages_[page].checked >= kFresh) want_check(page);
}

void PageGuard::want_check(PageIndex number) {
  Page& wanted = pages_[number];
  if (wanted.state != State::kSummed || wanted.to_check) return;
  wanted.to_check = true;
  to_check_.push_back({number, wanted.life, true});
}

Result<std::vector<EnteredPage>> PageGuard::sound(std::span<const EnteredPage> pages) {
  std::vector<EnteredPage> sound;
  compared_at_ = now_();
  if (most_ == 0) return sound;
  std::vector<bool> spoilt(pool_.all_pages());
  // Two lots are in progress at a time: the host lists the pieces of one while the device computes the other.
  std::size_t started = 0, ended = 0;
  const auto lot_at = [&](std::size_t at) {
    return pages.subspan(at, std::min<std::size_t>(most_, pages.size() - at));
  };
  while (ended < pages.size()) {
    while (started < pages.size() && started - ended < std::size_t{2} * most_) {
      batch_.clear();
      for (const EnteredPage& page : lot_at(started))
        batch_.push_back(page.page);
      BULKHEAD_RETURN_IF_ERROR(executor_.start_sums(batch_, 0));
      started += batch_.size();
    }
    BULKHEAD_TRY(const std::span<const PageSum> sums, executor_.finish_sums());
    const auto lot = lot_at(ended);
    for (std::size_t i = 0; i < lot.size(); ++i) {
      const EnteredPage& page = lot[i];
      ++figures_.checked;
      if (sums[i] == page.sum) continue;
      ++figures_.damaged;
      damaged_at_ = now_();
      damaged_.push_back(page.page);
      spoilt[page.page] = true;
      // Whatever was computed after a window page was also computed after its full page.
      if (pool_.windows().owns(page.page) && page.before < spoilt.size())
        spoilt[page.before] = true;
    }
    ended += lot.size();
  }
  std::vector<bool> believed(pool_.all_pages());
  for (const EnteredPage& page : pages) {
    const bool follows = page.before == PrefixIndex::kRoot || believed[page.before];
    if (spoilt[page.page] || !follows) continue;
    believed[page.page] = true;
    sound.push_back(page);
  }
  return sound;
}

void PageGuard::know(std::span<const EnteredPage> pages) {
  if (most_ == 0) return;
  for (const EnteredPage& page : pages) {
    Page& known = pages_[page.page];
    known.sum = page.sum;
    known.state = State::kSummed;
    known.checked = compared_at_;
  }
}

Result<std::vector<bool>> PageGuard::whole(std::span<const EnteredState> states) {
  std::vector<bool> whole(states.size());
  compared_at_ = now_();
  if (most_ == 0) return whole;
  for (std::size_t at = 0; at < states.size(); at += most_) {
    const auto lot = states.subspan(at, std::min<std::size_t>(most_, states.size() - at));
    batch_.clear();
    for (const EnteredState& state : lot)
      batch_.push_back(number_of(state.slot));
    BULKHEAD_RETURN_IF_ERROR(executor_.start_sums(batch_, 0));
    BULKHEAD_TRY(const std::span<const PageSum> sums, executor_.finish_sums());
    for (std::size_t i = 0; i < lot.size(); ++i) {
      whole[at + i] = sums[i] == lot[i].sum;
      ++figures_.checked;
      if (whole[at + i]) continue;
      ++figures_.damaged;
      damaged_at_ = now_();
    }
  }
  return whole;
}

void PageGuard::know(const EnteredState& state) {
  page_of_[state.slot] = state.page;
  if (most_ == 0) return;
  Page& known = pages_[number_of(state.slot)];
  known.sum = state.sum;
  known.state = State::kSummed;
  known.checked = compared_at_;
}

void PageGuard::take_jobs(std::deque<Job>& from, Lot& to) {
  while (!from.empty() && to.jobs.size() < most_) {
    Job job = from.front();
    from.pop_front();
    if (!current(job)) continue;
    job.sum = pages_[job.page].sum;
    if (job.page >= first_state_) job.saved_after = page_of_[job.page - first_state_];
    to.jobs.push_back(job);
  }
}

// Queues the part of a pass that is due, and returns how many bytes of weights are in it.
std::uint64_t PageGuard::background() {
  const auto now = now_();
  const auto since = now - std::exchange(scrubbed_, now);
  if (!std::exchange(scrubbed_ever_, true)) return 0;
  const double part = std::min(1.0, std::chrono::duration<double>(since) / pass_);
  const auto states = std::span(pages_).subspan(first_state_);
  pages_due_ +=
      part * (pool_.cached_pages() + pool_.windows().cached_pages() +
              static_cast<double>(std::ranges::count(states, State::kSummed, &Page::state)));
  bytes_due_ += part * static_cast<double>(executor_.weight_bytes());
  const auto numbers = static_cast<PageIndex>(pages_.size());
  for (PageIndex seen = 0; seen < numbers && pages_due_ >= 1; ++seen) {
    const PageIndex page = cursor_;
    cursor_ = (cursor_ + 1) % numbers;
    if (pages_[page].state != State::kSummed) continue;
    want_check(page);
    pages_due_ -= 1;
  }
  pages_due_ = std::min(pages_due_, 1.0);
  const auto bytes = std::min(static_cast<std::uint64_t>(bytes_due_), kMostWeightBytes);
  bytes_due_ -= static_cast<double>(bytes);
  bytes_due_ = std::min(bytes_due_, static_cast<double>(kMostWeightBytes));
  return bytes;
}

// Fault points, reached when a step is submitted and there is such a page:
//   kv.waiting  corrupt: a page that waits in the prefix cache changes. The next sequence that finds it, or the
//               background, compares it.
//   kv.used     corrupt: a page that one sequence or more use changes, and the process dies before anybody gets a token
//               that was computed with it. Its successor compares the page.
Status PageGuard::damage_pages() {
  for (const char* const point : {"kv.waiting", "kv.used"}) {
    const bool used = point == std::string_view("kv.used");
    const auto fits = [&](PageIndex number) {
      const Page& page = pages_[number];
      return page.state == State::kSummed && !page.to_check && pool_.can_be_found(number) &&
             (pool_.users(number) > 0) == used && (used || now_() - page.checked >= kFresh);
    };
    PageIndex number = 0;
    while (number < pool_.total_pages() && !fits(number))
      ++number;
    if (number == pool_.total_pages() || !fault::corrupts(point)) continue;
    BULKHEAD_RETURN_IF_ERROR(executor_.change_bit(number));
    if (used) std::raise(SIGKILL);
  }
  return {};
}

Status PageGuard::start(std::uint64_t step) {
  if (most_ == 0) return {};
  if constexpr (fault::kCompiledIn) BULKHEAD_RETURN_IF_ERROR(damage_pages());
  std::uint64_t weight_bytes = 0;
  if (pass_.count() > 0 && (!scrubbed_ever_ || now_() - scrubbed_ >= kBetweenScrubs))
    weight_bytes = background();
  if (weights_left_ > 0) {
    weight_bytes = std::max(weight_bytes, std::min(weights_left_, kMostWeightBytes));
    weights_left_ -= std::min(weights_left_, weight_bytes);
  }
  // Pages that a sequence of this step has found must be compared before the step; the others can wait for
  // a free lot.
  while (!to_check_.empty() || !to_sum_.empty() || weight_bytes > 0) {
    if (lots_count_ == lots_.size()) {
      if (to_check_.empty()) break;
      BULKHEAD_RETURN_IF_ERROR(end_lot());
    }
    Lot& lot = lots_[(oldest_ + lots_count_) % lots_.size()];
    lot.jobs.clear();
    lot.step = step;
    lot.started = now_();
    take_jobs(to_check_, lot);
    take_jobs(to_sum_, lot);
    if (lot.jobs.empty() && weight_bytes == 0) break;
    batch_.clear();
    for (const Job& job : lot.jobs)
      batch_.push_back(job.page);
    BULKHEAD_RETURN_IF_ERROR(executor_.start_sums(batch_, std::exchange(weight_bytes, 0)));
    ++lots_count_;
  }
  return {};
}

Status PageGuard::end_lot() {
  const Lot& lot = lots_[oldest_];
  oldest_ = (oldest_ + 1) % lots_.size();
  --lots_count_;
  BULKHEAD_TRY(const std::span<const PageSum> sums, executor_.finish_sums());
  for (std::size_t i = 0; i < lot.jobs.size(); ++i) {
    const Job& job = lot.jobs[i];
    if (job.check) {
      compare(lot, job, sums[i]);
    } else if (current(job)) {
      learn(lot, job, sums[i]);
    }
  }
  return {};
}

void PageGuard::learn(const Lot& lot, const Job& job, const PageSum& sum) {
  Page& page = pages_[job.page];
  page.checked = lot.started;
  page.sum = sum;
  page.state = State::kSummed;
  ++figures_.summed;
  tell(job.page, sum);
}

void PageGuard::compare(const Lot& lot, const Job& job, const PageSum& sum) {
  Page& page = pages_[job.page];
  const bool is_there = current(job), is_page = job.page < first_state_;
  // A page stays until the steps of the sequences that found it have ended; a slot need not.
  if (is_page && !is_there) return;
  if (is_there) {
    page.checked = lot.started;
    page.to_check = false;
  }
  ++figures_.checked;
  if (job.sum == sum) return;
  ++figures_.damaged;
  damaged_at_ = now_();
  if (is_page) return damaged_.push_back(job.page);
  damaged_states_.push_back({job.page - first_state_, job.saved_after, sum});
}

void PageGuard::tell(PageIndex number, const PageSum& sum) {
  if (number >= first_state_) {
    const StateSlot slot = number - first_state_;
    if (state_ledger_ != nullptr) state_ledger_->saved({slot, page_of_[slot], sum});
    return;
  }
  if (ledger_ == nullptr) return;
  EnteredPage entry = pool_.entry_of(number);
  entry.sum = sum;
  ledger_->entered(entry);
}

Result<DamagedMemory> PageGuard::collect(std::uint64_t step) {
  while (lots_count_ > 0 && lots_[oldest_].step <= step)
    BULKHEAD_RETURN_IF_ERROR(end_lot());
  batch_.assign(damaged_.begin(), damaged_.end());
  damaged_.clear();
  collected_states_.swap(damaged_states_);
  damaged_states_.clear();
  return DamagedMemory{batch_, collected_states_};
}

void PageGuard::doubt_weights() {
  if (most_ > 0 && weights_left_ == 0) weights_left_ = executor_.weight_bytes();
}

}  // namespace bulkhead::engine

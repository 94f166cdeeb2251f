// An executor without a device, for tests of the engine. Its "model" is a hash: what a column writes into fake pages
// depends on its token, its position and what the column before it wrote, as in a model of several layers. Its logits
// are a function of everything that it reads back through the page table, from position 0 to its own. So a wrong
// page, a wrong position, a page with other tokens before it, a page given to two sequences or a column that was
// never computed changes the tokens, as it would on a device. With ExecutorLimits::window, a column's logits and the
// values that it writes also depend on what the window's columns wrote to their window pages. Every step is checked
// against the contract of executor.hpp.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/executor.hpp"
#include "worker/engine/sampler.hpp"

namespace bulkhead::test {

inline constexpr std::uint32_t kPageTokens = 4;

inline engine::ExecutorLimits small_limits() {
  return {.max_columns = 64,
          .max_outputs = 16,
          .max_sequences = 16,
          .page_tokens = kPageTokens,
          .total_pages = 256,
          .context = 128,
          .vocabulary = 300,
          .embedding = 6,
          .adjusts = true,
          .most_pages_summed = 3};
}

// The same with layers that see kWindow positions. A sequence needs kReserve window pages to go on.
inline constexpr std::uint32_t kWindow = 10;
inline constexpr std::uint32_t kReserve = engine::window_reserve(kWindow, kPageTokens);

inline engine::ExecutorLimits with_windows(std::uint32_t window_pages) {
  engine::ExecutorLimits limits = small_limits();
  limits.window = kWindow;
  limits.window_pages = window_pages;
  return limits;
}

class FakeExecutor : public engine::Executor {
 public:
  explicit FakeExecutor(const engine::ExecutorLimits& limits);

  // Overrides the best token after a history (prompt and answer so far); nullopt: the hash decides.
  std::function<std::optional<engine::TokenId>(std::span<const engine::TokenId>)> script;
  // Called with each step that is submitted.
  std::function<void(const engine::Step&)> when_submitted = [](const engine::Step&) {};
  // Called inside wait(), while a device would compute.
  std::function<void()> while_waiting;
  // Called inside finish_sums(), which returns the sums that start_sums() made.
  std::function<void()> while_summing;
  // The n-th submit from now (0: the next) fails like one on a lost device.
  std::optional<std::uint64_t> lose_device_in;
  // The rows of this many outputs, from the next one on, are full of NaN.
  std::uint32_t poisoned_outputs = 0;
  // This many steps, from the next one to be awaited on, are lost (Executor::lost()).
  std::uint32_t steps_to_lose = 0;
  // Whether the device has memory for another slab of pages.
  std::function<bool()> has_memory = [] { return true; };
  // The slabs that have memory, and how many slabs have given theirs back.
  std::set<std::uint32_t> slabs;
  std::uint32_t slabs_returned = 0;
  // Changes a bit in this page.
  void spoil(engine::PageIndex page) { ++slots_[std::size_t{page} * limits_.page_tokens].past; }
  // Changes a bit in this slot of states.
  void spoil_states(std::uint32_t slot) { ++states_[slot]; }
  // Drops the steps in flight, as if the process had died before they wrote to its pages.
  void forget_steps() {
    in_flight_.clear();
    lots_.clear();
    lot_pages_.clear();
  }
  std::uint64_t weight_bytes_looked_at = 0;
  // The most edits for which the host has memory.
  std::uint64_t edits_there = std::numeric_limits<std::uint64_t>::max();
  // The number of rows of logits for which the host has memory.
  std::uint32_t rows_there = std::numeric_limits<std::uint32_t>::max();

  struct StepRecord {
    std::uint32_t columns = 0;
    std::uint32_t outputs = 0;
    std::vector<std::uint32_t> columns_of;  // by sequence of the step
    std::size_t in_flight = 0;              // including this one
  };
  std::vector<StepRecord> steps;

  // Returns the logits after a history, by the definition above. The engine's tokens are compared with these.
  std::vector<float> logits_after(std::span<const engine::TokenId> history) const;
  std::vector<float> hidden_after(std::span<const engine::TokenId> history) const;

  const engine::ExecutorLimits& limits() const override { return limits_; }
  Status reserve_logits(std::uint32_t outputs) override;
  Status reserve_adjustments(std::uint64_t edits) override;
  bool grow(std::uint32_t slab) override;
  void shrink(std::uint32_t slab) override;
  std::vector<std::uint32_t> present_slabs() const override { return {slabs.begin(), slabs.end()}; }
  Status submit(const engine::Step& step) override;
  Status choose(std::span<const engine::Adjustment> adjustments) override;
  Result<std::span<const engine::ColumnOutput>> wait() override;
  bool lost() const override { return lost_; }
  Status start_sums(std::span<const engine::PageIndex> pages, std::uint64_t weight_bytes) override;
  Result<std::span<const engine::PageSum>> finish_sums() override;
  std::string device_name() const override { return "fake"; }
  std::string numerics_id() const override { return "fake"; }
  std::uint64_t weight_bytes() const override { return 1000; }
  std::vector<FigureValue> counters() const override { return {}; }
  std::vector<Optimization> optimizations() const override { return {}; }

 private:
  bool lost_ = false;
  bool is_present(engine::PageIndex page) const;
  std::pair<engine::PageIndex, std::uint32_t> pages_of(std::uint32_t slab) const;
  void forget_slab(std::uint32_t slab);
  std::uint64_t hash_after(std::span<const engine::TokenId> history) const;

  struct Slot {
    engine::TokenId token = 0xDEADBEEF;   // the content of a page to which nobody has written
    std::uint64_t past = 0xDEADBEEFDEAD;  // a hash of all tokens up to this one
  };
  struct Adjusted {
    std::vector<std::uint32_t> mask;
    std::vector<engine::LogitEdit> list, ahead;
    float repetition = 1;
    engine::Adjustment view() const { return {mask, {list, ahead, repetition}}; }
  };
  struct Pending {
    std::vector<engine::Column> columns;
    std::vector<engine::Choice> choices;  // by column
    std::vector<std::vector<engine::PageIndex>> tables;
    std::vector<engine::StateUse> states;
    std::vector<std::vector<engine::PageIndex>> windows;  // by index; released ones are gaps
    bool waits_for_adjustments = false;
    std::vector<Adjusted> adjustments;  // of the adjusted columns
  };
  static Error broken(const std::string& what);
  Status check(const engine::Step& step) const;
  Status check_drafts(const engine::Step& step, std::set<std::uint32_t>& written) const;
  Status check_windows(const engine::Step& step) const;
  // A page to which a step in flight writes may be in another step's tables only if it belongs to the same sequence.
  Status check_against(const Pending& earlier, const engine::Step& step) const;

  // What the columns of one sequence carry from one to the next.
  struct Run {
    std::uint64_t carried = 0;
    std::uint32_t begin = 0;
  };
  // Writes the column to its pages and states, and returns what it sees of windowed layers. `before`: the tokens that
  // the step before chose.
  std::uint64_t compute(const Pending& step, std::uint32_t index,
                        const std::vector<engine::TokenId>& before, Run& run);
  void make_output(const Pending& step, std::uint32_t index, std::uint64_t seen);
  std::optional<engine::TokenId> drawn(const std::vector<float>& row, const engine::Choice& choice,
                                       std::uint32_t position,
                                       const engine::Adjustment& adjustment);

  engine::PageSum sum_of(engine::PageIndex page) const;
  Slot& slot_in(const std::vector<engine::PageIndex>& table, std::uint32_t position);
  // Hashes what a column at `position` sees of its sequence's windowed layers, without what the column itself writes.
  std::uint64_t seen_through_window(const std::vector<engine::PageIndex>& windows,
                                    std::uint32_t position);

  engine::ExecutorLimits limits_;
  engine::Sampler sampler_;
  std::vector<Slot> slots_;  // page after page, window pages last
  // With ExecutorLimits::states, columns continue from these values instead of from the page before, so that a wrong
  // slot changes the tokens, too.
  std::vector<std::uint64_t> states_;
  std::uint32_t reserved_ = 0;  // reserved rows of logits
  std::optional<std::uint64_t> edits_reserved_;
  std::deque<Pending> in_flight_;
  std::deque<std::vector<engine::PageSum>> lots_;
  std::deque<std::vector<engine::PageIndex>> lot_pages_;
  std::vector<engine::PageSum> sums_;
  std::vector<engine::Output> outputs_submitted_;  // of the latest step
  // What the outputs of the step that was computed last chose.
  std::vector<engine::TokenId> chosen_;
  std::vector<std::vector<float>> rows_, hidden_;
  std::vector<engine::ColumnOutput> outputs_;
  std::vector<std::vector<engine::RankedToken>> tops_;
};

}  // namespace bulkhead::test

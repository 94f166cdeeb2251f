// The fake executor's computation; fake_executor_checks.cpp checks the steps that it gets.
#include "tests/support/fake_executor.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "config/base/splitmix.hpp"

namespace bulkhead::test {
namespace {

std::uint64_t mix(std::uint64_t value) {
  return splitmix(value + kSplitmixStep);
}

std::uint64_t fold(std::uint64_t hash, engine::TokenId token, std::uint32_t position) {
  return mix(hash ^ (std::uint64_t{token} << 32 | position));
}

// Returns the value that a column writes to its window page.
std::uint64_t through_window(std::uint64_t past) {
  return mix(past ^ 0x77);
}

std::vector<float> row_of(std::uint64_t hash, std::uint32_t vocabulary) {
  std::vector<float> row(vocabulary);
  for (std::uint32_t id = 0; id < vocabulary; ++id) {
    row[id] = static_cast<float>(static_cast<double>(mix(hash + id) >> 40) / 0x1p24 * 8 - 4);
  }
  return row;
}

}  // namespace

FakeExecutor::FakeExecutor(const engine::ExecutorLimits& limits)
    : limits_(limits),
      sampler_(limits.vocabulary),
      slots_((std::size_t{limits.total_pages} + limits.window_pages) * limits.page_tokens),
      states_(limits.states, 0xDEADBEEFDEAD) {}

// Returns the first page of a slab and how many it has.
std::pair<engine::PageIndex, std::uint32_t> FakeExecutor::pages_of(std::uint32_t slab) const {
  const std::uint32_t full = limits_.slabs();
  if (slab < full) return {limits_.first_pages + slab * limits_.slab_pages, limits_.slab_pages};
  return {
      limits_.total_pages + limits_.window_first_pages + (slab - full) * limits_.window_slab_pages,
      limits_.window_slab_pages};
}

// New memory contains arbitrary bytes, and no result of an earlier step.
void FakeExecutor::forget_slab(std::uint32_t slab) {
  const auto [first, count] = pages_of(slab);
  std::fill_n(
      slots_.begin() + static_cast<std::ptrdiff_t>(std::size_t{first} * limits_.page_tokens),
      std::size_t{count} * limits_.page_tokens, Slot{});
}

bool FakeExecutor::grow(std::uint32_t slab) {
  EXPECT_LT(slab, limits_.slab_numbers());
  EXPECT_LT(slabs.size(), limits_.slabs());
  EXPECT_FALSE(slabs.contains(slab));
  if (!has_memory()) return false;
  slabs.insert(slab);
  forget_slab(slab);
  return true;
}

void FakeExecutor::shrink(std::uint32_t slab) {
  EXPECT_EQ(slabs.erase(slab), 1U);
  for (const auto& lot : lot_pages_) {
    EXPECT_TRUE(std::ranges::all_of(lot, [this](auto page) { return is_present(page); }))
        << "a lot in flight has a page of the slab";
  }
  for (const Pending& step : in_flight_) {
    for (const auto* tables : {&step.tables, &step.windows}) {
      for (const auto& table : *tables)
        EXPECT_TRUE(std::ranges::all_of(table, [this](auto page) { return is_present(page); }))
            << "a step in flight has a page of the slab";
    }
  }
  forget_slab(slab);
  ++slabs_returned;
}

std::uint64_t FakeExecutor::hash_after(std::span<const engine::TokenId> history) const {
  std::uint64_t hash = 0, seen = 0;
  std::vector<std::uint64_t> pasts;
  for (std::uint32_t i = 0; i < history.size(); ++i) {
    seen = 0;
    for (std::uint32_t at = i + 1 - std::min(i + 1, limits_.window); limits_.window > 0 && at < i;
         ++at)
      seen = mix(seen ^ through_window(pasts[at]));
    pasts.push_back(fold((i == 0 ? 0 : pasts.back()) ^ seen, history[i], i));
    hash = mix(hash ^ pasts.back());
  }
  return hash ^ seen;
}

FakeExecutor::Slot& FakeExecutor::slot_in(const std::vector<engine::PageIndex>& table,
                                          std::uint32_t position) {
  const std::size_t page = table[position / limits_.page_tokens];
  return slots_[page * limits_.page_tokens + position % limits_.page_tokens];
}

std::uint64_t FakeExecutor::seen_through_window(const std::vector<engine::PageIndex>& windows,
                                                std::uint32_t position) {
  std::uint64_t seen = 0;
  if (limits_.window == 0) return seen;
  for (std::uint32_t at = position + 1 - std::min(position + 1, limits_.window); at < position;
       ++at)
    seen = mix(seen ^ slot_in(windows, at).past);
  return seen;
}

std::vector<float> FakeExecutor::logits_after(std::span<const engine::TokenId> history) const {
  return row_of(hash_after(history), limits_.vocabulary);
}

std::vector<float> FakeExecutor::hidden_after(std::span<const engine::TokenId> history) const {
  return row_of(mix(hash_after(history)), limits_.embedding);
}

Status FakeExecutor::reserve_logits(std::uint32_t outputs) {
  if (outputs > rows_there)
    return Error(ErrorCode::kResourceExhausted, "no memory for so many rows of logits");
  reserved_ = std::max(reserved_, outputs);
  return {};
}

Status FakeExecutor::reserve_adjustments(std::uint64_t edits) {
  if (!limits_.adjusts) return broken("adjustments that are not on offer");
  if (edits > edits_there)
    return Error(ErrorCode::kResourceExhausted, "no memory for so many edits");
  edits_reserved_ = std::max(edits_reserved_.value_or(0), edits);
  return {};
}

Status FakeExecutor::choose(std::span<const engine::Adjustment> adjustments) {
  if (in_flight_.empty() || !in_flight_.back().waits_for_adjustments)
    return broken("adjustments for a step that waits for none");
  Pending& step = in_flight_.back();
  if (std::ranges::count(step.columns, true, &engine::Column::adjusted) !=
      static_cast<std::ptrdiff_t>(adjustments.size()))
    return broken("too many or too few adjustments");
  std::set<const engine::LogitEdit*> lists;
  std::uint64_t edits = 0;
  auto column = step.columns.begin();
  for (const engine::Adjustment& each : adjustments) {
    column = std::find_if(column, step.columns.end(), std::mem_fn(&engine::Column::adjusted));
    if (!each.edits.empty() && !column->edited) return broken("edits that were not announced");
    ++column;
    if (!each.mask.empty() &&
        std::ranges::all_of(each.mask, [](std::uint32_t word) { return word == 0; }))
      return broken("a mask that allows no token");
    for (const auto part : {each.edits.list, each.edits.ahead}) {
      std::set<engine::TokenId> tokens;
      for (const engine::LogitEdit& edit : part) {
        if (edit.token >= limits_.vocabulary) return broken("an edit of no token");
        if (!tokens.insert(edit.token).second) return broken("two edits of a token");
      }
    }
    if (each.edits.ahead.size() > engine::kMostDrafts) return broken("too many edits ahead");
    if (lists.insert(each.edits.list.data()).second) edits += each.edits.list.size();
    step.adjustments.push_back({{each.mask.begin(), each.mask.end()},
                                {each.edits.list.begin(), each.edits.list.end()},
                                {each.edits.ahead.begin(), each.edits.ahead.end()},
                                each.edits.repetition});
  }
  if (edits > *edits_reserved_) return broken("more edits than were reserved");
  step.waits_for_adjustments = false;
  return {};
}

Status FakeExecutor::submit(const engine::Step& step) {
  if (lose_device_in && (*lose_device_in)-- == 0) {
    lose_device_in.reset();
    return Error(ErrorCode::kDeviceLost, "device lost: as the test asked");
  }
  BULKHEAD_RETURN_IF_ERROR(check(step));
  BULKHEAD_RETURN_IF_ERROR(check_windows(step));
  for (const Pending& earlier : in_flight_)
    BULKHEAD_RETURN_IF_ERROR(check_against(earlier, step));
  when_submitted(step);
  Pending& pending = in_flight_.emplace_back();
  pending.columns.assign(step.columns.begin(), step.columns.end());
  for (const engine::Column& column : step.columns)
    pending.choices.push_back(column.choice != nullptr ? *column.choice : engine::Choice());
  for (const auto& pages : step.sequences)
    pending.tables.emplace_back(pages.begin(), pages.end());
  pending.waits_for_adjustments = std::ranges::any_of(pending.columns, &engine::Column::adjusted);
  pending.states.assign(step.states.begin(), step.states.end());
  for (const engine::WindowPages& window : step.windows) {
    auto& table = pending.windows.emplace_back(window.first, ~engine::PageIndex{0});
    table.insert(table.end(), window.pages.begin(), window.pages.end());
  }
  StepRecord& record = steps.emplace_back();
  record.in_flight = in_flight_.size();
  record.columns_of.resize(step.sequences.size());
  outputs_submitted_.clear();
  for (const engine::Column& column : pending.columns) {
    ++record.columns;
    ++record.columns_of[column.sequence];
    if (column.output == engine::Output::kNone) continue;
    ++record.outputs;
    outputs_submitted_.push_back(column.output);
  }
  return {};
}

engine::PageSum FakeExecutor::sum_of(engine::PageIndex page) const {
  std::uint64_t hash = 0;
  if (page >= limits_.first_state()) {
    hash = mix(states_[page - limits_.first_state()]);
    return {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32), 1, 0};
  }
  for (std::uint32_t i = 0; i < limits_.page_tokens; ++i) {
    const Slot& slot = slots_[std::size_t{page} * limits_.page_tokens + i];
    hash = mix(hash ^ slot.past ^ mix(slot.token));
  }
  return {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32), 0, 0};
}

// Steps in flight do not write to these pages, so it makes no difference that they are not computed yet.
Status FakeExecutor::start_sums(std::span<const engine::PageIndex> pages,
                                std::uint64_t weight_bytes) {
  if (lots_.size() >= kSumsInFlight) return broken("too many lots of sums in flight");
  if (pages.size() > limits_.most_pages_summed) return broken("too many pages to sum");
  for (const Pending& step : in_flight_) {
    for (const engine::Column& column : step.columns) {
      const auto written = step.tables[column.sequence][column.position / limits_.page_tokens];
      if (std::ranges::find(pages, written) != pages.end())
        return broken("a page to sum that a step in flight writes to");
      if (step.windows.empty()) continue;
      const auto window = step.windows[column.sequence][column.position / limits_.page_tokens];
      if (std::ranges::find(pages, window) != pages.end())
        return broken("a window page to sum that a step in flight writes to");
    }
    for (const engine::Column& column : step.columns) {
      if (column.state_slot != engine::kNoState &&
          std::ranges::find(pages, limits_.first_state() + column.state_slot) != pages.end())
        return broken("a draft's slot to sum");
    }
    for (const engine::StateUse& use : step.states) {
      for (const std::uint32_t written : {use.to, use.saved_after > 0 ? use.saved : use.to}) {
        if (std::ranges::find(pages, limits_.first_state() + written) != pages.end())
          return broken("a slot to sum that a step in flight writes to");
      }
    }
  }
  if (!std::ranges::all_of(pages, [this](auto page) { return is_present(page); }))
    return broken("a page without memory to sum");
  lot_pages_.emplace_back(pages.begin(), pages.end());
  weight_bytes_looked_at += weight_bytes;
  std::vector<engine::PageSum>& lot = lots_.emplace_back();
  for (const engine::PageIndex page : pages)
    lot.push_back(sum_of(page));
  return {};
}

Result<std::span<const engine::PageSum>> FakeExecutor::finish_sums() {
  if (lots_.empty()) return broken("no sums are in flight");
  if (while_summing) while_summing();
  sums_ = std::move(lots_.front());
  lots_.pop_front();
  lot_pages_.pop_front();
  return std::span<const engine::PageSum>(sums_);
}

Result<std::span<const engine::ColumnOutput>> FakeExecutor::wait() {
  if (in_flight_.empty()) return broken("wait without submit");
  if (in_flight_.front().waits_for_adjustments)
    return broken("wait for a step without its adjustments");
  const Pending step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (while_waiting) while_waiting();
  const std::vector<engine::TokenId> before = std::exchange(chosen_, {});
  rows_.clear();
  outputs_.clear();
  tops_.clear();
  tops_.reserve(step.columns.size());
  rows_.reserve(step.columns.size());
  hidden_.clear();
  hidden_.reserve(step.columns.size());
  Run run;
  for (std::uint32_t index = 0; index < step.columns.size(); ++index) {
    const std::uint64_t seen = compute(step, index, before, run);
    if (step.columns[index].output != engine::Output::kNone) make_output(step, index, seen);
  }
  lost_ = steps_to_lose > 0;
  if (!lost_) return std::span<const engine::ColumnOutput>(outputs_);
  --steps_to_lose;
  for (const engine::Column& column : step.columns) {
    ++slot_in(step.tables[column.sequence], column.position).past;
    if (limits_.states == 0) continue;
    const engine::StateUse& use = step.states[column.sequence];
    ++states_[use.to];
    if (column.state_slot != engine::kNoState) ++states_[column.state_slot];
    if (use.saved_after != 0) ++states_[use.saved];
  }
  return std::span<const engine::ColumnOutput>();
}

std::uint64_t FakeExecutor::compute(const Pending& step, std::uint32_t index,
                                    const std::vector<engine::TokenId>& before, Run& run) {
  const engine::Column& column = step.columns[index];
  const auto& table = step.tables[column.sequence];
  const bool by_host = column.chosen_by == engine::kByHost;
  const engine::TokenId token = by_host ? column.token : before[column.chosen_by];
  std::uint64_t past = column.position == 0 ? 0 : slot_in(table, column.position - 1).past;
  if (limits_.states > 0) {
    const engine::StateUse& use = step.states[column.sequence];
    if (index == 0 || step.columns[index - 1].sequence != column.sequence) {
      run.begin = index;
      run.carried = column.position == 0 ? 0 : states_[use.from];
    }
    past = run.carried;
    const bool draft = column.state_slot != engine::kNoState;
    run.carried = states_[draft ? column.state_slot : use.to] = fold(past, token, column.position);
    if (index - run.begin + 1 == use.saved_after) states_[use.saved] = run.carried;
  }
  std::uint64_t seen = 0;
  if (limits_.window > 0) {
    const auto& windows = step.windows[column.sequence];
    seen = seen_through_window(windows, column.position);
    past ^= seen;
    slot_in(windows, column.position) = {token, through_window(fold(past, token, column.position))};
  }
  slot_in(table, column.position) = {token, fold(past, token, column.position)};
  return seen;
}

void FakeExecutor::make_output(const Pending& step, std::uint32_t index, std::uint64_t seen) {
  const engine::Column& column = step.columns[index];
  std::uint64_t hash = 0;
  std::vector<engine::TokenId> history;
  for (std::uint32_t position = 0; position <= column.position; ++position) {
    const Slot& slot = slot_in(step.tables[column.sequence], position);
    hash = mix(hash ^ slot.past);
    history.push_back(slot.token);
  }
  hash ^= seen;
  std::vector<float>& row = rows_.emplace_back(row_of(hash, limits_.vocabulary));
  if (script) {
    if (const auto forced = script(history)) row[*forced] = 20;
  }
  if (poisoned_outputs > 0) {
    std::fill(row.begin(), row.end(), std::numeric_limits<float>::quiet_NaN());
    --poisoned_outputs;
  }
  engine::Adjustment adjustment;
  if (column.adjusted) {
    const auto before = std::span(step.columns).first(index);
    adjustment = step.adjustments[static_cast<std::size_t>(
                                      std::ranges::count(before, true, &engine::Column::adjusted))]
                     .view();
  }
  std::vector<float> edited = row;
  engine::apply(adjustment.edits, edited);
  const auto& mask = adjustment.mask;
  engine::TokenId best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (engine::TokenId token = 0; token < row.size(); ++token) {
    const bool allowed =
        mask.empty() || (token / 32 < mask.size() && (mask[token / 32] >> (token % 32) & 1U) != 0);
    if (!allowed || !(edited[token] > largest)) continue;
    best = token;
    largest = edited[token];
  }
  double sum = 0;
  for (const float logit : row)
    sum += std::exp(static_cast<double>(logit) - row[best]);
  engine::ColumnOutput& output = outputs_.emplace_back();
  output.column = index;
  output.best = best;
  if (column.output == engine::Output::kSampled)
    output.best = drawn(row, step.choices[index], column.position, adjustment).value_or(best);
  chosen_.push_back(output.best);
  output.best_logprob = static_cast<float>(-std::log(sum));
  if (column.output == engine::Output::kLogits) output.logits = row;
  if (column.output == engine::Output::kHidden || column.tells_hidden)
    output.hidden = hidden_.emplace_back(row_of(mix(hash), limits_.embedding));
  if (column.logprobs >= 0) {
    const auto made =
        sampler_.logprobs(row, output.best, static_cast<std::uint32_t>(column.logprobs));
    output.logprob = made.chosen;
    output.top = tops_.emplace_back(made.best.begin(), made.best.end());
  }
}

std::optional<engine::TokenId> FakeExecutor::drawn(const std::vector<float>& row,
                                                   const engine::Choice& choice,
                                                   std::uint32_t position,
                                                   const engine::Adjustment& adjustment) {
  ipc::Sampling sampling;
  sampling.temperature = choice.temperature;
  sampling.top_k = choice.top_k;
  sampling.top_p = choice.top_p;
  sampling.min_p = choice.min_p;
  sampling.seed = choice.seed;
  const auto token = sampler_.sample(row, sampling, position + 1 - choice.first, adjustment);
  return token.ok() ? std::optional(*token) : std::nullopt;
}

}  // namespace bulkhead::test

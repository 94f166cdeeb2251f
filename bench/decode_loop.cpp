#include "bench/decode_loop.hpp"

#include <utility>

namespace bulkhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCheckMemory{config::IsolationSettings{}.check_memory_s};

engine::TokenId made_up(std::uint32_t stream, std::uint32_t position, std::uint32_t vocabulary) {
  return (stream * 7919 + position * 104729 + 17) % vocabulary;
}

}  // namespace

DecodeLoop::DecodeLoop(engine::Executor& executor, std::uint32_t streams,
                       const config::EngineSettings& engine, engine::Speculation speculation,
                       Pages pages)
    : executor_(executor),
      speculator_(speculation),
      scheduler_(executor.limits(), {streams, engine.prefill_chunk, pages != Pages::kForgotten,
                                     engine.prefill_chunk_alone}) {
  if (pages != Pages::kChecked) return;
  guard_ = std::make_unique<engine::PageGuard>(executor, scheduler_.pool(), kCheckMemory,
                                               [] { return Clock::now(); });
  scheduler_.set_ledger(guard_.get());
}

DecodeLoop::~DecodeLoop() {
  for (auto& sequence : sequences_)
    scheduler_.remove(*sequence);
}

void DecodeLoop::add(std::uint32_t stream, std::uint32_t prompt, std::uint32_t most) {
  auto& sequence = *sequences_.emplace_back(std::make_unique<engine::DraftedSequence>());
  sequence.most_tokens = most;
  sequence.tokens.reserve(most);
  for (std::uint32_t i = 0; i < prompt; ++i)
    sequence.tokens.push_back(made_up(stream, i, executor_.limits().vocabulary));
  scheduler_.add(sequence);
}

void DecodeLoop::guess(std::size_t stream, std::vector<engine::TokenId> recorded, double accuracy) {
  speculator_.start(*sequences_[stream],
                    std::make_unique<engine::RecordedSource>(std::move(recorded), accuracy,
                                                             executor_.limits().vocabulary));
}

Result<std::uint32_t> DecodeLoop::turn() {
  while (scheduler_.in_flight() < executor_.limits().steps_in_flight) {
    speculator_.propose(scheduler_);
    const engine::Step* const step = scheduler_.plan();
    if (step == nullptr) break;
    if (guard_ != nullptr) BULKHEAD_RETURN_IF_ERROR(guard_->start(++submitted_));
    BULKHEAD_RETURN_IF_ERROR(executor_.submit(*step));
  }
  if (scheduler_.in_flight() == 0) return Error(ErrorCode::kInternal, "nothing left to compute");
  return end_one();
}

Status DecodeLoop::end_all() {
  while (scheduler_.in_flight() > 0)
    BULKHEAD_RETURN_IF_ERROR(end_one());
  if (guard_ == nullptr) return {};
  BULKHEAD_TRY(const auto damaged, guard_->collect(engine::PageGuard::kAll));
  if (!damaged.pages.empty()) return Error(ErrorCode::kInternal, "damaged KV pages");
  if (!damaged.states.empty()) return Error(ErrorCode::kInternal, "damaged saved states");
  return {};
}

Result<std::uint32_t> DecodeLoop::end_one() {
  BULKHEAD_TRY(const auto outputs, executor_.wait());
  if (guard_ != nullptr) BULKHEAD_RETURN_IF_ERROR(guard_->collect(++ended_));
  scheduler_.complete();
  engine::Speculator::Ended ended;
  for (const engine::ColumnOutput& output : outputs) {
    auto& sequence = static_cast<engine::DraftedSequence&>(*scheduler_.sequence_of(output.column));
    const bool right = scheduler_.confirm(output.column);
    const bool draft = scheduler_.is_draft(output.column);
    ++(draft ? ended.drafts : ended.own);
    if (draft) speculator_.checked(sequence, right);
    if (!right) continue;
    sequence.tokens.push_back(output.best);
    speculator_.appended(sequence, {});
    ++ended.tokens;
  }
  const Clock::time_point now = Clock::now();
  ended.took = now - std::exchange(ended_at_, now);
  bool generates = true;
  for (const engine::Scheduler::Member& member : scheduler_.members())
    generates = generates && member.columns == 1 && member.outputs == 1;
  if (generates) speculator_.ended(ended);
  return ended.tokens;
}

}  // namespace bulkhead::bench

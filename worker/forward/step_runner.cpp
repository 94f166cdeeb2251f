#include "worker/forward/step_runner.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "config/base/log.hpp"
#include "worker/forward/chain.hpp"
#include "worker/forward/step_check.hpp"

namespace bulkhead::forward {

Status StepRunner::prepare(std::vector<StepShape> shapes) {
  for (const StepShape& shape : shapes)
    borders_[shape.columns] = attention_borders(context_, shape.columns);
  recordings_.set_shapes(std::move(shapes));
  return slots_.make();
}

Status StepRunner::submit(const engine::Step& step) {
  if (slots_.all_in_flight())
    return Error(ErrorCode::kInternal,
                 "a step was submitted while as many as can be are in flight");
  if (slots_.in_flight() > 0 && slots_[slots_.last()].waits)
    return Error(ErrorCode::kInternal,
                 "a step was submitted after one that waits for its adjustments");
  BULKHEAD_RETURN_IF_ERROR(broken_);
  BULKHEAD_RETURN_IF_ERROR(check_step(step, limits_, slots_.chosen_rows()));
  for (std::size_t i = 0; i < step.hidden.size(); ++i)
    std::ranges::copy(step.hidden[i],
                      brought_rows().begin() + static_cast<std::ptrdiff_t>(i * limits_.embedding));
  const auto outputs = std::count_if(
      step.columns.begin(), step.columns.end(),
      [](const engine::Column& column) { return column.output != engine::Output::kNone; });
  return start(step, shape_for(shapes(), static_cast<std::uint32_t>(step.columns.size()),
                               static_cast<std::uint32_t>(outputs)));
}

Status StepRunner::start(const engine::Step& step, StepShape shape) {
  const std::uint32_t index = slots_.next();
  BULKHEAD_RETURN_IF_ERROR(slots_.write_parameters(step));
  shape.chooses_later = slots_[index].waits;
  shape.positions = positions_of(step.columns, borders_[shape.columns]);
  last_shape_ = slots_[index].shape = shape;
  BULKHEAD_TRY(last_recorded_, recordings_of(index));
  const Status launched = launch(last_recorded_, index);
  if (!launched.ok()) return fail(index, launched);
  slots_.submitted();
  ++steps_;
  return {};
}

Status StepRunner::choose(std::span<const engine::Adjustment> adjustments) {
  BULKHEAD_RETURN_IF_ERROR(broken_);
  const std::uint32_t index = slots_.last();
  const bool waits = slots_.in_flight() > 0 && slots_[index].waits;
  if (!waits || adjustments.size() != slots_[index].adjusted.size())
    return Error(ErrorCode::kInternal, "more adjustments than the step waits for");
  const Status written = slots_.write_adjustments(index, adjustments);
  if (!written.ok()) return fail(index, written);
  kept_ = Sent{last_recorded_, index, Parts::kFollower};
  return {};
}

Status StepRunner::flush() {
  if (!kept_) return {};
  const Sent kept = *std::exchange(kept_, std::nullopt);
  const Status sent = send({&kept, 1});
  return sent.ok() ? sent : fail(kept.index, sent);
}

Status StepRunner::record(StepShape shape, const OutputWishes& wishes) {
  const engine::Column first;
  shape.positions = positions_of({&first, 1}, borders_[shape.columns]);
  BULKHEAD_TRY(const StepRecording* const made, recordings_.get(shape));
  BULKHEAD_TRY([[maybe_unused]] const auto* const follower, recordings_.follower(*made, wishes));
  recordings_.give_memory_back(shape);
  return {};
}

Result<StepRunner::Recordings> StepRunner::recordings_of(std::uint32_t index) {
  const StepSlot& slot = slots_[index];
  Recordings made;
  BULKHEAD_TRY(made.step, recordings_.get(slot.shape));
  BULKHEAD_TRY(
      made.follower,
      recordings_.follower(*made.step, {!slot.adjusted.empty(), slot.edits, slot.cuts, slot.samples,
                                        slot.tells_logprobs, slot.tells_hidden}));
  return made;
}

// After a failure, a part of the step may be running.
Status StepRunner::launch(const Recordings& recorded, std::uint32_t index) {
  StepSlot& slot = slots_[index];
  slot.may_give_up = chained(context_, slot.shape);
  for (const Upload& upload : slots_.uploads(index)) {
    if (upload.from.bytes > 0) BULKHEAD_RETURN_IF_ERROR(blit().upload_from(upload.from, upload.to));
  }
  const gpu::CommandRing::After uploaded = blit().uploads_done();
  const bool wait_for_upload = uploaded.semaphore != VK_NULL_HANDLE;
  const std::span after(&uploaded, wait_for_upload ? 1 : 0);
  slot.downloaded.reset();
  const Sent step{recorded, index, slot.waits ? Parts::kStep : Parts::kAll, after};
  if (!kept_) return send({&step, 1});
  return send(std::array{*std::exchange(kept_, std::nullopt), step});
}

// Hands everything to the queue in one call, and starts the downloads of what follows steps.
Status StepRunner::send(std::span<const Sent> all) {
  using Ring = gpu::CommandRing;
  std::array<std::array<Ring::RecordingId, 2>, Ring::kMostBatches> ids{};
  static_assert(std::tuple_size_v<decltype(ids)::value_type> <= Ring::kMostTogether);
  std::array<Ring::Batch, Ring::kMostBatches> batches{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::size_t count = 0;
    if (all[i].parts != Parts::kFollower) ids[i][count++] = all[i].recorded.step->id;
    if (all[i].parts != Parts::kStep && all[i].recorded.follower != nullptr)
      ids[i][count++] = all[i].recorded.follower->id;
    batches[i] = {std::span(ids[i]).first(count), all[i].after, all[i].index};
  }
  BULKHEAD_RETURN_IF_ERROR(ring().submit_batches(std::span(batches).first(all.size())));
  for (std::size_t i = 0; i < all.size(); ++i) {
    slots_[all[i].index].ticket = batches[i].ticket;
    if (all[i].parts == Parts::kStep) continue;
    BULKHEAD_RETURN_IF_ERROR(
        slots_.start_downloads(all[i].index, *all[i].recorded.step->activations, blit(), ring()));
  }
  return {};
}

Result<std::span<const engine::ColumnOutput>> StepRunner::wait() {
  if (slots_.in_flight() == 0) return Error(ErrorCode::kInternal, "no step is in flight");
  const std::uint32_t index = slots_.oldest();
  if (slots_[index].waits)
    return Error(ErrorCode::kInternal, "a step was awaited before it had its adjustments");
  Status finished = finish(index);
  lost_ = steps_to_lose_ > 0;
  if (lost_) --steps_to_lose_;
  if (finished.ok() && !lost_ && slots_.gave_up(index)) {
    lost_ = !context_.graph.states.empty();
    finished = lost_ ? lose_steps() : compute_again();
  }
  slots_.waited();
  if (!finished.ok()) return fail(index, finished).error();
  recordings_.give_memory_back(last_shape_);
  if (lost_) return std::span<const engine::ColumnOutput>();
  return std::span<const engine::ColumnOutput>(slots_[index].outputs);
}

// Says which recordings the step consists of, so that an operator who has several reports of a failing device can
// compare them.
const Status& StepRunner::fail(std::uint32_t index, const Status& failure) {
  const StepSlot& slot = slots_[index];
  std::string words =
      fmt::format("recorded for {} columns and {} outputs, {}", slot.shape.columns,
                  slot.shape.outputs, slot.may_give_up ? "chained" : "with barriers");
  if (!slot.adjusted.empty()) words += ", then adjustments";
  if (slot.samples) words += ", then draws";
  if (slot.tells_logprobs) words += ", then log-probabilities";
  if (slot.tells_hidden) words += ", then hidden states";
  broken_ = failure.error().within(words);
  kept_.reset();
  return broken_;
}

Result<bool> StepRunner::finished(std::uint32_t wait_ms) {
  BULKHEAD_RETURN_IF_ERROR(flush());
  return ring().finished(slots_[slots_.last()].ticket, wait_ms);
}

Result<bool> StepRunner::oldest_finished(std::uint32_t wait_ms) {
  if (slots_.in_flight() == 0) return true;
  BULKHEAD_RETURN_IF_ERROR(flush());
  return ring().finished(slots_[slots_.oldest()].ticket, wait_ms);
}

Status StepRunner::finish(std::uint32_t index) {
  BULKHEAD_RETURN_IF_ERROR(flush());
  StepSlot& slot = slots_[index];
  BULKHEAD_RETURN_IF_ERROR(ring().wait(slot.ticket));
  if (!slot.downloaded) return {};
  BULKHEAD_RETURN_IF_ERROR(blit().finish_download_to(*slot.downloaded));
  slots_.take_results(index);
  return {};
}

// Makes later steps have barriers between dispatches, once all steps in flight have ended.
Status StepRunner::stop_chaining() {
  spdlog::warn(
      "workgroups of a step waited for each other in vain: it is computed again, and from here "
      "on as gpu_optimizations.chained_kernels: off does");
  for (std::uint32_t i = 1; i < slots_.in_flight(); ++i)
    BULKHEAD_RETURN_IF_ERROR(finish(slots_.after(slots_.oldest(), i)));
  give_up_chain(context_);
  computed_again_ += slots_.in_flight();
  recordings_.forget_all();
  return {};
}

// The steps in flight have changed states, so they can't be computed again: the engine computes their sequences again
// from earlier states.
Status StepRunner::lose_steps() {
  BULKHEAD_RETURN_IF_ERROR(stop_chaining());
  steps_to_lose_ = slots_.in_flight() - 1;
  if (steps_to_lose_ == 0) return {};
  // The last one may still wait for its adjustments.
  BULKHEAD_TRY(last_recorded_, recordings_of(slots_.last()));
  return {};
}

// Computes the steps in flight again: the oldest gave up, and the others have continued with what it left.
Status StepRunner::compute_again() {
  const std::uint32_t first = slots_.oldest();
  BULKHEAD_RETURN_IF_ERROR(stop_chaining());
  slots_.tell_tokens();
  for (std::uint32_t i = 0; i < slots_.in_flight(); ++i) {
    const std::uint32_t index = slots_.after(first, i);
    BULKHEAD_TRY(last_recorded_, recordings_of(index));
    BULKHEAD_RETURN_IF_ERROR(launch(last_recorded_, index));
  }
  return finish(first);
}

Result<std::vector<gpu::KernelTime>> StepRunner::profile() {
  BULKHEAD_TRY(const StepRecording* const recorded, recordings_.get(last_shape_));
  auto times = ring().profile(recorded->id, slots_.last());
  if (!times.ok() && times.error().code() != ErrorCode::kUnsupported) broken_ = times.error();
  recordings_.give_memory_back(last_shape_);
  return times;
}

}  // namespace bulkhead::forward

// Slots: what each step in flight needs for itself, namely parameters, logits and results, on the device and in
// memory that the host maps. Steps take the slots in turn.
//
// This class follows the layout of parameters and results (gpu/kernels). Other classes decide how a step is
// computed. After make(), only reserve_logits() and reserve_adjustments() allocate memory. The caller calls them
// between steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/command_ring.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_adjustments.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

// A copy from the host to the device; empty: nothing is to be copied.
struct Upload {
  gpu::BufferSlice from, to;
};

struct StepSlot {
  gpu::BufferSlice parameters, results, logprobs, hidden;  // in host memory
  // The same for a stage of a split model: rows of the residual stream, from the stage before it and for the stage
  // after it. A block that drafts tokens has hidden states in `brought`.
  gpu::BufferSlice brought, computed;
  // Blocks of kLogitsRows rows for the logits that the host reads, in the order of their outputs. make() allocates
  // one block, and reserve_logits() allocates more when requests need them. The reasons: the host chooses the tokens
  // of few sequences, rows for all sequences could take hundreds of MiB, and host memory that the device can write to
  // is slow to allocate.
  std::vector<gpu::BufferSlice> logits;
  gpu::CommandRing::Ticket ticket = 0;
  std::optional<gpu::BlitQueue::Ticket> downloaded;  // the last download of the step
  std::vector<engine::ColumnOutput> outputs;
  // The bytes to upload. `window_bytes_there` says how many bytes of the windows' tables the device already has from
  // earlier uploads.
  std::uint64_t parameter_bytes = 0, window_bytes = 0, window_bytes_there = 0;
  std::uint32_t columns = 0;
  bool samples = false;
  bool cuts = false;                              // whether an output has a top-p and no top-k
  std::vector<StepAdjustments::Output> adjusted;  // the outputs with Column::adjusted
  bool waits = false;                             // these do not have their adjustments yet
  bool edits = false;                             // some of them may have edits
  std::vector<std::int32_t> wanted;       // for each output: Column::logprobs
  bool tells_logprobs = false;            // some outputs ask for log-probabilities
  bool tells_hidden = false;              // some outputs ask for hidden states
  std::vector<engine::RankedToken> tops;  // for all outputs
  StepShape shape;
  bool may_give_up = false;  // its workgroups wait for each other
};

class StepSlots {
 public:
  // The arguments must outlive this object and must not move.
  StepSlots(StepContext& context, const engine::ExecutorLimits& limits)
      : context_(context), limits_(limits), adjustments_(context, limits) {}
  // Makes context.slots slots: sets context.parameter_layout and result_rows, and allocates the device's parts in the
  // context.
  Status make();

  // See Executor::reserve_logits().
  Status reserve_logits(std::uint32_t outputs);
  // See Executor::reserve_adjustments().
  Status reserve_adjustments(std::uint64_t edits) { return adjustments_.reserve(edits); }

  StepSlot& operator[](std::uint32_t index) { return slots_[index]; }
  std::uint32_t in_flight() const { return in_flight_; }
  bool all_in_flight() const { return in_flight_ == slots_.size(); }
  std::uint32_t next() const { return next_; }             // the slot of the step to be submitted
  std::uint32_t last() const { return before(next_, 1); }  // the slot of the step submitted last
  std::uint32_t oldest() const { return before(next_, in_flight_); }  // the slot of the step to be awaited next
  std::uint32_t after(std::uint32_t index, std::uint32_t steps) const {
    return static_cast<std::uint32_t>((index + steps) % slots_.size());
  }
  std::uint32_t before(std::uint32_t index, std::uint32_t steps) const {
    return static_cast<std::uint32_t>((index + slots_.size() - steps) % slots_.size());
  }
  void submitted();  // the step in next() was submitted
  void waited();     // the step in oldest() has been awaited
  // Returns the number of outputs of the step submitted last.
  std::uint32_t chosen_rows() const { return chosen_rows_; }

  // The parts of a slot's parameters that its step needs on the device, and their destinations.
  std::array<Upload, 3> uploads(std::uint32_t index) const;  // all but the first may be empty
  // Fills the next slot's parameters and outputs. Returns an error if the step needs more rows of logits than were
  // reserved and the host has no memory for them.
  Status write_parameters(const engine::Step& step);
  // Writes what the slot's adjusted outputs get, for what follows its step.
  Status write_adjustments(std::uint32_t index, std::span<const engine::Adjustment> adjustments);
  // Starts to download the slot's results, log-probabilities, logits and hidden states, as far as they are wanted.
  // They are downloaded once its ticket's work is over.
  Status start_downloads(std::uint32_t index, const Activations& activations, gpu::BlitQueue& blit,
                         const gpu::CommandRing& ring);
  void take_results(std::uint32_t index);  // copies what was downloaded to the slot's outputs
  // Returns whether workgroups of a finished step stopped waiting for each other.
  bool gave_up(std::uint32_t index) const;
  // Writes the tokens into the oldest step that it was to find in the results of the step before it, because a later
  // step may have overwritten these results.
  void tell_tokens();

 private:
  void write_runs(const engine::Step& step, std::byte* base) const;
  void write_sights(const engine::Step& step, std::byte* base);
  bool write_windows(const engine::Step& step, std::byte* base) const;
  Status make_room_for_logits(StepSlot& slot, std::uint64_t rows);
  Status make_room_for_stream();
  std::uint64_t rows_copied(const StepSlot& slot) const;
  std::uint64_t logits_row_bytes() const {
    return std::uint64_t{limits_.vocabulary} * sizeof(float);
  }
  std::uint64_t hidden_row_bytes() const {
    return std::uint64_t{limits_.embedding} * sizeof(float);
  }

  StepContext& context_;
  const engine::ExecutorLimits& limits_;
  gpu::Buffer host_parameters_, host_results_, host_logprobs_, host_hidden_;  // [slot]
  gpu::Buffer host_brought_, host_computed_;                                  // [slot]
  std::vector<gpu::Buffer> host_logits_;                                      // blocks of all slots
  StepAdjustments adjustments_;
  std::vector<StepSlot> slots_;
  std::uint32_t next_ = 0;
  std::uint32_t in_flight_ = 0;    // the slots before next_
  std::uint32_t chosen_rows_ = 0;  // outputs of the step submitted last
  std::vector<std::uint32_t> page_starts_;
  std::vector<std::uint32_t> last_positions_;  // of a step's sequences
  std::vector<engine::TokenId> last_tokens_;  // of the step awaited last
};

}  // namespace bulkhead::forward

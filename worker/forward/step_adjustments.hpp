// What changes in the logits of a step's outputs before their draws (engine::Adjustment), as kernels read it.
//
// All of it stays in memory that the host maps, because kernels read it once. The list of adjusted outputs has the
// addresses of the edits.
//
// This class follows the layout of gpu/kernels/adjusted_rows.glsl. Its caller decides when a step gets its
// adjustments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_context.hpp"

namespace bulkhead::forward {

class StepAdjustments {
 public:
  // The arguments must outlive this object and must not move.
  StepAdjustments(StepContext& context, const engine::ExecutorLimits& limits)
      : context_(context), limits_(limits) {}
  // Allocates what is in the context.
  Status make();

  // See Executor::reserve_adjustments(); the memory for masks is there already.
  Status reserve(std::uint64_t edits);

  struct Output {
    std::uint32_t row = 0;
    bool tells_logprobs = false;
    bool edits = false;  // whether it may have edits
  };
  // Writes the adjustments of these outputs to a slot whose last step has ended. May allocate memory for more edits
  // than were reserved.
  Status write(std::uint32_t slot, std::span<const Output> outputs,
               std::span<const engine::Adjustment> adjustments);

 private:
  // Where a slot's edits lie; offsets in bytes.
  struct EditLayout {
    std::uint64_t lists = 0, before = 0, stride = 0;
  };
  EditLayout layout_for(std::uint64_t edits) const;
  // What a slot's edits have taken so far.
  struct Taken {
    std::uint64_t edits = 0, before = 0;
    std::span<const engine::LogitEdit> list;  // the last one, and where it lies
    std::uint64_t list_at = 0;
  };
  Status write_edits(std::uint32_t slot, const engine::LogitEdits& edits, bool tells,
                     gpu::kernels::AdjustedRow& row, Taken& taken);

  std::byte* base_of(std::uint32_t slot) const;
  void put_row(std::uint32_t slot, std::size_t index, const gpu::kernels::AdjustedRow& row);

  StepContext& context_;
  const engine::ExecutorLimits& limits_;
  std::vector<gpu::Buffer>
      edits_;  // [slot]; the last one is in use, steps in flight may read the others
  std::uint64_t edits_reserved_ = 0;
  EditLayout edit_layout_;  // of edits_.back()
};

}  // namespace bulkhead::forward

// The dispatches of attention for step_program.cpp: rotation and the new keys and values, then attention
// over pages (gpu/kernels/kernels.hpp).
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_context.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

// For a step of up to `columns` columns in `slot`. Everything must outlive it.
class AttentionSteps {
 public:
  AttentionSteps(const StepContext& context, const Activations& activations, std::uint32_t columns,
                 std::uint32_t slot, StepEmitter& emit)
      : context_(context), activations_(activations), columns_(columns), slot_(slot), emit_(emit) {}

  Status add(const RotateStep& step);
  Status add(const RotateLatentStep& step);
  Status add(const AttendStep& step);

 private:
  Status attend_range(const model::Attend& attend, const gpu::kernels::AttentionShape& shape,
                      const gpu::kernels::AttentionRange& range, gpu::kernels::AttentionPush push);
  Status combine(const model::Attend& attend, const gpu::kernels::AttentionShape& shape);
  // Where workgroups count themselves. A chain that is given up leaves counts behind, so each chain has
  // counts of its own, which it begins at zero.
  std::uint64_t counts() const;
  std::uint32_t padded_width(const model::Attend& attend,
                             const gpu::kernels::AttentionShape& shape) const;
  // While kernels are listed there are no pages yet.
  KvPages kv(model::KvIndex store) const {
    return store < context_.kv.size() ? context_.kv[store] : KvPages{};
  }
  std::uint64_t parameters() const { return context_.parameters_of(slot_); }
  std::uint64_t pages() const { return parameters() + context_.parameter_layout.pages; }
  bool in_chain() const { return columns_ <= context_.chain.columns; }
  std::uint32_t stride(model::ActivationIndex activation) const {
    return stride_of(context_, activation);
  }
  std::uint64_t at(model::ActivationIndex activation) const { return activations_.at(activation); }
  std::uint64_t at(Scratch scratch) const { return activations_.at(context_.plan, scratch); }

  const StepContext& context_;
  const Activations& activations_;
  const std::uint32_t columns_, slot_;
  StepEmitter& emit_;
};

}  // namespace bulkhead::forward

// The step of an operation that has a kernel of its own (worker/model/operations/README.md): what the operation fills,
// and what it asks about its activations meanwhile.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernel_row.hpp"
#include "worker/forward/operation_kernels.hpp"
#include "worker/forward/step_buffers.hpp"
#include "worker/forward/step_emitter.hpp"

namespace bulkhead::forward {

template <model::HasOwnKernel Operation>
class OwnKernelStep {
 public:
  using Kernel = typename KernelOf<Operation>::Type;

  // `most_columns`: of the step.
  OwnKernelStep(const StepContext& context, const Activations& activations,
                std::uint32_t most_columns, std::uint32_t slot)
      : columns(most_columns), context_(context), activations_(activations), slot_(slot) {
    constants.invocations = context.mapping.wide_invocations;
  }

  // The operation fills these. An entry that it leaves is zero in `push` and the kernel's default in `constants`; a
  // workgroup has as many invocations as the device's element-wise kernels.
  typename Kernel::Push push{};
  typename Kernel::Constants constants;
  Extent extent;

  const std::uint32_t columns;

  std::uint64_t address(model::ActivationIndex activation) const {
    return activations_.at(activation);
  }
  std::uint64_t vector(model::VectorIndex vector) const { return context_.weights.vector(vector); }
  // The counts of columns and outputs, then the columns.
  std::uint64_t parameters() const { return context_.parameters_of(slot_); }
  // Of an operation with a state: its slots, how many floats each has, the runs of columns, and the run of each column.
  std::uint64_t states(model::StateIndex state) const {
    // While kernels are listed there are no states yet.
    return state < context_.states.size() ? context_.states[state] : 0;
  }
  std::uint32_t slot_floats(model::StateIndex state) const {
    return static_cast<std::uint32_t>(forward::slot_floats(context_.graph.states[state]));
  }
  std::uint64_t runs() const { return parameters() + context_.parameter_layout.runs; }
  std::uint64_t column_runs() const { return parameters() + context_.parameter_layout.column_runs; }
  std::uint32_t width(model::ActivationIndex activation) const { return at(activation).width; }
  // Entries from one column to the next.
  std::uint32_t stride(model::ActivationIndex activation) const {
    return stride_of(context_, activation);
  }
  // How far a column is written: zeros follow the entries of a product's input.
  std::uint32_t padded_width(model::ActivationIndex activation) const {
    return is_input(activation) ? gpu::kernels::input_padded(context_.mapping, width(activation))
                                : width(activation);
  }
  // The layout of a column, for store_input().
  std::uint32_t form(model::ActivationIndex activation) const {
    return static_cast<std::uint32_t>(is_input(activation) ? context_.mapping.input_form()
                                                           : gpu::kernels::InputForm::kRows);
  }

  Status emit(StepEmitter& emitter) const {
    return emitter.dispatch(gpu::kernels::kernel<Kernel>(constants), gpu::push_bytes(push), extent);
  }

 private:
  const model::Activation& at(model::ActivationIndex activation) const {
    return context_.plan.activations[activation];
  }
  bool is_input(model::ActivationIndex activation) const {
    return at(activation).form == model::Activation::Form::kInput;
  }

  const StepContext& context_;
  const Activations& activations_;
  const std::uint32_t slot_;
};

}  // namespace bulkhead::forward

#include "worker/forward/step_delta.hpp"

#include <algorithm>

#include "gpu/kernels/delta.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

Status add_delta(const StepContext& context, const Activations& activations, const DeltaStep& step,
                 const DeltaPlace& place, StepEmitter& emit) {
  const model::DeltaNet& net = step.net;
  const k::DeltaShape shape = delta_shape(net.heads);
  const model::StateStore& store = context.graph.states[net.state];
  const auto vector = [&](model::VectorIndex index) { return context.weights.vector(index); };
  k::DeltaPush push{};
  push.mixed = activations.at(net.in);
  push.convolved = activations.at(step.convolved);
  push.read = activations.at(step.read);
  // While kernels are listed there are no states yet.
  push.states = net.state < context.states.size() ? context.states[net.state] : 0;
  push.parameters = context.parameters_of(place.slot);
  push.runs = push.parameters + context.parameter_layout.runs;
  push.column_runs = push.parameters + context.parameter_layout.column_runs;
  push.weights = vector(net.taps);
  push.bias = vector(net.taps_bias);
  push.out_address = activations.at(net.out);
  push.mixed_stride = stride_of(context, net.in);
  push.slot_floats = static_cast<std::uint32_t>(slot_floats(store));
  push.out_stride = stride_of(context, net.out);
  push.padded_width = k::input_padded(context.mapping, shape.value_width());
  push.epsilon = net.epsilon;
  const std::uint64_t columns = place.columns;
  const k::DeltaKernel inputs = k::delta_inputs(context.mapping, shape);
  BULKHEAD_RETURN_IF_ERROR(
      emit.dispatch(inputs.spec, gpu::push_bytes(push),
                    {place.columns, inputs.y, 1, columns * shape.channels() * 8}));
  emit.barrier();
  push.weights = vector(net.rates);
  push.bias = vector(net.bias);
  const std::uint32_t runs = std::min(place.columns, context.most_runs);
  const k::DeltaScans scans = k::delta_scans(context.mapping, shape, place.columns);
  if (scans.few > 0) {
    BULKHEAD_RETURN_IF_ERROR(
        emit.dispatch(scans.few_long, gpu::push_bytes(push),
                      {scans.few, shape.value_heads, scans.z, scans.few * store.floats * 8}));
  }
  BULKHEAD_RETURN_IF_ERROR(
      emit.dispatch(scans.others, gpu::push_bytes(push),
                    {runs, shape.value_heads, scans.z, runs * store.floats * 8}));
  emit.barrier();
  push.weights = vector(net.gain);
  push.bias = vector(net.skip);
  const k::DeltaKernel output = k::delta_output(context.mapping, shape);
  return emit.dispatch(output.spec, gpu::push_bytes(push),
                       {place.columns, output.y, 1, columns * shape.value_width() * 8});
}

}  // namespace bulkhead::forward

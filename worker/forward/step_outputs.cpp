// The last norm of a step, and what follows the step if outputs ask for it: draws,
// log-probabilities and hidden states.
#include "worker/forward/step_outputs.hpp"

#include <algorithm>
#include <utility>

#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

k::SamplePush sample_push(const StepContext& context, const Activations& activations,
                          std::uint32_t slot) {
  const ModelPlan& plan = context.plan;
  k::SamplePush push{};
  const std::uint64_t rows = std::uint64_t{slot} * activations.logits_rows;
  push.logits = activations.at(plan, Scratch::kLogits) + rows * context.graph.vocabulary * 4;
  push.partials = activations.at(plan, Scratch::kGreedyPartials);
  push.results = context.results.address() + std::uint64_t{slot} * context.result_rows * 8;
  push.parameters = context.parameters_of(slot);
  push.choices = push.parameters + context.parameter_layout.choices;
  push.vocabulary = context.graph.vocabulary;
  push.stride = context.graph.vocabulary;
  push.chunks = greedy_chunks(context.graph);
  push.chunk_sums = activations.at(plan, Scratch::kLogprobSums);
  push.logprobs = context.logprobs.address() +
                  std::uint64_t{slot} * context.result_rows * sizeof(k::LogprobRow);
  return push;
}

// Rows of results that a step of any shape may have.
std::uint32_t most_rows(const StepContext& context) {
  return std::max(context.result_rows, 1U);
}

}  // namespace

Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  BULKHEAD_RETURN_IF_ERROR(
      emit.dispatch(k::sample(context.mapping), gpu::push_bytes(push), {most_rows(context)}));
  return program;
}

Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kSums),
                                         gpu::push_bytes(push), {most_rows(context), push.chunks}));
  emit.barrier();
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kTokens),
                                         gpu::push_bytes(push), {most_rows(context)}));
  return program;
}

// The step's own norm leaves the form that the product of logits reads: on GPUs it has another order, and for matrix
// units it is rounded to halves. So this norms the columns again and writes them to the same place.
Result<StepProgram> build_hidden(const StepContext& context, const Activations& activations,
                                 std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  BULKHEAD_RETURN_IF_ERROR(
      add_output_norm(context, activations, OutputRows::kHidden, {slot, most_rows(context)}, emit));
  return program;
}

Status add_output_norm(const StepContext& context, const Activations& activations, OutputRows rows,
                       NormedOutputs outputs, StepEmitter& emit) {
  const model::ModelGraph& graph = context.graph;
  const bool hidden = rows == OutputRows::kHidden;
  const k::InputForm form = hidden ? k::InputForm::kRows : context.mapping.input_form();
  k::RmsNormPush norm{};
  norm.in_address = activations.at(model::kStream);
  norm.gain = context.weights.vector(graph.output_gain);
  norm.out_address = activations.at(context.plan, Scratch::kOutputNormed);
  norm.parameters = context.parameters_of(outputs.slot);
  norm.list = norm.parameters + context.parameter_layout.outputs;
  norm.width = graph.embedding;
  norm.in_stride = stride_of(context, model::kStream);
  norm.out_stride = hidden ? norm.width : k::input_stride(context.mapping, norm.width);
  norm.padded_width = hidden ? norm.width : k::input_padded(context.mapping, norm.width);
  norm.count_word = k::kOutputCountWord;
  norm.epsilon = graph.output_epsilon;
  const Extent extent{outputs.most, 1, 1, std::uint64_t{outputs.most} * norm.width * 8};
  if (graph.output_bias == kAbsent) {
    return emit.dispatch(k::rms_norm(context.mapping, k::NormMakes::kNormed, form),
                         gpu::push_bytes(norm), extent);
  }
  const k::LayerNormPush centred{norm, context.weights.vector(graph.output_bias)};
  return emit.dispatch(k::layer_norm(context.mapping, form), gpu::push_bytes(centred), extent);
}

}  // namespace bulkhead::forward

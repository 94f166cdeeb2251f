// What is made of a step's logits on the device: draws and log-probabilities.
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

// Rows of results that a step may draw for.
std::uint32_t drawn_rows(const StepContext& context) {
  return std::max(context.result_rows, 1U);
}

}  // namespace

Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  BULKHEAD_RETURN_IF_ERROR(
      emit.dispatch(k::sample(context.mapping), gpu::push_bytes(push), {drawn_rows(context)}));
  return program;
}

Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kSums),
                                         gpu::push_bytes(push),
                                         {drawn_rows(context), push.chunks}));
  emit.barrier();
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kTokens),
                                         gpu::push_bytes(push), {drawn_rows(context)}));
  return program;
}

}  // namespace bulkhead::forward

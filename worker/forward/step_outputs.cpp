// The last norm of a step, and what follows the step if outputs ask for it: changes of logits, draws,
// log-probabilities and hidden states. Also lists the kernels that steps and their followers need.
#include "worker/forward/step_outputs.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "gpu/kernels/checksum.hpp"
#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// The outputs whose chunks have a workgroup of their own in the kernels that few outputs need. Workgroups with nothing
// to do take time, too.
constexpr std::uint32_t kOutputsAtOnce = 16;
constexpr std::uint32_t kPartsOfEdits = 8;

// Fills in what kernels that read a slot's logits share.
template <typename Push>
Push push_of_logits(const StepContext& context, const Activations& activations,
                    std::uint32_t slot) {
  Push push{};
  const std::uint64_t rows = std::uint64_t{slot} * activations.logits_rows;
  push.logits =
      activations.at(context.plan, Scratch::kLogits) + rows * context.graph.vocabulary * 4;
  push.partials = activations.at(context.plan, Scratch::kGreedyPartials);
  push.results = context.results.address() + std::uint64_t{slot} * context.result_rows * 8;
  push.parameters = context.parameters_of(slot);
  push.vocabulary = push.stride = context.graph.vocabulary;
  push.chunks = greedy_chunks(context.graph);
  return push;
}

k::SamplePush sample_push(const StepContext& context, const Activations& activations,
                          std::uint32_t slot) {
  auto push = push_of_logits<k::SamplePush>(context, activations, slot);
  push.choices = push.parameters + context.parameter_layout.choices;
  push.chunk_sums = activations.at(context.plan, Scratch::kLogprobSums);
  push.logprobs = context.logprobs.address() +
                  std::uint64_t{slot} * context.result_rows * sizeof(k::LogprobRow);
  push.cuts = activations.at(context.plan, Scratch::kSampleCuts);
  return push;
}

k::EditLogitsPush edit_push(const StepContext& context, const Activations& activations,
                            std::uint32_t slot) {
  const k::SamplePush sampling = sample_push(context, activations, slot);
  k::EditLogitsPush push{};
  push.logits = sampling.logits;
  push.adjustments = context.adjustments_of(slot);
  push.results = sampling.results;
  push.parameters = sampling.parameters;
  push.choices = sampling.choices;
  push.logprobs = sampling.logprobs;
  push.vocabulary = sampling.vocabulary;
  push.stride = sampling.stride;
  return push;
}

// Rows of results that a step of any shape may have.
std::uint32_t most_rows(const StepContext& context) {
  return std::max(context.result_rows, 1U);
}

}  // namespace

k::GreedyPush greedy_push(const StepContext& context, const Activations& activations,
                          std::uint32_t slot) {
  return push_of_logits<k::GreedyPush>(context, activations, slot);
}

// Changes logits, and chooses once more for the outputs that have changes or a mask. The others get the same results
// again.
Result<StepProgram> build_adjusting(const StepContext& context, const Activations& activations,
                                    std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const std::uint32_t workgroups = std::min(most_rows(context), kOutputsAtOnce);
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::edit_logits(context.mapping, k::EditPass::kChanges),
                                         gpu::push_bytes(edit_push(context, activations, slot)),
                                         {workgroups, kPartsOfEdits}));
  emit.barrier();
  k::GreedyPush push = greedy_push(context, activations, slot);
  push.adjustments = context.adjustments_of(slot);
  push.mask_rows = static_cast<std::uint32_t>(context.adjustment_layout.masks);
  push.mask_words = context.adjustment_layout.mask_words;
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::greedy(context.mapping, k::GreedyPass::kAdjustedChunks),
                                         gpu::push_bytes(push), {workgroups, push.chunks}));
  emit.barrier();
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::greedy(context.mapping, k::GreedyPass::kAll),
                                         gpu::push_bytes(push), {most_rows(context)}));
  return program;
}

// Appends one pass after another, with barriers between them.
Result<StepProgram> build_passes(const StepContext& context, const Activations& activations,
                                 std::uint32_t slot, std::span<const k::SamplePass> passes) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  for (const k::SamplePass pass : passes) {
    const bool of_chunks = pass == k::SamplePass::kHistogram || pass == k::SamplePass::kSums;
    const Extent extent = of_chunks
                              ? Extent{std::min(most_rows(context), kOutputsAtOnce), push.chunks}
                              : Extent{most_rows(context)};
    BULKHEAD_RETURN_IF_ERROR(
        emit.dispatch(k::sample(context.mapping, pass), gpu::push_bytes(push), extent));
    if (pass != passes.back()) emit.barrier();
  }
  return program;
}

// Finds where top-p ends, for the outputs that have a top-p and no top-k.
Result<StepProgram> build_cutting(const StepContext& context, const Activations& activations,
                                  std::uint32_t slot) {
  return build_passes(
      context, activations, slot,
      std::array{k::SamplePass::kClear, k::SamplePass::kHistogram, k::SamplePass::kLast});
}

Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  return build_passes(context, activations, slot,
                      std::array{k::SamplePass::kSums, k::SamplePass::kDraw});
}

Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  const k::SamplePush push = sample_push(context, activations, slot);
  BULKHEAD_RETURN_IF_ERROR(
      emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kSums), gpu::push_bytes(push),
                    {std::min(most_rows(context), kOutputsAtOnce), push.chunks}));
  emit.barrier();
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::logprobs(context.mapping, k::LogprobPass::kTokens),
                                         gpu::push_bytes(push), {most_rows(context)}));
  return program;
}

Result<StepProgram> build_telling(const StepContext& context, const Activations& activations,
                                  std::uint32_t slot) {
  StepProgram program;
  DispatchedSteps emit(context, program);
  BULKHEAD_RETURN_IF_ERROR(emit.dispatch(k::edit_logits(context.mapping, k::EditPass::kTells),
                                         gpu::push_bytes(edit_push(context, activations, slot)),
                                         {most_rows(context)}));
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
    const auto makes = graph.output_gain == kAbsent ? k::NormMakes::kCopy : k::NormMakes::kNormed;
    return emit.dispatch(k::rms_norm(context.mapping, makes, form), gpu::push_bytes(norm), extent);
  }
  const k::LayerNormPush centred{norm, context.weights.vector(graph.output_bias)};
  return emit.dispatch(k::layer_norm(context.mapping, form), gpu::push_bytes(centred), extent);
}

Result<std::vector<gpu::KernelSpec>> kernels_needed(StepContext& context,
                                                    std::span<const StepShape> shapes) {
  std::vector<gpu::KernelSpec> specs;
  specs.push_back(k::checksum_kernel());
  specs.push_back(k::piece_checksum_kernel());
  const Activations none;
  for (const auto build : {build_adjusting, build_cutting, build_sampling, build_logprobs,
                           build_telling, build_hidden}) {
    if (!context.graph.makes_logits) break;
    BULKHEAD_RETURN_IF_ERROR(list_kernels(context, specs, [&] { return build(context, none, 0); }));
  }
  for (std::size_t i = shapes.size(); i-- > 0;) {
    BULKHEAD_RETURN_IF_ERROR(
        list_kernels(context, specs, [&] { return build_step(context, none, shapes[i]); }));
  }
  return specs;
}

}  // namespace bulkhead::forward

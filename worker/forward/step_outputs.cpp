// The last norm of a step, and what follows the step if outputs ask for it: changes of logits, draws,
// log-probabilities and hidden states. Also lists the kernels that steps and their followers need.
#include "worker/forward/step_outputs.hpp"

#include <algorithm>
#include <initializer_list>
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

namespace {

// Appends what follows a slot's step, one part after another.
class Followers {
 public:
  Followers(const StepContext& context, const Activations& activations, std::uint32_t slot,
            StepProgram& program)
      : context_(context), activations_(activations), slot_(slot), emit_(context, program) {}

  Status add(const OutputWishes& wishes) {
    // Log-probabilities are those of the logits as they were.
    if (wishes.adjusts && wishes.logprobs) {
      BULKHEAD_RETURN_IF_ERROR(add_chunks(false));
      BULKHEAD_RETURN_IF_ERROR(add_logprobs());
    }
    if (wishes.adjusts) BULKHEAD_RETURN_IF_ERROR(add_adjusting(wishes));
    if (wishes.cuts) {
      BULKHEAD_RETURN_IF_ERROR(
          add_passes({k::SamplePass::kClear, k::SamplePass::kHistogram, k::SamplePass::kLast}));
    }
    if (wishes.draws)
      BULKHEAD_RETURN_IF_ERROR(add_passes({k::SamplePass::kSums, k::SamplePass::kDraw}));
    if (wishes.logprobs) {
      BULKHEAD_RETURN_IF_ERROR(wishes.adjusts ? add_telling() : add_logprobs());
    }
    return wishes.hidden ? add_hidden() : Status();
  }

 private:
  Status dispatch(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                  const Extent& extent) {
    if (std::exchange(depends_, true)) emit_.barrier();
    return emit_.dispatch(spec, push, extent);
  }

  // Finds the best tokens of chunks, for all outputs. `adjusted`: under masks; else of the logits as they are.
  Status add_chunks(bool adjusted) {
    const AdjustmentLayout& layout = context_.adjustment_layout;
    k::GreedyPush push = greedy_push(context_, activations_, slot_);
    if (adjusted) {
      push.choices = push.parameters + context_.parameter_layout.choices;
      push.adjustments = context_.adjustments_of(slot_);
      push.mask_rows = static_cast<std::uint32_t>(layout.masks);
      push.mask_words = layout.mask_words;
    }
    return dispatch(k::greedy(context_.mapping, k::GreedyPass::kAdjustedChunks),
                    gpu::push_bytes(push),
                    {std::min(most_rows(context_), kOutputsAtOnce), push.chunks});
  }

  // Changes logits, and makes the greedy choice of all outputs.
  Status add_adjusting(const OutputWishes& wishes) {
    if (wishes.edits) {
      BULKHEAD_RETURN_IF_ERROR(
          dispatch(k::edit_logits(context_.mapping, k::EditPass::kChanges),
                   gpu::push_bytes(edit_push(context_, activations_, slot_)),
                   {std::min(most_rows(context_), kOutputsAtOnce), kPartsOfEdits}));
    }
    BULKHEAD_RETURN_IF_ERROR(add_chunks(true));
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::greedy(context_.mapping, k::GreedyPass::kAll),
                                      gpu::push_bytes(greedy_push(context_, activations_, slot_)),
                                      {most_rows(context_)}));
    // The first passes of draws read the chunks' results alone.
    depends_ = !wishes.cuts && !wishes.draws;
    return {};
  }

  Status add_passes(std::initializer_list<k::SamplePass> passes) {
    const k::SamplePush push = sample_push(context_, activations_, slot_);
    for (const k::SamplePass pass : passes) {
      const bool of_chunks = pass == k::SamplePass::kHistogram || pass == k::SamplePass::kSums;
      const Extent extent = of_chunks
                                ? Extent{std::min(most_rows(context_), kOutputsAtOnce), push.chunks}
                                : Extent{most_rows(context_)};
      BULKHEAD_RETURN_IF_ERROR(
          dispatch(k::sample(context_.mapping, pass), gpu::push_bytes(push), extent));
    }
    return {};
  }

  // In a step with adjusted outputs, this kernel reads another token than the one that is chosen in the end;
  // add_telling() corrects that.
  Status add_logprobs() {
    const k::SamplePush push = sample_push(context_, activations_, slot_);
    BULKHEAD_RETURN_IF_ERROR(
        dispatch(k::logprobs(context_.mapping, k::LogprobPass::kSums), gpu::push_bytes(push),
                 {std::min(most_rows(context_), kOutputsAtOnce), push.chunks}));
    return dispatch(k::logprobs(context_.mapping, k::LogprobPass::kTokens), gpu::push_bytes(push),
                    {most_rows(context_)});
  }

  Status add_telling() {
    return dispatch(k::edit_logits(context_.mapping, k::EditPass::kTells),
                    gpu::push_bytes(edit_push(context_, activations_, slot_)),
                    {most_rows(context_)});
  }

  // The step's own norm leaves the form that the product of logits reads: on GPUs it has another order, and for matrix
  // units it is rounded to halves. So this norms the columns again.
  Status add_hidden() {
    if (std::exchange(depends_, true)) emit_.barrier();
    return add_output_norm(context_, activations_, OutputRows::kHidden,
                           {slot_, most_rows(context_)}, emit_);
  }

  const StepContext& context_;
  const Activations& activations_;
  const std::uint32_t slot_;
  DispatchedSteps emit_;
  bool depends_ = false;  // whether the next kernel depends on those that were appended
};

}  // namespace

Result<StepProgram> build_followers(const StepContext& context, const Activations& activations,
                                    const OutputWishes& wishes, std::uint32_t slot) {
  StepProgram program;
  BULKHEAD_RETURN_IF_ERROR(Followers(context, activations, slot, program).add(wishes));
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
  if (hidden) {
    const std::uint64_t first = std::uint64_t{outputs.slot} * activations.logits_rows;
    norm.out_address =
        activations.at(context.plan, Scratch::kHidden) + first * graph.embedding * sizeof(float);
  }
  norm.parameters = context.parameters_of(outputs.slot);
  norm.list = norm.parameters + context.parameter_layout.outputs;
  norm.width = graph.embedding;
  norm.in_stride = stride_of(context, model::kStream);
  norm.out_stride = hidden ? norm.width : k::input_stride(context.mapping, norm.width);
  norm.padded_width = hidden ? norm.width : k::input_padded(context.mapping, norm.width);
  norm.count_word = k::kOutputCountWord;
  norm.epsilon = graph.output_epsilon;
  const Extent extent{outputs.most, 1, 1, std::uint64_t{outputs.most} * norm.width * 8};
  if (!graph.output_centred) {
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
  if (context.graph.makes_logits) {
    const OutputWishes all{true, true, true, true, true, true};
    BULKHEAD_RETURN_IF_ERROR(
        list_kernels(context, specs, [&] { return build_followers(context, none, all); }));
  }
  for (std::size_t i = shapes.size(); i-- > 0;) {
    BULKHEAD_RETURN_IF_ERROR(
        list_kernels(context, specs, [&] { return build_step(context, none, shapes[i]); }));
  }
  return specs;
}

}  // namespace bulkhead::forward

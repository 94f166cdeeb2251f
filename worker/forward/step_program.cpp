#include "worker/forward/step_program.hpp"

#include <utility>
#include <variant>

#include "gpu/kernels/units.hpp"
#include "worker/forward/own_kernel.hpp"
#include "worker/forward/step_attention.hpp"
#include "worker/forward/step_delta.hpp"
#include "worker/forward/step_experts.hpp"
#include "worker/forward/step_outputs.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

class Builder {
 public:
  Builder(const StepContext& context, const Activations& activations, StepShape shape,
          std::uint32_t slot)
      : context_(context),
        graph_(context.graph),
        plan_(context.plan),
        activations_(activations),
        shape_(shape),
        slot_(slot),
        parameters_(context.parameters_of(slot)),
        chained_(shape.columns <= context.chain.columns) {}

  Result<StepProgram> build() {
    DispatchedSteps dispatched(context_, program_);
    ChainedLinks links(context_, program_, status_address());
    emit_ = &dispatched;
    BULKHEAD_RETURN_IF_ERROR(plan_.embedding != kAbsent ? add_embedding() : add_stream());
    BULKHEAD_RETURN_IF_ERROR(add_lookups());
    emit_->barrier();
    if (chained_) emit_ = &links;
    for (const PlanStep& step : plan_.steps) {
      if (is_left_out(step)) continue;
      wait_for(plan_.places_of(step));
      BULKHEAD_RETURN_IF_ERROR(std::visit([this](const auto& each) { return add(each); }, step));
    }
    emit_->barrier();
    if (shape_.outputs > 0) BULKHEAD_RETURN_IF_ERROR(add_outputs());
    return std::move(program_);
  }

 private:
  template <typename Push>
  Status dispatch(const gpu::KernelSpec& spec, const Push& push, const Extent& extent) {
    static_assert(sizeof(Push) <= 128);
    return emit_->dispatch(spec, gpu::push_bytes(push), extent);
  }

  // Adds a barrier if the step reads what was written since the last barrier, or writes what was read or written
  // since then.
  void wait_for(const Access& access) {
    const Places touched = since_.reads | since_.writes;
    if ((access.reads & since_.writes) != 0 || (access.writes & touched) != 0) {
      emit_->barrier();
      since_ = {};
    }
    since_.reads |= access.reads;
    since_.writes |= access.writes;
  }

  std::uint64_t at(model::ActivationIndex activation) const { return activations_.at(activation); }
  std::uint64_t at(Scratch scratch) const { return activations_.at(plan_, scratch); }
  std::uint32_t stride(model::ActivationIndex activation) const {
    return stride_of(context_, activation);
  }
  // The word that says whether the step has failed.
  std::uint64_t status_address() const {
    const std::uint64_t row = (std::uint64_t{slot_} + 1) * context_.result_rows - 1;
    return context_.results.address() + row * 8;
  }

  // Every workgroup could make the scales itself. In a dispatch of thousands of workgroups these reads cost more than
  // a kernel of its own, except for a single column with matrix units.
  bool scales_here() const { return context_.mapping.units && shape_.columns == 1; }
  bool is_left_out(const PlanStep& step) const {
    const auto* const scales = std::get_if<ScalesStep>(&step);
    return scales_here() && scales != nullptr && !scales->kept;
  }

  // Reads a token's row of a matrix for each column.
  k::EmbedPush row_push(MatrixIndex index, model::ActivationIndex out, float scale) const {
    const DeviceMatrix& matrix = context_.weights.matrices[index];
    k::EmbedPush push{};
    push.quants = matrix.quants();
    push.high = matrix.high();
    push.scales = matrix.scales();
    push.supers = matrix.supers();
    push.out_address = at(out);
    push.parameters = parameters_;
    push.groups = matrix.layout.groups;
    push.width = plan_.activations[out].width;
    push.stride = stride(out);
    push.chosen = context_.results.address();
    push.scale = scale;
    return push;
  }
  Status embed(MatrixIndex index, const k::EmbedPush& push) {
    const DeviceMatrix& matrix = context_.weights.matrices[index];
    return dispatch(k::embed(context_.mapping, matrix.type, matrix.layout), push,
                    {shape_.columns, context_.mapping.units ? k::kEmbedParts : 1});
  }
  // Fills in what the kernel that writes the stream's first values does besides: it sets the chain's counters to zero
  // and makes the first product's input.
  template <typename Push>
  void prepare_layers(Push& push) {
    if (chained_) {
      push.chain_counts = context_.chain.counts.address();
      push.chain_failed = status_address();
      push.chain_links = chain_counts(plan_, shape_.columns);
    }
    if (plan_.first_input != kAbsent) {
      push.gain = context_.weights.vector(plan_.first_gain);
      push.input_address = at(plan_.first_input);
      push.input_stride = stride(plan_.first_input);
    }
  }
  Status add_embedding() {
    k::EmbedPush push = row_push(plan_.embedding, model::kStream, graph_.embedding_scale);
    prepare_layers(push);
    return embed(plan_.embedding, push);
  }
  Status add_lookups() {
    for (std::size_t i = 0; i < graph_.lookups.size(); ++i) {
      const model::Lookup& lookup = graph_.lookups[i];
      BULKHEAD_RETURN_IF_ERROR(
          embed(plan_.lookups[i], row_push(plan_.lookups[i], lookup.out, lookup.scale)));
    }
    return {};
  }

  // Adds the stream that an earlier stage computed, or hidden states.
  Status add_stream() {
    k::StreamInPush push{};
    push.rows = context_.stream_rows_of(slot_);
    push.out_address = at(model::kStream);
    push.parameters = parameters_;
    push.width = graph_.embedding;
    push.stride = stride(model::kStream);
    prepare_layers(push);
    if (plan_.first_input != kAbsent)
      push.padded_width = k::input_padded(context_.mapping, graph_.embedding);
    return dispatch(k::stream_in(context_.mapping), push,
                    {shape_.columns, 1, 1, std::uint64_t{shape_.columns} * graph_.embedding * 8});
  }

  k::RmsNormPush norm_push(const model::Norm& norm) const {
    const model::Activation& out = plan_.activations[norm.out];
    k::RmsNormPush push{};
    push.in_address = at(norm.in) + std::uint64_t{norm.first} * 4;
    push.gain = context_.weights.vector(norm.gain);
    push.out_address = at(norm.out) + (std::uint64_t{norm.first} + norm.shift) * 4;
    push.parameters = parameters_;
    push.width = norm.width;
    push.in_stride = stride(norm.in);
    push.out_stride = stride(norm.out);
    push.padded_width = out.form == model::Activation::Form::kInput
                            ? k::input_padded(context_.mapping, out.width)
                            : norm.width;
    push.count_word = k::kColumnCountWord;
    push.epsilon = norm.epsilon;
    return push;
  }
  // Returns the layout of an activation's floats, or of a product's input.
  k::InputForm form_of(model::ActivationIndex activation) const {
    return plan_.activations[activation].form == model::Activation::Form::kInput
               ? context_.mapping.input_form()
               : k::InputForm::kRows;
  }
  Extent norm_extent(std::uint32_t width) const {
    return {shape_.columns, 1, 1, std::uint64_t{shape_.columns} * width * 8};
  }
  Status add(const NormStep& step) {
    if (step.norm.centred)
      return dispatch(
          k::layer_norm(context_.mapping, form_of(step.norm.out)),
          k::LayerNormPush{norm_push(step.norm), context_.weights.vector(step.norm.bias)},
          norm_extent(step.norm.width));
    const auto makes = step.norm.adds ? k::NormMakes::kAdded : k::NormMakes::kNormed;
    k::RmsNormPush push = norm_push(step.norm);
    if (step.operands != kAbsent && plan_.operands[step.operands].next_input != kAbsent) {
      const PlannedOperands& next = plan_.operands[step.operands];
      push.next_gain = context_.weights.vector(next.next_gain);
      push.next_input = at(next.next_input);
      push.next_stride = stride(next.next_input);
      push.padded_width = k::input_padded(context_.mapping, push.width);
    }
    return dispatch(k::rms_norm(context_.mapping, makes, form_of(step.norm.out)), push,
                    norm_extent(step.norm.width));
  }
  Status add(const model::Copy& copy) {
    model::Norm norm;
    norm.in = copy.in;
    norm.out = copy.out;
    const model::Activation &in = plan_.activations[norm.in], &out = plan_.activations[norm.out];
    const std::uint32_t parts = out.per_column / in.per_column;
    norm.width = parts == 1 ? in.width : out.width;
    norm.gain = copy.factor;
    const auto makes = copy.factor == kAbsent ? k::NormMakes::kCopy : k::NormMakes::kTimes;
    k::RmsNormPush push = norm_push(norm);
    push.in_stride /= parts;
    Extent extent = norm_extent(norm.width * parts);
    extent.y = parts;
    return dispatch(k::rms_norm(context_.mapping, makes, form_of(copy.out)), push, extent);
  }

  // The input contains the stream's gain already; what is left is one factor for each column.
  Status add(const ScalesStep& step) {
    k::RmsNormPush push{};
    push.in_address = at(model::kStream);
    push.out_address = at(Scratch::kScales);
    push.parameters = parameters_;
    push.width = graph_.embedding;
    push.in_stride = stride(model::kStream);
    push.count_word = k::kColumnCountWord;
    push.epsilon = step.epsilon;
    return dispatch(k::norm_scales(context_.mapping), push,
                    {shape_.columns, 1, 1, std::uint64_t{shape_.columns} * graph_.embedding * 4});
  }

  Status add(const ProductsStep& step) {
    for (const ProductStep& product : step.products) {
      MatrixUse use;
      use.matrix = product.matrix;
      use.epilogue = product.epilogue;
      use.gate = product.gate;
      use.biased = product.biased;
      use.columns = shape_.columns;
      use.count_word = k::kColumnCountWord;
      use.scaling = !product.scaled ? k::Scaling::kNone
                    : scales_here() ? k::Scaling::kHere
                                    : k::Scaling::kByMemory;
      use.x = at(product.in);
      use.out = at(product.out) + std::uint64_t{product.first_row} * 4;
      use.out_stride = stride(product.out);
      use.out_is_input = plan_.activations[product.out].form == model::Activation::Form::kInput;
      if (product.operands != kAbsent) {
        const std::size_t index = slot_ * plan_.operands.size() + product.operands;
        use.fused = activations_.operands.slice().address + index * sizeof(k::FusedOperands);
      }
      BULKHEAD_RETURN_IF_ERROR(multiply(use));
    }
    return {};
  }

  // A matrix, and the columns of a product's input that it is multiplied by.
  struct MatrixUse {
    MatrixIndex matrix = kAbsent;
    k::Epilogue epilogue = k::Epilogue::kStore;
    k::Gate gate = k::Gate::kSilu;
    bool biased = false;
    k::Scaling scaling = k::Scaling::kNone;
    std::uint32_t columns = 0, count_word = 0;
    std::uint64_t x = 0;  // [column][input_stride(matrix's width)]
    std::uint64_t out = 0;
    std::uint32_t out_stride = 0;
    bool out_is_input = false;  // its layout and zero padding are those of another product's input
    std::uint64_t fused = 0;    // a FusedOperands
  };
  Status multiply(const MatrixUse& use) {
    const DeviceMatrix& matrix = context_.weights.matrices[use.matrix];
    k::MatvecShape shape = product_shape(*plan_.matrices[use.matrix].packed, use.epilogue);
    shape.permuted_out = use.out_is_input;
    shape.scaling = use.scaling;
    shape.biased = use.biased;
    shape.gate = use.gate;
    const k::MatvecVariant variant =
        context_.tuning != nullptr ? context_.tuning->matvec(shape, use.columns, chained_)
                                   : k::matvec(context_.mapping, shape, use.columns, chained_);
    k::MatvecPush push{};
    push.quants = matrix.quants();
    push.high = matrix.high();
    push.scales = matrix.scales();
    push.supers = matrix.supers();
    push.x = use.x;
    push.out_address = use.out;
    push.parameters = parameters_;
    push.rows = shape.rows;
    push.groups = shape.groups;
    push.x_stride = k::input_stride(context_.mapping, matrix.width);
    push.out_stride = use.out_stride;
    // The residual stream is an input, too, if its norm's gain is part of the next product's matrix.
    const bool makes_input =
        use.out_is_input || (plan_.fuses && use.epilogue == k::Epilogue::kAdd && use.fused != 0);
    push.written_rows = makes_input ? k::input_padded(context_.mapping, shape.rows) : shape.rows;
    push.count_word = use.count_word;
    push.fused = use.fused;
    const std::uint32_t tiles =
        (use.columns + variant.columns_per_workgroup - 1) / variant.columns_per_workgroup;
    const std::uint32_t blocks =
        (push.written_rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup;
    const std::uint64_t bytes =
        matrix.layout.bytes_read() + std::uint64_t{use.columns} * (matrix.width + shape.rows) * 4;
    return dispatch(variant.spec, push, {tiles, blocks, 1, bytes});
  }

  Status add(const GateStep& step) {
    const std::uint32_t width = plan_.activations[step.out].width;
    k::GatedProductPush push{};
    push.gate = at(step.gate) + std::uint64_t{step.first_gate} * 4;
    if (step.up != kAbsent) {
      push.up = at(step.up) + std::uint64_t{step.first_up} * 4;
      push.up_stride = stride(step.up);
    }
    push.out_address = at(step.out);
    push.parameters = parameters_;
    push.width = width;
    push.in_stride = stride(step.gate);
    push.out_stride = stride(step.out);
    push.padded_width = k::input_padded(context_.mapping, width);
    const std::uint32_t per_column = plan_.activations[step.out].per_column;
    return dispatch(k::gated_product(context_.mapping, step.function, per_column), push,
                    {shape_.columns * per_column});
  }

  template <typename Steps, typename Step>
  Status add_by(const Step& step) {
    return Steps(context_, activations_, shape_, slot_, *emit_).add(step);
  }
  Status add(const model::Rotate& rotate) { return add_by<AttentionSteps>(rotate); }
  Status add(const model::RotateLatent& rotate) { return add_by<AttentionSteps>(rotate); }
  Status add(const model::Attend& attend) { return add_by<AttentionSteps>(attend); }
  Status add(const RouteStep& step) { return add_by<ExpertSteps>(step); }
  Status add(const ExpertProductsStep& step) { return add_by<ExpertSteps>(step); }
  Status add(const SliceProductStep& step) { return add_by<ExpertSteps>(step); }
  Status add(const MixStep& step) { return add_by<ExpertSteps>(step); }

  Status add(const DeltaStep& step) {
    return add_delta(context_, activations_, step, {shape_.columns, slot_}, *emit_);
  }

  template <model::HasOwnKernel Operation>
  Status add(const Operation& operation) {
    OwnKernelStep<Operation> step(context_, activations_, shape_.columns, slot_);
    operation.fill(step);
    return step.emit(*emit_);
  }

  Status add_outputs() {
    BULKHEAD_RETURN_IF_ERROR(add_output_norm(context_, activations_, OutputRows::kForLogits,
                                             {slot_, shape_.outputs}, *emit_));
    emit_->barrier();
    MatrixUse logits;
    logits.matrix = plan_.output;
    logits.columns = shape_.outputs;
    logits.count_word = k::kOutputCountWord;
    logits.x = at(Scratch::kOutputNormed);
    const std::uint64_t rows = std::uint64_t{slot_} * activations_.logits_rows;
    logits.out = at(Scratch::kLogits) + rows * graph_.vocabulary * 4;
    logits.out_stride = graph_.vocabulary;
    BULKHEAD_RETURN_IF_ERROR(multiply(logits));
    emit_->barrier();
    if (graph_.logit_bias != kAbsent) {
      BULKHEAD_RETURN_IF_ERROR(bias_logits(logits.out));
      emit_->barrier();
    }
    if (graph_.logit_cap != 0) {
      BULKHEAD_RETURN_IF_ERROR(cap_logits(logits.out));
      emit_->barrier();
    }
    if (shape_.chooses_later) return {};
    const k::GreedyPush push = greedy_push(context_, activations_, slot_);
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::greedy(context_.mapping, k::GreedyPass::kChunks), push,
                                      {shape_.outputs, push.chunks}));
    emit_->barrier();
    return dispatch(k::greedy(context_.mapping, k::GreedyPass::kAll), push, {shape_.outputs});
  }

  Status bias_logits(std::uint64_t rows) {
    k::BiasLogitsPush push{};
    push.rows = rows;
    push.bias = context_.weights.vector(graph_.logit_bias);
    push.parameters = parameters_;
    push.width = push.stride = graph_.vocabulary;
    push.count_word = k::kOutputCountWord;
    return dispatch(
        k::bias_logits(context_.mapping), push,
        {shape_.outputs, (graph_.vocabulary + k::kBiasLogitsEntries - 1) / k::kBiasLogitsEntries});
  }

  Status cap_logits(std::uint64_t rows) {
    k::SoftCapPush push{};
    push.rows = rows;
    push.parameters = parameters_;
    push.width = push.stride = graph_.vocabulary;
    push.count_word = k::kOutputCountWord;
    push.cap = graph_.logit_cap;
    return dispatch(
        k::soft_cap(context_.mapping), push,
        {shape_.outputs, (graph_.vocabulary + k::kSoftCapEntries - 1) / k::kSoftCapEntries});
  }

  const StepContext& context_;
  const model::ModelGraph& graph_;
  const ModelPlan& plan_;
  const Activations& activations_;
  const StepShape shape_;
  const std::uint32_t slot_;
  const std::uint64_t parameters_;
  const bool chained_;  // the kernels after the embedding are links of a chain
  StepProgram program_;
  StepEmitter* emit_ = nullptr;
  Access since_;  // what was accessed since the last barrier
};

}  // namespace

Result<StepProgram> build_step(const StepContext& context, const Activations& activations,
                               StepShape shape, std::uint32_t slot) {
  return Builder(context, activations, shape, slot).build();
}

void record_step(const StepContext& context, const StepProgram& program, gpu::Recorder& recorder) {
  for (const StepOp& op : program) {
    if (context.alive) context.alive();
    if (op.kernel.pipeline == VK_NULL_HANDLE) {
      recorder.compute_barrier();
    } else {
      recorder.dispatch(op.kernel, std::span<const std::byte>(op.push.data(), op.kernel.push_bytes),
                        op.x, op.y, op.z, op.bytes_moved);
    }
  }
}

}  // namespace bulkhead::forward

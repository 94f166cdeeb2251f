#include "worker/forward/step_program.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "gpu/kernels/units.hpp"
#include "worker/forward/step_layout.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

class Builder {
 public:
  Builder(const StepContext& context, const Activations& activations, StepShape shape,
          std::uint32_t slot)
      : context_(context),
        config_(context.config),
        activations_(activations),
        shape_(shape),
        mode_(
            k::attention_mode(context.mapping, context.attention, shape.columns, context.context)),
        slot_(slot),
        parameters_(parameters_of(context, slot)),
        pages_(parameters_ + context.parameter_layout.pages),
        fuses_(!context.mapping.rows),
        fuses_rope_(fuses_ && context.weights.rotating_rows_paired),
        chained_(shape.columns <= context.chain.columns) {}

  Result<StepProgram> build_sampling() {
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::sample(context_.mapping), sample_push(), shape_.outputs));
    return std::move(program_);
  }

  Result<StepProgram> build_logprobs() {
    const k::SamplePush push = sample_push();
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::logprobs(context_.mapping, k::LogprobPass::kSums), push,
                                      shape_.outputs, push.chunks));
    barrier();
    BULKHEAD_RETURN_IF_ERROR(
        dispatch(k::logprobs(context_.mapping, k::LogprobPass::kTokens), push, shape_.outputs));
    return std::move(program_);
  }

  Result<StepProgram> build() {
    BULKHEAD_RETURN_IF_ERROR(add_embedding());
    linking_ = chained_;
    BULKHEAD_RETURN_IF_ERROR(add_layers());
    if (shape_.outputs > 0) BULKHEAD_RETURN_IF_ERROR(add_outputs());
    return std::move(program_);
  }

 private:
  static std::uint64_t at(const gpu::MemoryPool::Lease& lease) { return lease.slice().address; }

  k::SamplePush sample_push() const {
    k::SamplePush push{};
    const std::uint64_t rows = std::uint64_t{slot_} * activations_.logits_rows;
    push.logits = at(activations_.logits) + rows * config_.vocabulary * 4;
    push.partials = at(activations_.greedy_partials);
    push.results = context_.results.address() + std::uint64_t{slot_} * context_.result_rows * 8;
    push.parameters = parameters_;
    push.choices = parameters_ + context_.parameter_layout.choices;
    push.vocabulary = config_.vocabulary;
    push.stride = config_.vocabulary;
    push.chunks = greedy_chunks(config_);
    push.chunk_sums = at(activations_.logprob_sums);
    push.logprobs = context_.logprobs.address() +
                    std::uint64_t{slot_} * context_.result_rows * sizeof(k::LogprobRow);
    return push;
  }

  template <typename Push>
  Status dispatch(const gpu::KernelSpec& spec, const Push& push, std::uint32_t x,
                  std::uint32_t y = 1, std::uint32_t z = 1, std::uint64_t bytes_moved = 0) {
    static_assert(sizeof(Push) <= 128);
    StepOp op;
    const gpu::KernelSpec used = linking_ ? k::chained(spec) : spec;
    if (used.push_bytes == 0)
      return Error(ErrorCode::kInternal, "kernel " + std::string(spec.name) + " in a chain");
    if (context_.wanted != nullptr) {
      context_.wanted->push_back(used);
      return {};
    }
    if (context_.alive) context_.alive();
    BULKHEAD_TRY(op.kernel, context_.device->make_kernel(used));
    std::memcpy(op.push.data(), &push, sizeof push);
    if (linking_) {
      if constexpr (sizeof(Push) + sizeof(k::ChainPush) <= sizeof op.push) {
        static_assert(sizeof(Push) % 8 == 0);
        if (link_ >= chain_links(config_.layers))
          return Error(ErrorCode::kInternal, "a chain of too many links");
        const bool broken = link_ != 0 && link_ == context_.chain.broken_link;
        const k::ChainPush link{context_.chain.counts.address(), status_address(), link_,
                                groups_before_ + (broken ? 1 : 0)};
        std::memcpy(op.push.data() + sizeof push, &link, sizeof link);
        groups_ += x * y * z;
      }
    }
    op.x = x;
    op.y = y;
    op.z = z;
    op.bytes_moved = bytes_moved;
    program_.push_back(op);
    return {};
  }
  void barrier() {
    if (linking_) {
      if (groups_ == 0) return;
      groups_before_ = groups_;
      groups_ = 0;
      ++link_;
    } else {
      program_.emplace_back();
    }
  }
  // The word that says whether the step has failed.
  std::uint64_t status_address() const {
    const std::uint64_t row = (std::uint64_t{slot_} + 1) * context_.result_rows - 1;
    return context_.results.address() + row * 8;
  }
  Status add_layers() {
    for (std::size_t layer = 0; layer < context_.weights.layers.size(); ++layer) {
      BULKHEAD_RETURN_IF_ERROR(add_layer(context_.weights.layers[layer], layer));
    }
    return {};
  }

  struct Product {
    const DeviceMatrix* matrix;
    k::Epilogue epilogue = k::Epilogue::kStore;
    std::uint64_t x = 0;  // [column][input_stride(matrix.width)]
    std::uint64_t out = 0;
    std::uint32_t out_stride = 0;
    bool out_is_input = false;  // laid out and zero-padded as another product's input
    bool of_outputs = false;    // the columns are the step's outputs
    bool to_scale = false;      // the input is still to be normed (GPUs)
    std::uint64_t fused = 0;    // a FusedOperands (GPUs)
  };
  // Every workgroup can make the scales itself; of a dispatch's thousands that reads more than a
  // kernel costs, but for a single column by matrix units.
  bool scales_here() const { return context_.mapping.units && shape_.columns == 1; }
  std::uint64_t fused(std::size_t layer, std::size_t which) const {
    const std::size_t first = slot_ * context_.weights.layers.size() * kFusedOfLayer;
    return at(activations_.fused) +
           (first + layer * kFusedOfLayer + which) * sizeof(k::FusedOperands);
  }
  Status multiply(const Product& product) {
    const DeviceMatrix& matrix = *product.matrix;
    const std::uint32_t columns = product.of_outputs ? shape_.outputs : shape_.columns;
    auto rows = static_cast<std::uint32_t>(matrix.layout.rows);
    if (product.epilogue == k::Epilogue::kGated) rows /= 2;
    const k::Scaling scaling = !product.to_scale ? k::Scaling::kNone
                               : scales_here()   ? k::Scaling::kHere
                                                 : k::Scaling::kByMemory;
    const k::MatvecShape shape{matrix.type,          rows,   matrix.layout.groups, product.epilogue,
                               product.out_is_input, scaling};
    const k::MatvecVariant variant = context_.tuning != nullptr
                                         ? context_.tuning->matvec(shape, columns, linking_)
                                         : k::matvec(context_.mapping, shape, columns, linking_);
    k::MatvecPush push{};
    push.quants = matrix.quants();
    push.high = matrix.high();
    push.scales = matrix.scales();
    push.supers = matrix.supers();
    push.x = product.x;
    push.out = product.out;
    push.parameters = parameters_;
    push.rows = rows;
    push.groups = matrix.layout.groups;
    push.x_stride = k::input_stride(context_.mapping, matrix.width);
    push.out_stride = product.out_stride;
    // The residual stream is an input, too, where its norm's gain is folded into the next product's.
    const bool makes_input =
        product.out_is_input || (product.epilogue == k::Epilogue::kAdd && product.fused != 0);
    push.written_rows = makes_input ? k::input_padded(context_.mapping, rows) : rows;
    push.count_word = product.of_outputs ? k::kOutputCountWord : k::kColumnCountWord;
    push.fused = product.fused;
    const std::uint32_t tiles =
        (columns + variant.columns_per_workgroup - 1) / variant.columns_per_workgroup;
    const std::uint32_t blocks =
        (push.written_rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup;
    const std::uint64_t bytes =
        matrix.layout.bytes_read() + std::uint64_t{columns} * (matrix.width + rows) * 4;
    return dispatch(variant.spec, push, tiles, blocks, 1, bytes);
  }

  Status norm(std::uint64_t in, std::uint64_t gain, std::uint64_t out, std::uint64_t list) {
    k::RmsNormPush push{};
    push.in = in;
    push.gain = gain;
    push.out = out;
    push.parameters = parameters_;
    push.list = list;
    push.width = config_.embedding;
    push.in_stride = stream_stride(context_);
    push.out_stride = k::input_stride(context_.mapping, config_.embedding);
    push.padded_width = k::input_padded(context_.mapping, config_.embedding);
    push.count_word = list != 0 ? k::kOutputCountWord : k::kColumnCountWord;
    push.epsilon = config_.rms_epsilon;
    const std::uint32_t columns = list != 0 ? shape_.outputs : shape_.columns;
    return dispatch(k::rms_norm(context_.mapping), push, columns, 1, 1,
                    std::uint64_t{columns} * config_.embedding * 8);
  }

  // GPUs: the stream's gain is in the input already; what is left is a factor for each column.
  Status scales() {
    k::RmsNormPush push{};
    push.in = at(activations_.stream);
    push.out = at(activations_.scales);
    push.parameters = parameters_;
    push.width = config_.embedding;
    push.in_stride = stream_stride(context_);
    push.count_word = k::kColumnCountWord;
    push.epsilon = config_.rms_epsilon;
    return dispatch(k::norm_scales(context_.mapping), push, shape_.columns, 1, 1,
                    std::uint64_t{shape_.columns} * config_.embedding * 4);
  }

  // Makes what the next products read of the residual stream.
  Status norm_stream(std::uint64_t gain) {
    if (fuses_) {
      if (scales_here()) return {};
      BULKHEAD_RETURN_IF_ERROR(scales());
    } else {
      BULKHEAD_RETURN_IF_ERROR(norm(at(activations_.stream), gain, at(activations_.normed), 0));
    }
    barrier();
    return {};
  }

  Status add_embedding() {
    const DeviceMatrix& matrix = context_.weights.embedding;
    k::EmbedPush push{};
    push.quants = matrix.quants();
    push.high = matrix.high();
    push.scales = matrix.scales();
    push.supers = matrix.supers();
    push.out = at(activations_.stream);
    push.parameters = parameters_;
    push.groups = matrix.layout.groups;
    push.width = config_.embedding;
    push.stride = stream_stride(context_);
    push.chosen = context_.results.address();
    if (chained_) {
      push.chain_counts = context_.chain.counts.address();
      push.chain_failed = status_address();
      push.chain_links = chain_counts(config_, shape_.columns);
    }
    if (fuses_) {
      push.gain = context_.weights.layers.front().attention_norm;
      push.input = at(activations_.normed);
      push.input_stride = k::input_stride(context_.mapping, config_.embedding);
    }
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::embed(context_.mapping, matrix.type), push, shape_.columns,
                                      context_.mapping.units ? k::kEmbedParts : 1));
    barrier();
    return {};
  }

  Status add_layer(const LayerWeights& layer, std::size_t index) {
    const std::uint32_t attended_width = config_.heads * config_.head_size;

    BULKHEAD_RETURN_IF_ERROR(norm_stream(layer.attention_norm));
    for (std::size_t i = 0; i < layer.qkv.size(); ++i) {
      const Segment& segment = layer.qkv[i];
      Product product{&segment.matrix};
      product.x = at(activations_.normed);
      product.out = at(activations_.qkv) + std::uint64_t{segment.first_row} * 4;
      product.out_stride = qkv_width(config_);
      if (fuses_) {
        product.to_scale = true;
        product.fused = fused(index, kQkvSegments + i);
        if (fuses_rope_) product.epilogue = k::Epilogue::kQkv;
      }
      BULKHEAD_RETURN_IF_ERROR(multiply(product));
    }
    barrier();
    BULKHEAD_RETURN_IF_ERROR(add_attention(layer, index));
    barrier();
    Product output{&layer.attention_output, k::Epilogue::kAdd};
    output.x = at(activations_.attended);
    output.out = at(activations_.stream);
    output.out_stride = stream_stride(context_);
    if (fuses_) output.fused = fused(index, kOutput);
    if (layer.attention_output.width != attended_width) {
      return Error(ErrorCode::kInternal, "attention output matrix of another width");
    }
    BULKHEAD_RETURN_IF_ERROR(multiply(output));
    barrier();

    BULKHEAD_RETURN_IF_ERROR(norm_stream(layer.feed_forward_norm));
    BULKHEAD_RETURN_IF_ERROR(add_gate_and_up(layer, index));
    barrier();
    Product down{&layer.down, k::Epilogue::kAdd};
    down.x = at(activations_.hidden);
    down.out = at(activations_.stream);
    down.out_stride = stream_stride(context_);
    if (fuses_) down.fused = fused(index, kDown);
    BULKHEAD_RETURN_IF_ERROR(multiply(down));
    barrier();
    return {};
  }

  Status add_rope(const LayerWeights& layer, std::uint64_t keys, std::uint64_t values) {
    k::RopeKvPush rope{};
    rope.qkv = at(activations_.qkv);
    rope.bias = layer.qkv_bias;
    rope.q_gain = layer.q_norm;
    rope.k_gain = layer.k_norm;
    rope.fine = context_.weights.rope_fine;
    rope.coarse = context_.weights.rope_coarse;
    rope.parameters = parameters_;
    rope.pages = pages_;
    rope.keys = keys;
    rope.values = values;
    rope.q_out = at(activations_.q);
    rope.in_stride = qkv_width(config_);
    rope.rope_pairs = context_.weights.rope_pairs;
    rope.epsilon = config_.rms_epsilon;
    rope.q_scale = q_scale(config_);
    return dispatch(k::rope_kv(context_.mapping, context_.attention), rope, shape_.columns,
                    config_.heads + 2 * config_.kv_heads);
  }

  Status add_attention(const LayerWeights& layer, std::size_t index) {
    const k::AttentionShape& shape = context_.attention;
    const std::uint64_t keys = context_.kv[index];
    const std::uint64_t values = keys + context_.kv_half;
    const std::uint32_t attended_width = config_.heads * config_.head_size;

    if (!fuses_rope_) {
      BULKHEAD_RETURN_IF_ERROR(add_rope(layer, keys, values));
      barrier();
    }

    k::AttentionPush push{};
    push.q = at(activations_.q);
    push.keys = keys;
    push.values = values;
    push.parameters = parameters_;
    push.pages = pages_;
    push.out_stride = k::input_stride(context_.mapping, attended_width);
    push.padded_width = k::input_padded(context_.mapping, attended_width);
    constexpr std::uint32_t kFewColumns = 4;  // on an H200 it helps, of eight and more it costs
    const k::AttentionVariant variant =
        k::attention(context_.mapping, shape, mode_, shape_.columns, context_.context,
                     linking_ && shape_.columns <= kFewColumns);
    push.out = at(activations_.attended);
    const std::uint32_t splits = k::partial_splits(context_.mapping, mode_, context_.context);
    if (splits > 0 && mode_ != k::AttentionMode::kPartial) {
      push.partials = at(activations_.partials);
      push.most_splits = splits;
      // A chain that is given up leaves counts behind; each begins with its own at zero.
      push.counts = linking_ ? context_.chain.counts.address() +
                                   std::uint64_t{chain_links(config_.layers)} * k::kChainCountBytes
                             : at(activations_.attention_counts);
    }
    if (mode_ != k::AttentionMode::kPartial)
      return dispatch(variant.spec, push, variant.x, variant.y, variant.z);
    push.out = at(activations_.partials);
    BULKHEAD_RETURN_IF_ERROR(dispatch(variant.spec, push, variant.x, variant.y, variant.z));
    barrier();
    k::AttentionCombinePush combine{};
    combine.partials = at(activations_.partials);
    combine.parameters = parameters_;
    combine.out = at(activations_.attended);
    combine.out_stride = push.out_stride;
    combine.padded_width = push.padded_width;
    return dispatch(k::attention_combine(context_.mapping, shape), combine, shape_.columns,
                    config_.heads);
  }

  Status add_gate_and_up(const LayerWeights& layer, std::size_t index) {
    const std::uint32_t hidden_stride = k::input_stride(context_.mapping, config_.feed_forward);
    if (layer.gate_up_joined) {
      Product both{&layer.gate, k::Epilogue::kGated};
      both.x = at(activations_.normed);
      both.out = at(activations_.hidden);
      both.out_stride = hidden_stride;
      both.out_is_input = true;
      both.to_scale = fuses_;
      if (fuses_) both.fused = fused(index, kGateUp);
      return multiply(both);
    }
    Product gate{&layer.gate};
    gate.x = at(activations_.normed);
    gate.out = at(activations_.gate);
    gate.out_stride = config_.feed_forward;
    gate.to_scale = fuses_;
    if (fuses_) gate.fused = fused(index, kGateUp);
    Product up = gate;
    up.matrix = &layer.up;
    up.out = at(activations_.up);
    BULKHEAD_RETURN_IF_ERROR(multiply(gate));
    BULKHEAD_RETURN_IF_ERROR(multiply(up));
    barrier();
    k::GatedProductPush push{};
    push.gate = gate.out;
    push.up = up.out;
    push.out = at(activations_.hidden);
    push.parameters = parameters_;
    push.width = config_.feed_forward;
    push.in_stride = config_.feed_forward;
    push.out_stride = hidden_stride;
    push.padded_width = k::input_padded(context_.mapping, config_.feed_forward);
    return dispatch(k::gated_product(context_.mapping), push, shape_.columns);
  }

  Status add_outputs() {
    BULKHEAD_RETURN_IF_ERROR(norm(at(activations_.stream), context_.weights.output_norm,
                                  at(activations_.output_normed),
                                  parameters_ + context_.parameter_layout.outputs));
    barrier();
    Product logits{&context_.weights.output_matrix()};
    logits.x = at(activations_.output_normed);
    const std::uint64_t rows = std::uint64_t{slot_} * activations_.logits_rows;
    logits.out = at(activations_.logits) + rows * config_.vocabulary * 4;
    logits.out_stride = config_.vocabulary;
    logits.of_outputs = true;
    BULKHEAD_RETURN_IF_ERROR(multiply(logits));
    barrier();
    k::GreedyPush push{};
    push.logits = logits.out;
    push.partials = at(activations_.greedy_partials);
    push.results = context_.results.address() + std::uint64_t{slot_} * context_.result_rows * 8;
    push.parameters = parameters_;
    push.vocabulary = config_.vocabulary;
    push.stride = config_.vocabulary;
    push.chunks = greedy_chunks(config_);
    BULKHEAD_RETURN_IF_ERROR(dispatch(k::greedy(context_.mapping, k::GreedyPass::kChunks), push,
                                      shape_.outputs, push.chunks));
    barrier();
    return dispatch(k::greedy(context_.mapping, k::GreedyPass::kAll), push, shape_.outputs);
  }

  const StepContext& context_;
  const model::ModelConfig& config_;
  const Activations& activations_;
  const StepShape shape_;
  const k::AttentionMode mode_;
  const std::uint32_t slot_;
  const std::uint64_t parameters_;
  const std::uint64_t pages_;
  const bool fuses_;       // norms, residual stream and inputs are the products' business
  const bool fuses_rope_;  // and so are rotation and KV write
  StepProgram program_;
  const bool chained_;    // kernels behind the embedding are links of a chain
  bool linking_ = false;  // from here on
  std::uint32_t link_ = 0, groups_ = 0, groups_before_ = 0;
};

}  // namespace

Result<StepProgram> build_step(const StepContext& context, const Activations& activations,
                               StepShape shape, std::uint32_t slot) {
  return Builder(context, activations, shape, slot).build();
}

Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  const StepShape shape{1, std::max(context.result_rows, 1U)};
  return Builder(context, activations, shape, slot).build_sampling();
}

Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot) {
  const StepShape shape{1, std::max(context.result_rows, 1U)};
  return Builder(context, activations, shape, slot).build_logprobs();
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

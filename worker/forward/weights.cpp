#include "worker/forward/weights.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "config/base/fnv1a.hpp"
#include "worker/forward/rope_table.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {
namespace {

// What is to come to the device, in order: each matrix a job, and every vector in one buffer.
class Planner {
 public:
  Planner(const model::GgufFile& file, bool units) : file_(file), units_(units) {}

  Result<const model::TensorInfo*> find(const std::string& name) const {
    const model::TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr)
      return Error(ErrorCode::kCorrupt, file_.name() + ": tensor " + name + " is missing");
    return tensor;
  }

  Result<DeviceMatrix> matrix(const std::vector<const model::TensorInfo*>& tensors,
                              const std::vector<RowOrder>& orders = {}) {
    return matrix(tensors, orders, units_ ? Packing::kUnits : Packing::kPlanes);
  }
  // A gate and its up, of equal type.
  Result<DeviceMatrix> gate_and_up(const model::TensorInfo* gate, const model::TensorInfo* up) {
    return matrix({gate, up}, {}, units_ ? Packing::kUnitsAlternating : Packing::kPlanes);
  }
  Result<DeviceMatrix> matrix(const std::vector<const model::TensorInfo*>& tensors,
                              const std::vector<RowOrder>& orders, Packing packing) {
    const auto packed = std::make_shared<const PackedMatrix>(tensors, orders, packing);
    DeviceMatrix result;
    result.type = packed->type();
    result.layout = packed->layout();
    result.width = packed->width();
    PipelineJob job;
    job.name = tensors.front()->name;
    job.bytes = packed->layout().bytes;
    if (packed->layout().block_bytes != 0) job.grain = packed->layout().block_bytes;
    job.fill = [packed](std::uint64_t offset, std::span<std::byte> piece) {
      packed->fill(offset, piece);
    };
    for (const model::TensorInfo* const tensor : tensors)
      job.sources.push_back(tensor->data);
    bytes_ += job.bytes;
    jobs_.push_back(std::move(job));
    return result;
  }

  Result<DeviceMatrix> matrix(const std::string& name) {
    BULKHEAD_TRY(const model::TensorInfo* const tensor, find(name));
    return matrix(std::vector{tensor});
  }

  // Collects vectors for one buffer; returns the offset in floats.
  std::uint64_t vector(std::span<const float> values) {
    const std::uint64_t at = (vectors_.size() + 63) / 64 * 64;
    vectors_.resize(at);
    vectors_.insert(vectors_.end(), values.begin(), values.end());
    return at;
  }
  Result<std::uint64_t> vector(const std::string& name) {
    BULKHEAD_TRY(const model::TensorInfo* const tensor, find(name));
    return vector(to_floats(*tensor));
  }

  // The jobs of all matrices in the order in which they were asked for, then the vectors'.
  std::vector<PipelineJob> take_jobs() {
    PipelineJob job;
    job.name = "norms and tables";
    job.bytes = vectors_.size() * sizeof(float);
    bytes_ += job.bytes;
    const auto values = std::make_shared<const std::vector<float>>(std::move(vectors_));
    job.fill = [values](std::uint64_t offset, std::span<std::byte> piece) {
      std::memcpy(piece.data(), std::as_bytes(std::span(*values)).data() + offset, piece.size());
    };
    jobs_.push_back(std::move(job));
    return std::move(jobs_);
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  const model::GgufFile& file_;
  const bool units_;
  std::vector<PipelineJob> jobs_;
  std::vector<float> vectors_;
  std::uint64_t bytes_ = 0;
};

// In the order in which they are planned.
std::vector<DeviceMatrix*> matrices_of(ModelWeights& weights) {
  std::vector<DeviceMatrix*> all{&weights.embedding};
  const auto add = [&all](DeviceMatrix& matrix) {
    if (matrix.width != 0) all.push_back(&matrix);
  };
  add(weights.output);
  for (LayerWeights& layer : weights.layers) {
    for (Segment& segment : layer.qkv)
      add(segment.matrix);
    for (DeviceMatrix* each : {&layer.attention_output, &layer.gate, &layer.up, &layer.down})
      add(*each);
  }
  return all;
}

// Offsets stand in for addresses until the buffer exists; 0 stays "none", so they are stored plus
// one.
void place(std::uint64_t& vector, std::uint64_t base) {
  if (vector != 0) vector = base + (vector - 1) * sizeof(float);
}

// Everything but buffers and addresses.
Result<ModelWeights> plan_weights(Planner& uploader, const model::GgufFile& file,
                                  const model::ModelConfig& config, std::uint32_t context,
                                  bool pair_rotating_rows) {
  ModelWeights weights;
  const auto vector = [&](const std::string& name) -> Result<std::uint64_t> {
    BULKHEAD_TRY(const std::uint64_t at, uploader.vector(name));
    return at + 1;
  };

  weights.rotating_rows_paired = pair_rotating_rows;
  // Neighbours that rotate together are so already, or lie half a rotation apart.
  RowOrder paired;
  if (pair_rotating_rows && config.rope_pairing == model::RopePairing::kHalves)
    paired = {config.head_size, config.rope_dimensions / 2};

  BULKHEAD_TRY(weights.embedding, uploader.matrix("token_embd.weight"));
  if (!config.tied_output) {
    BULKHEAD_TRY(weights.output, uploader.matrix("output.weight"));
  }
  BULKHEAD_TRY(weights.output_norm, vector("output_norm.weight"));
  weights.bytes_per_step = weights.output_matrix().layout.bytes_read();

  for (std::uint32_t index = 0; index < config.layers; ++index) {
    const std::string prefix = "blk." + std::to_string(index) + ".";
    LayerWeights& layer = weights.layers.emplace_back();  // here, so that it goes after the uploads
    BULKHEAD_TRY(layer.attention_norm, vector(prefix + "attn_norm.weight"));
    BULKHEAD_TRY(layer.feed_forward_norm, vector(prefix + "ffn_norm.weight"));

    std::vector<const model::TensorInfo*> joined;
    std::vector<RowOrder> orders;
    std::uint32_t first_row = 0, rows = 0;
    const auto close = [&]() -> Status {
      if (joined.empty()) return {};
      Segment segment;
      segment.first_row = first_row;
      BULKHEAD_TRY(segment.matrix, uploader.matrix(joined, orders));
      layer.qkv.push_back(std::move(segment));
      joined.clear();
      orders.clear();
      first_row = rows;
      return {};
    };
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) {
      BULKHEAD_TRY(const model::TensorInfo* const tensor, uploader.find(prefix + name));
      if (!joined.empty() && joined.back()->type != tensor->type) BULKHEAD_RETURN_IF_ERROR(close());
      joined.push_back(tensor);
      orders.push_back(name[5] == 'v' ? RowOrder{} : paired);
      rows += static_cast<std::uint32_t>(tensor->rows());
    }
    BULKHEAD_RETURN_IF_ERROR(close());

    if (config.qkv_bias) {
      std::vector<float> bias;
      for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) {
        BULKHEAD_TRY(const model::TensorInfo* const tensor, uploader.find(prefix + name));
        const std::vector<float> part = to_floats(*tensor);
        const RowOrder order = name[5] == 'v' ? RowOrder{} : paired;
        for (std::size_t row = 0; row < part.size(); ++row)
          bias.push_back(part[order.source(row)]);
      }
      layer.qkv_bias = uploader.vector(bias) + 1;
    }
    if (config.qk_norm) {
      BULKHEAD_TRY(layer.q_norm, vector(prefix + "attn_q_norm.weight"));
      BULKHEAD_TRY(layer.k_norm, vector(prefix + "attn_k_norm.weight"));
    }
    BULKHEAD_TRY(layer.attention_output, uploader.matrix(prefix + "attn_output.weight"));

    BULKHEAD_TRY(const model::TensorInfo* const gate, uploader.find(prefix + "ffn_gate.weight"));
    BULKHEAD_TRY(const model::TensorInfo* const up, uploader.find(prefix + "ffn_up.weight"));
    layer.gate_up_joined = gate->type == up->type;
    if (layer.gate_up_joined) {
      BULKHEAD_TRY(layer.gate, uploader.gate_and_up(gate, up));
    } else {
      BULKHEAD_TRY(layer.gate, uploader.matrix(std::vector{gate}));
      BULKHEAD_TRY(layer.up, uploader.matrix(std::vector{up}));
      weights.bytes_per_step += layer.up.layout.bytes_read();
    }
    BULKHEAD_TRY(layer.down, uploader.matrix(prefix + "ffn_down.weight"));
    for (const Segment& segment : layer.qkv)
      weights.bytes_per_step += segment.matrix.layout.bytes_read();
    weights.bytes_per_step += layer.attention_output.layout.bytes_read() +
                              layer.gate.layout.bytes_read() + layer.down.layout.bytes_read();
  }

  std::vector<float> factors;
  if (const model::TensorInfo* tensor = file.find_tensor("rope_freqs.weight"))
    factors = to_floats(*tensor);
  const RopeTable table = make_rope_table(config, factors, context);
  weights.rope_pairs = table.pairs;
  weights.rope_fine = uploader.vector(table.fine) + 1;
  weights.rope_coarse = uploader.vector(table.coarse) + 1;

  return weights;
}

}  // namespace

struct WeightUpload::Impl {
  ModelWeights& weights;
  BlockPlan plan;
  std::vector<std::uint64_t> sizes;  // of the plan's pieces: matrices, then vectors
  std::uint64_t layout_hash = 0;
  Import import;                             // instead of the pipeline
  std::optional<WeightPipeline> pipeline{};  // last: it ends first
};

namespace {

std::uint64_t hash_of_layout(const std::vector<PipelineJob>& jobs, const BlockPlan& plan,
                             ModelWeights& weights) {
  std::uint64_t hash = kFnv1aStart;
  const auto number = [&hash](std::uint64_t value) {
    hash = fnv1a(std::as_bytes(std::span(&value, 1)), hash);
  };
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    hash = fnv1a(std::as_bytes(std::span(jobs[i].name)), hash);
    for (const std::uint64_t value :
         {jobs[i].bytes, std::uint64_t{plan.places[i].block}, plan.places[i].offset})
      number(value);
  }
  for (const DeviceMatrix* matrix : matrices_of(weights)) {
    for (const std::uint64_t value :
         {std::uint64_t{static_cast<std::uint32_t>(matrix->type)}, std::uint64_t{matrix->width},
          matrix->layout.bytes, matrix->layout.quants, matrix->layout.high, matrix->layout.scales,
          matrix->layout.supers})
      number(value);
  }
  return hash;
}

}  // namespace

WeightUpload::WeightUpload(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightUpload::~WeightUpload() = default;

Result<std::unique_ptr<WeightUpload>> WeightUpload::start(gpu::Device& device, gpu::BlitQueue& blit,
                                                          const model::GgufFile& file,
                                                          const model::ModelConfig& config,
                                                          std::uint32_t context,
                                                          ModelWeights& weights,
                                                          const WeightOptions& options) {
  BULKHEAD_TRY(Planned planned, plan(device, file, config, context, weights, options));
  std::vector<PipelineBlock> blocks;
  for (const std::uint64_t bytes : planned.impl->plan.blocks)
    blocks.push_back({bytes, options.memory});
  planned.impl->pipeline.emplace(
      device, blit, std::move(planned.jobs),
      [&file](std::span<const std::byte> part) { file.forget(part); }, std::move(blocks));
  return std::unique_ptr<WeightUpload>(new WeightUpload(std::move(planned.impl)));
}

Result<std::unique_ptr<WeightUpload>> WeightUpload::take_over(
    gpu::Device& device, const model::GgufFile& file, const model::ModelConfig& config,
    std::uint32_t context, ModelWeights& weights, const WeightOptions& options, Import import) {
  BULKHEAD_TRY(Planned planned, plan(device, file, config, context, weights, options));
  planned.impl->import = std::move(import);
  return std::unique_ptr<WeightUpload>(new WeightUpload(std::move(planned.impl)));
}

Result<WeightUpload::Planned> WeightUpload::plan(gpu::Device& device, const model::GgufFile& file,
                                                 const model::ModelConfig& config,
                                                 std::uint32_t context, ModelWeights& weights,
                                                 const WeightOptions& options) {
  Planner planner(file, options.units);
  BULKHEAD_TRY(weights, plan_weights(planner, file, config, context, options.pair_rotating_rows));
  Planned planned{std::unique_ptr<Impl>(new Impl{weights, {}, {}, 0, {}}), planner.take_jobs()};
  weights.bytes = planner.bytes();
  Impl& impl = *planned.impl;
  for (const PipelineJob& job : planned.jobs)
    impl.sizes.push_back(job.bytes);
  impl.plan = plan_blocks(impl.sizes, device.info().max_allocation_bytes);
  for (std::size_t i = 0; i < planned.jobs.size(); ++i) {
    planned.jobs[i].block = impl.plan.places[i].block;
    planned.jobs[i].offset = impl.plan.places[i].offset;
  }
  impl.layout_hash = hash_of_layout(planned.jobs, impl.plan, weights);
  return planned;
}

Status WeightUpload::place(const UploadProgress& progress) {
  ModelWeights& weights = impl_->weights;
  if (impl_->pipeline) {
    BULKHEAD_TRY(weights.blocks, impl_->pipeline->buffers(progress));
  } else {
    BULKHEAD_TRY(weights.blocks, impl_->import(impl_->plan));
  }
  const auto address_of = [&](std::size_t piece) {
    const Place& place = impl_->plan.places[piece];
    return weights.blocks[place.block].address() + place.offset;
  };
  std::size_t next = 0;
  for (DeviceMatrix* const matrix : matrices_of(weights))
    matrix->address = address_of(next++);
  const std::uint64_t base = address_of(next);
  for (std::uint64_t* each : {&weights.output_norm, &weights.rope_fine, &weights.rope_coarse})
    bulkhead::forward::place(*each, base);
  for (LayerWeights& layer : weights.layers) {
    for (std::uint64_t* each : {&layer.attention_norm, &layer.feed_forward_norm, &layer.qkv_bias,
                                &layer.q_norm, &layer.k_norm}) {
      bulkhead::forward::place(*each, base);
    }
  }
  return {};
}

Status WeightUpload::finish(const UploadProgress& progress) {
  return impl_->pipeline ? impl_->pipeline->finish(progress) : Status();
}

PipelineTimes WeightUpload::times() const {
  return impl_->pipeline ? impl_->pipeline->times() : PipelineTimes();
}

const BlockPlan& WeightUpload::plan() const {
  return impl_->plan;
}

std::uint64_t WeightUpload::layout_hash() const {
  return impl_->layout_hash;
}

}  // namespace bulkhead::forward

#include "worker/forward/weights.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "config/base/fnv1a.hpp"
#include "worker/forward/rope_table.hpp"

namespace bulkhead::forward {
namespace {

// Appends a vector to those of a model. Returns its offset, in floats.
std::uint64_t append(std::vector<float>& all, std::span<const float> values) {
  const std::uint64_t at = vector_start(all.size());
  all.resize(at);
  all.insert(all.end(), values.begin(), values.end());
  return at;
}

std::vector<float> values_of(const model::GgufFile& file, const model::ModelGraph& graph,
                             const model::VectorRow& row, const RowOrder& order) {
  std::vector<float> values;
  for (const model::VectorRow::Part& part : row.parts) {
    const model::TensorInfo* const tensor = file.find_tensor(graph.tensors[part.tensor].name);
    const std::vector<float> own = to_floats(*tensor);
    const RowOrder taken = part.rotates ? order : RowOrder{};
    for (std::size_t i = 0; i < entries_of(graph, part); ++i)
      values.push_back(own[part.first + taken.source(i)]);
  }
  if (row.scale != 1) {
    for (float& value : values)
      value *= row.scale;
  }
  return values;
}

std::uint64_t hash_of_layout(const std::vector<PipelineJob>& jobs, const BlockPlan& plan,
                             const ModelWeights& weights) {
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
  for (const DeviceMatrix& matrix : weights.matrices) {
    for (const std::uint64_t value :
         {std::uint64_t{static_cast<std::uint32_t>(matrix.type)}, std::uint64_t{matrix.width},
          matrix.layout.bytes, matrix.layout.quants, matrix.layout.high, matrix.layout.scales,
          matrix.layout.supers})
      number(value);
  }
  return hash;
}

// Writes zeros after each piece, up to the next piece or the end of its block. The checksums of blocks, which are a
// part of the weights' name (Transformer::numerics_id), must not depend on what was in the memory before.
void fill_blocks_whole(std::vector<PipelineJob>& jobs, const BlockPlan& plan) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    PipelineJob& job = jobs[i];
    const bool last = i + 1 == jobs.size() || jobs[i + 1].block != job.block;
    const std::uint64_t end = last ? plan.blocks[job.block] : jobs[i + 1].offset;
    const std::uint64_t own = std::exchange(job.bytes, end - job.offset);
    job.fill = [own, fill = std::move(job.fill)](std::uint64_t offset, std::span<std::byte> piece) {
      const std::uint64_t filled =
          std::min<std::uint64_t>(piece.size(), own - std::min(own, offset));
      if (filled > 0) fill(offset, piece.first(filled));
      std::memset(piece.data() + filled, 0, piece.size() - filled);
    };
  }
}

PipelineJob job_of(const PlannedMatrix& matrix) {
  PipelineJob job;
  job.name = matrix.name;
  job.bytes = matrix.packed->layout().bytes;
  if (matrix.packed->layout().block_bytes != 0) job.grain = matrix.packed->layout().block_bytes;
  job.fill = [packed = matrix.packed, views = matrix.views](
                 std::uint64_t offset, std::span<std::byte> piece) { packed->fill(offset, piece); };
  job.sources = matrix.sources;
  return job;
}

}  // namespace

struct WeightUpload::Impl {
  ModelWeights& weights;
  BlockPlan plan;
  std::uint64_t layout_hash = 0;
  Import import;                             // instead of the pipeline
  std::optional<WeightPipeline> pipeline{};  // declared last, so that it ends first
};

WeightUpload::WeightUpload(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightUpload::~WeightUpload() = default;

Result<std::unique_ptr<WeightUpload>> WeightUpload::start(gpu::Device& device, gpu::BlitQueue& blit,
                                                          const WeightSource& source,
                                                          ModelWeights& weights) {
  Planned planned = plan(device, source, weights);
  std::vector<PipelineBlock> blocks;
  for (const std::uint64_t bytes : planned.impl->plan.blocks)
    blocks.push_back({bytes, source.memory});
  planned.impl->pipeline.emplace(
      device, blit, std::move(planned.jobs),
      [&file = source.file](std::span<const std::byte> part) { file.forget(part); },
      std::move(blocks));
  return std::unique_ptr<WeightUpload>(new WeightUpload(std::move(planned.impl)));
}

Result<std::unique_ptr<WeightUpload>> WeightUpload::over_imported(gpu::Device& device,
                                                                  const WeightSource& source,
                                                                  ModelWeights& weights,
                                                                  Import import) {
  Planned planned = plan(device, source, weights);
  planned.impl->import = std::move(import);
  return std::unique_ptr<WeightUpload>(new WeightUpload(std::move(planned.impl)));
}

// Fills `weights` except buffers and addresses: a vector's "address" is still its offset in floats.
WeightUpload::Planned WeightUpload::plan(gpu::Device& device, const WeightSource& source,
                                         ModelWeights& weights) {
  const ModelPlan& model = source.plan;
  Planned planned{std::unique_ptr<Impl>(new Impl{weights, {}, 0, {}}), {}};
  weights = {};
  for (const PlannedMatrix& matrix : model.matrices) {
    const PackedMatrix& packed = *matrix.packed;
    weights.matrices.push_back({0, packed.type(), packed.layout(), packed.width()});
    if (matrix.read_by_every_step)
      weights.bytes_per_step += packed.layout().bytes_read() / packed.slices() * matrix.slices_read;
    planned.jobs.push_back(job_of(matrix));
  }

  std::vector<float> vectors;
  for (std::size_t i = 0; i < source.graph.vectors.size(); ++i) {
    weights.vectors.push_back(append(
        vectors,
        values_of(source.file, source.graph, source.graph.vectors[i], model.vector_orders[i])));
  }
  for (const model::Rope& rope : source.graph.ropes) {
    const RopeTable table = make_rope_table(rope, source.context);
    DeviceRope& made = weights.ropes.emplace_back();
    made.pairs = rope.pairs();
    made.fine = append(vectors, table.fine);
    made.coarse = append(vectors, table.coarse);
  }
  PipelineJob job;
  job.name = "norms and tables";
  job.bytes = vectors.size() * sizeof(float);
  job.fill = [values = std::make_shared<const std::vector<float>>(std::move(vectors))](
                 std::uint64_t offset, std::span<std::byte> piece) {
    std::memcpy(piece.data(), std::as_bytes(std::span(*values)).data() + offset, piece.size());
  };
  planned.jobs.push_back(std::move(job));

  Impl& impl = *planned.impl;
  std::vector<std::uint64_t> sizes;
  for (const PipelineJob& each : planned.jobs) {
    sizes.push_back(each.bytes);
    weights.bytes += each.bytes;
  }
  impl.plan = plan_blocks(sizes, device.info().max_allocation_bytes);
  for (std::size_t i = 0; i < planned.jobs.size(); ++i) {
    planned.jobs[i].block = impl.plan.places[i].block;
    planned.jobs[i].offset = impl.plan.places[i].offset;
  }
  impl.layout_hash = hash_of_layout(planned.jobs, impl.plan, weights);
  fill_blocks_whole(planned.jobs, impl.plan);
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
  for (DeviceMatrix& matrix : weights.matrices)
    matrix.address = address_of(next++);
  const std::uint64_t base = address_of(next);
  const auto place = [base](std::uint64_t& vector) { vector = base + vector * sizeof(float); };
  for (std::uint64_t& vector : weights.vectors)
    place(vector);
  for (DeviceRope& rope : weights.ropes) {
    place(rope.fine);
    place(rope.coarse);
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

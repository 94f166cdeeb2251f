#include "worker/forward/weights.hpp"

#include <algorithm>

#include "worker/forward/rope_table.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {
namespace {

class Uploader {
 public:
  Uploader(gpu::Device& device, gpu::BlitQueue& blit, const model::GgufFile& file,
           const UploadProgress& progress)
      : device_(device), blit_(blit), file_(file), progress_(progress) {
    for (const model::TensorInfo& tensor : file.tensors())
      total_ += tensor.data.size();
  }

  Result<const model::TensorInfo*> find(const std::string& name) const {
    const model::TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr)
      return Error(ErrorCode::kCorrupt, file_.name() + ": tensor " + name + " is missing");
    return tensor;
  }

  Result<DeviceMatrix> matrix(const std::vector<const model::TensorInfo*>& tensors,
                              const std::vector<RowOrder>& orders = {}) {
    const PackedMatrix packed(tensors, orders);
    DeviceMatrix result;
    result.type = packed.type();
    result.layout = packed.layout();
    result.width = packed.width();
    const std::string name(tensors.front()->name);
    BULKHEAD_TRY(result.buffer,
                 device_.allocate(packed.layout().bytes, gpu::Memory::kDeviceLocal, name.c_str()));
    Job job{this, &packed};
    BULKHEAD_RETURN_IF_ERROR(settled(blit_.upload_with(
        packed.layout().bytes, gpu::slice(result.buffer), &Uploader::fill, &job)));
    bytes_ += packed.layout().bytes;
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

  Result<gpu::Buffer> upload_vectors() {
    const auto bytes = std::as_bytes(std::span<const float>(vectors_));
    BULKHEAD_TRY(gpu::Buffer buffer,
                 device_.allocate(bytes.size(), gpu::Memory::kDeviceLocal, "norms and tables"));
    BULKHEAD_RETURN_IF_ERROR(settled(blit_.upload(bytes, gpu::slice(buffer))));
    bytes_ += bytes.size();
    return buffer;
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Job {
    Uploader* self;
    const PackedMatrix* packed;
  };
  static void fill(void* context, std::uint64_t offset, std::span<std::byte> piece) {
    const Job& job = *static_cast<Job*>(context);
    job.packed->fill(offset, piece);
    job.self->done_ += piece.size();
    if (job.self->progress_)
      job.self->progress_(std::min(job.self->done_, job.self->total_), job.self->total_);
  }

  // Pieces of an upload that failed may be under way to a buffer that is about to go.
  Status settled(Status uploaded) {
    if (!uploaded.ok()) blit_.drain();
    return uploaded;
  }

  gpu::Device& device_;
  gpu::BlitQueue& blit_;
  const model::GgufFile& file_;
  const UploadProgress& progress_;
  std::vector<float> vectors_;
  std::uint64_t bytes_ = 0, done_ = 0, total_ = 0;
};

// However loading ends, nothing is under way to the weights any more when they are freed.
struct SettleUploads {
  gpu::BlitQueue& blit;
  ~SettleUploads() { blit.drain(); }
};

// Offsets stand in for addresses until the buffer exists; 0 stays "none", so they are stored plus
// one.
void place(std::uint64_t& vector, std::uint64_t base) {
  if (vector != 0) vector = base + (vector - 1) * sizeof(float);
}

}  // namespace

Result<ModelWeights> upload_weights(gpu::Device& device, gpu::BlitQueue& blit,
                                    const model::GgufFile& file, const model::ModelConfig& config,
                                    std::uint32_t context, const UploadProgress& progress,
                                    bool pair_rotating_rows) {
  Uploader uploader(device, blit, file, progress);
  ModelWeights weights;
  const SettleUploads before_weights_go{blit};
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
      BULKHEAD_TRY(layer.gate, uploader.matrix(std::vector{gate, up}));
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

  BULKHEAD_TRY(weights.vectors, uploader.upload_vectors());
  const std::uint64_t base = weights.vectors.address();
  for (std::uint64_t* each : {&weights.output_norm, &weights.rope_fine, &weights.rope_coarse})
    place(*each, base);
  for (LayerWeights& layer : weights.layers) {
    for (std::uint64_t* each : {&layer.attention_norm, &layer.feed_forward_norm, &layer.qkv_bias,
                                &layer.q_norm, &layer.k_norm}) {
      place(*each, base);
    }
  }
  BULKHEAD_RETURN_IF_ERROR(blit.finish_uploads());
  weights.bytes = uploader.bytes();
  return weights;
}

}  // namespace bulkhead::forward

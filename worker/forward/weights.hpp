// A model's weights in device memory, as the step program addresses them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/weight_layout.hpp"
#include "worker/forward/memory_blocks.hpp"
#include "worker/forward/weight_pipeline.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/model_config.hpp"

namespace bulkhead::forward {

struct DeviceMatrix {
  std::uint64_t address = 0;  // within a block
  gpu::kernels::WeightType type = gpu::kernels::WeightType::kF32;
  gpu::kernels::WeightLayout layout;
  std::uint32_t width = 0;

  std::uint64_t quants() const { return address + layout.quants; }
  std::uint64_t high() const { return address + layout.high; }
  std::uint64_t scales() const { return address + layout.scales; }
  std::uint64_t supers() const { return address + layout.supers; }
};

// A matrix whose results go to the entries of the output from first_row on.
struct Segment {
  DeviceMatrix matrix;
  std::uint32_t first_row = 0;
};

// Vectors are device addresses of floats; 0: the model has none.
struct LayerWeights {
  std::uint64_t attention_norm = 0, feed_forward_norm = 0;
  std::vector<Segment> qkv;    // neighbours of equal type are one matrix
  std::uint64_t qkv_bias = 0;  // [q, k, v]
  std::uint64_t q_norm = 0, k_norm = 0;
  DeviceMatrix attention_output;
  bool gate_up_joined = false;
  DeviceMatrix gate;  // joined: the gate's rows, then up's; for matrix units in turn
  DeviceMatrix up;
  DeviceMatrix down;
};

struct ModelWeights {
  DeviceMatrix embedding;
  DeviceMatrix output;  // of width 0 when the embedding serves
  std::uint64_t output_norm = 0;
  std::uint64_t rope_fine = 0, rope_coarse = 0;
  std::uint32_t rope_pairs = 0;
  // Rows of q and k (and their biases) lie so that the two which rotate together are neighbours.
  bool rotating_rows_paired = false;
  std::vector<LayerWeights> layers;
  std::vector<gpu::Buffer> blocks;   // matrices, and last every norm, bias and table
  std::uint64_t bytes = 0;           // in device memory
  std::uint64_t bytes_per_step = 0;  // read by a step of one column with an output

  const DeviceMatrix& output_matrix() const { return output.width != 0 ? output : embedding; }
};

// How the weights get to the device.
struct WeightOptions {
  bool pair_rotating_rows = false;
  bool units = false;
  gpu::Memory memory = gpu::Memory::kDeviceLocal;
};

// Brings the weights to the device in the background. `weights` is the caller's and stays where it
// is; its types, sizes and layouts are there from the start, its addresses from place(), its
// contents from finish(). Until finish() the blit queue is this object's alone.
class WeightUpload {
 public:
  // Called about every 100 ms while a function here waits, with the bytes packed so far.
  using UploadProgress = WeightPipeline::Alive;

  static Result<std::unique_ptr<WeightUpload>> start(gpu::Device& device, gpu::BlitQueue& blit,
                                                     const model::GgufFile& file,
                                                     const model::ModelConfig& config,
                                                     std::uint32_t context, ModelWeights& weights,
                                                     const WeightOptions& options = {});
  // The same with memory that has them already, which place() takes over: nothing is read of the
  // file's tensors but small ones, nothing uploaded.
  using Import = std::function<Result<std::vector<gpu::Buffer>>(const BlockPlan& plan)>;
  static Result<std::unique_ptr<WeightUpload>> take_over(
      gpu::Device& device, const model::GgufFile& file, const model::ModelConfig& config,
      std::uint32_t context, ModelWeights& weights, const WeightOptions& options, Import import);
  // At any time: ends it, and waits until nothing is under way to the weights.
  ~WeightUpload();

  Status place(const UploadProgress& progress);   // until all memory is allocated
  Status finish(const UploadProgress& progress);  // until all is on the device; after place()
  PipelineTimes times() const;                    // after finish()
  const BlockPlan& plan() const;
  // Changes with what lies where: names, types, sizes, places.
  std::uint64_t layout_hash() const;

 private:
  struct Impl;
  struct Planned {
    std::unique_ptr<Impl> impl;
    std::vector<PipelineJob> jobs;
  };
  static Result<Planned> plan(gpu::Device& device, const model::GgufFile& file,
                              const model::ModelConfig& config, std::uint32_t context,
                              ModelWeights& weights, const WeightOptions& options);
  explicit WeightUpload(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward

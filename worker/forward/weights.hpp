// A model's weights in device memory, as steps address them, and how they are loaded.
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
#include "worker/forward/model_plan.hpp"
#include "worker/forward/weight_pipeline.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

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

// The two tables of a rotation (rope_table.hpp): device addresses.
struct DeviceRope {
  std::uint32_t pairs = 0;
  std::uint64_t fine = 0, coarse = 0;
};

struct ModelWeights {
  std::vector<DeviceMatrix> matrices;  // as in the plan
  std::vector<std::uint64_t> vectors;  // as in the graph: device addresses of floats
  std::vector<DeviceRope> ropes;       // as in the graph
  std::vector<gpu::Buffer> blocks;     // the matrices; the last one has every vector and table
  std::uint64_t bytes = 0;             // in device memory
  std::uint64_t bytes_per_step = 0;    // what a step of one column with an output reads

  // Returns 0 if there is no such vector.
  std::uint64_t vector(model::VectorIndex index) const {
    return index == kAbsent ? 0 : vectors[index];
  }
  // Returns a rope without pairs if nothing rotates.
  DeviceRope rope(model::RopeIndex index) const {
    return index == kAbsent ? DeviceRope{} : ropes[index];
  }
};

// Which weights are loaded, and how.
struct WeightSource {
  const model::GgufFile& file;
  const model::ModelGraph& graph;
  const ModelPlan& plan;
  std::uint32_t context = 0;  // the number of positions that can be rotated
  gpu::Memory memory = gpu::Memory::kDeviceLocal;
};

// Loads the weights to the device in the background. `weights` belongs to the caller and must not move. Its types,
// sizes and layouts are valid from the start, its addresses from place() on, its contents from finish() on. Until
// finish() only this object may use the blit queue.
class WeightUpload {
 public:
  // Called about every 100 ms while a function here waits, with the bytes packed so far.
  using UploadProgress = WeightPipeline::Alive;

  static Result<std::unique_ptr<WeightUpload>> start(gpu::Device& device, gpu::BlitQueue& blit,
                                                     const WeightSource& source,
                                                     ModelWeights& weights);
  // The same with memory that already holds the weights: place() imports it, only small tensors are
  // read from the file, and nothing is uploaded.
  using Import = std::function<Result<std::vector<gpu::Buffer>>(const BlockPlan& plan)>;
  static Result<std::unique_ptr<WeightUpload>> over_imported(gpu::Device& device,
                                                             const WeightSource& source,
                                                             ModelWeights& weights, Import import);
  // At any time: stops loading, and waits until no copy to the weights is under way.
  ~WeightUpload();

  Status place(const UploadProgress& progress);   // waits until all memory is allocated
  Status finish(const UploadProgress& progress);  // waits until everything is on the device; call it after place()
  PipelineTimes times() const;                    // valid after finish()
  const BlockPlan& plan() const;
  // Returns a hash that changes with the layout: names, types, sizes, places.
  std::uint64_t layout_hash() const;

 private:
  struct Impl;
  struct Planned {
    std::unique_ptr<Impl> impl;
    std::vector<PipelineJob> jobs;
  };
  static Planned plan(gpu::Device& device, const WeightSource& source, ModelWeights& weights);
  explicit WeightUpload(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::forward

// The Executor that computes on a device. It uploads a model's weights (still quantised), keeps the paged KV cache on
// the device, and runs steps as recorded Vulkan compute work. The host computes no tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/exported_memory.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct TransformerOptions {
  config::EngineSettings engine;
  config::GpuOptimizations gpu;
  std::uint32_t context =
      0;  // 0: the model's own, reduced to what fits; otherwise exactly this or an error
  // Other executors may need the device's memory, too. A cache whose size is left open then grows less.
  bool beside_others = false;
  std::uint32_t wait_timeout_ms = 10000;
  // Puts weights and KV pages into memory that can be exported (export_memory), if the device has such memory.
  bool exportable = false;
  // For a stage of a split model: the sizes that all stages share. Empty: this device's free memory decides.
  std::optional<SharedSizes> shared;
  // What a predecessor exported, which is imported instead of loading the model; its blocks are moved out of this. If
  // any of it differs from what this process would have made, loading fails: kCorrupt says what differs.
  ExportedMemory* predecessor = nullptr;
  std::string cache_folder;  // where gpu_optimizations.autotune keeps its results; empty: nowhere
  std::size_t product_variant = 0;  // for tests: the index of the variant to use for each product
  bool lanes_mapping = false;       // for tests: the GPUs' kernels on any device
  // For tests: after the warm-up, this link of a chain (gpu/kernels/chain.glsl) waits in vain. 0: none does.
  std::uint32_t broken_link = 0;
  // Reports progress; done/total are bytes or steps. It is a sign of life: the loading thread calls it several times
  // a second while loading advances or a wait is within its time limit. Only a driver's call that compiles a kernel
  // may take longer.
  std::function<void(const std::string& stage, std::uint64_t done, std::uint64_t total)> progress;
};

// How long it took to import a predecessor's memory and to check it; zeros if the model was loaded.
struct ImportTimes {
  std::uint64_t import_ns = 0, check_ns = 0;
};

// Exports the memory of an executor for a successor (worker/vault).
class MemoryExporter {
 public:
  virtual ~MemoryExporter() = default;
  // Returns the descriptors of its blocks, and the checksums of its weights as they are now. kUnsupported, with the
  // reason, if the memory can't be exported.
  virtual Result<ExportedMemory> export_memory() const = 0;
  // Exports the pieces of a slab by which the cache has grown since export_memory(): one on each device that has pages
  // of its kind.
  virtual Result<std::vector<ExportedSlab>> export_slab(std::uint32_t /*slab*/) const {
    return Error(ErrorCode::kUnsupported, "this executor has no slabs");
  }
  // Returns the slab to which a piece belongs (ExportedSlab::piece).
  virtual std::uint32_t slab_of_piece(std::uint32_t piece) const { return piece; }
  virtual ImportTimes import_times() const = 0;
  // Checks weights that were imported a while ago. kCorrupt: they have changed since. No step may be in flight.
  virtual Status check_weights_again() = 0;
};

// Rows of the residual stream, one for each column of a step.
struct ComputedRows {
  std::span<const float> floats;
  std::uint32_t stride = 0;  // floats from one row to the next
};

class Transformer : public engine::Executor, public MemoryExporter {
 public:
  // For a stage of a split model (split_transformer.hpp). A stage that does not embed tokens takes the stream's rows
  // from here: [column][embedding]; fill it before submit(). Otherwise empty.
  virtual std::span<float> brought_rows() = 0;
  // For a stage that computes no logits: what the most recently awaited step has computed, valid until the next
  // submit(). Otherwise empty.
  virtual ComputedRows computed_rows() = 0;
  // For benchmarks: runs the step once more with a timestamp around each dispatch and waits. `step` is as for
  // submit(); no step may be in flight. The states of layers are useless afterwards.
  virtual Result<std::vector<gpu::KernelTime>> profile_step(const engine::Step& step) = 0;
  // Returns the bytes of weights that a step of one column must read on the device.
  virtual std::uint64_t weight_bytes_read() const = 0;
};

// Loads the model and runs one forward pass to warm everything up; the pass leaves no trace in the KV cache.
// kResourceExhausted says how much memory is needed and how much is free. `device` must outlive the transformer;
// `file` must live until this returns.
Result<std::unique_ptr<Transformer>> make_transformer(gpu::Device& device,
                                                      const model::GgufFile& file,
                                                      const model::ModelGraph& graph,
                                                      const TransformerOptions& options);

}  // namespace bulkhead::forward

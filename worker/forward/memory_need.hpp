// Computes how much device memory a model takes. It needs only the file's header and no device.
#pragma once

#include <cstdint>
#include <span>

#include "config/settings.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/forward/scratch_plan.hpp"
#include "worker/forward/step_shapes.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

// Returns the format of keys and values for engine.kv_type.
gpu::kernels::KvFormat kv_format(config::KvType type);
// Returns where matrix units compute attention, for engine.matrix_attention.
gpu::kernels::UnitsAttention units_attention(config::MatrixAttention setting);

// The facts about a device on which sizes depend. Sizes must not depend on how much memory is free, because a
// successor that imports memory must compute the same sizes.
struct DeviceSize {
  bool cpu = false;
  std::uint64_t memory_bytes = 0;  // the device's whole memory; 0: unknown, assumed to be enough
  // One GPU with memory of its own computes the whole model, and no other worker may need that memory.
  bool alone = false;
};
// Returns the settings, with a number for engine.max_batch if they leave it open (0). The number is 16 on a CPU
// device and at most 256 on a GPU. It is smaller for large models, because their steps take longer. It is also
// smaller if half of the memory that the weights leave could not hold 1,024 tokens of each sequence.
// They also have a number for engine.state_cache_mb where its 0 stands for more than 2 GiB (usual_state_cache_mb).
config::EngineSettings with_sizes(config::EngineSettings engine, const model::GgufFile& file,
                                  const model::ModelGraph& graph, const DeviceSize& device);
// Returns engine.state_cache_mb. If the setting is 0 and stands for more than 2 GiB on this device, returns that number
// of MiB; if it stands for less, returns 0, and state_slots() then takes two states for each sequence, at most 2 GiB.
// More than 2 GiB are taken only from what a KV cache of a fixed size leaves; a cache that grows has less room for it.
// `engine` has a number for max_batch.
std::uint32_t usual_state_cache_mb(const config::EngineSettings& engine, std::uint64_t weight_bytes,
                                   const model::ModelGraph& graph, const DeviceSize& device);
// The numbers for which engine.max_batch 0 stands with a model: `most` on a GPU with at least `memory_bytes`, fewer
// on a smaller GPU, but at least `least`, which is the number on a CPU.
struct UsualBatch {
  std::uint32_t least = 0, most = 0;
  std::uint64_t memory_bytes = 0;  // a GPU's whole memory
};
UsualBatch usual_batch(const config::EngineSettings& engine, const model::GgufFile& file,
                       const model::ModelGraph& graph);

// The functions below take settings with sizes. widest_step() returns the most columns that any step has
// (engine::Scheduler); wider steps of prompts gain nothing on a CPU device. widest_mixed_step() returns the most
// columns of a step that also has generating sequences; steps are recorded for this width, too.
std::uint32_t widest_mixed_step(const config::EngineSettings& engine);
// llvmpipe ends an invocation's loops after 65,535 rounds in total, and says nothing. The kernels that go through a
// step's columns (the choice of experts, the scan of delta nets) take up to four rounds for each.
inline constexpr std::uint32_t kMostColumnsOnCpu = 8192;
std::uint32_t widest_step(const model::ModelGraph& graph, const config::EngineSettings& engine,
                          bool cpu);
// Returns the most outputs of a step: one for each sequence, plus those of drafts.
std::uint32_t most_outputs(const config::EngineSettings& engine);

// The memory for keys and values. Stores that slide (kv_windows.hpp) keep only a window's positions.
struct KvNeed {
  std::uint64_t per_token = 0;         // bytes of a position for as long as its sequence lasts
  std::uint64_t per_window_token = 0;  // further bytes while a window sees the position
  std::uint32_t window = 0;            // positions

  // Returns how many window pages a sequence with this many full pages takes.
  std::uint32_t window_pages(std::uint64_t full_pages) const;
  // Returns the bytes of a sequence with this many positions.
  std::uint64_t bytes(std::uint64_t positions) const;
};
KvNeed kv_need(const model::ModelGraph& graph, gpu::kernels::KvFormat kv);

// The device memory that loading will take, in bytes, for `bulkhead inspect` and for the check before loading.
struct MemoryNeed {
  std::uint64_t weights = 0;
  KvNeed kv;
  std::uint64_t transient = 0;  // activations of the largest step, and logits
  std::uint64_t states = 0;     // the states of layers, in all slots
  // Host memory, in addition to the device memory above: the rows of logits if the host chooses the tokens of all
  // sequences that a step may have, and the masks of all sequences.
  std::uint64_t host_logits = 0;
};
// Returns the number of slots for states: one for each sequence that may run, one for each draft of a step, and those
// of engine.state_cache_mb. 0 if the model's layers carry no states.
std::uint32_t state_slots(const model::ModelGraph& graph, const config::EngineSettings& engine);
// Returns the most drafts of a step. Each draft of a model with states needs a slot (engine::StateUse).
std::uint32_t most_drafts(const model::ModelGraph& graph, const config::EngineSettings& engine);
// Returns MemoryNeed::states on a GPU that the model has for itself and that has room for all states that
// engine.state_cache_mb 0 asks for. `engine` has a number for max_batch.
std::uint64_t most_states_need(const model::ModelGraph& graph, config::EngineSettings engine);
// Returns the bytes of a layer's part of a slot.
std::uint64_t state_bytes(const model::StateStore& store);
// Returns the bytes of a position's keys and values, including those in stores that slide.
std::uint64_t kv_bytes_per_token(const model::ModelGraph& graph, gpu::kernels::KvFormat kv);

// Follows the same plan as loading, and allocates nothing.
MemoryNeed memory_need(const model::ModelGraph& graph, const ModelPlan& plan,
                       const gpu::kernels::Mapping& mapping, gpu::kernels::KvFormat kv,
                       std::span<const StepShape> shapes, const ScratchOptions& options,
                       std::uint32_t state_slots);
// Returns the need on an unknown GPU, with the model's whole context. `engine` may leave sizes open.
Result<MemoryNeed> memory_need(const model::GgufFile& file, const model::ModelGraph& graph,
                               const config::EngineSettings& engine, bool matrix_units = false);

}  // namespace bulkhead::forward

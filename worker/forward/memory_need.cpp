#include "worker/forward/memory_need.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "worker/engine/executor.hpp"
#include "worker/forward/kv_windows.hpp"
#include "worker/forward/wanted_pages.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::uint32_t kUsualChunk = 256;  // stands for engine.prefill_chunk 0
constexpr std::uint32_t kLeastBatch = 16;
constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

// With the sequences of one row, a step takes some 20 to 50 ms on a large GPU.
struct BatchRow {
  std::uint64_t weights_up_to;  // the row is for models whose weights have at most this many bytes
  std::uint32_t sequences;
};
constexpr BatchRow kBatches[] = {
    {24 * kGibibyte, 256}, {64 * kGibibyte, 128}, {std::numeric_limits<std::uint64_t>::max(), 64}};
constexpr std::uint64_t kTokensOfEach = 1024;
constexpr std::uint64_t kMostStates =
    4 * kGibibyte;  // the most memory for states of running sequences
constexpr std::uint64_t kSavedAnywhere = 2 * kGibibyte;  // the most for saved states on any device
constexpr std::uint64_t kShareOfStates = 16;  // a large GPU gives them this part of its memory

std::uint64_t state_bytes_of(const model::ModelGraph& graph) {
  std::uint64_t bytes = 0;
  for (const model::StateStore& store : graph.states)
    bytes += state_bytes(store);
  return bytes;
}

std::uint64_t states_need(const model::ModelGraph& graph, std::uint32_t slots) {
  return (std::uint64_t{slots} + 1) * state_bytes_of(graph);  // the warm-up has its own slot
}

std::uint64_t tensor_bytes(const model::GgufFile& file) {
  std::uint64_t bytes = 0;
  for (const model::TensorInfo& tensor : file.tensors())
    bytes += tensor.data.size();
  return bytes;
}

// Returns the bytes of the KV cache that each sequence should find free.
std::uint64_t bytes_of_each(const config::EngineSettings& engine, const model::ModelGraph& graph) {
  const std::uint64_t tokens = kTokensOfEach * kv_bytes_per_token(graph, kv_format(engine.kv_type));
  return std::max<std::uint64_t>(state_bytes_of(graph) + tokens, 1);
}

std::uint32_t batch_for(const config::EngineSettings& engine, const model::GgufFile& file,
                        const model::ModelGraph& graph, const DeviceSize& device) {
  if (device.cpu) return kLeastBatch;
  const std::uint64_t weights = tensor_bytes(file);
  std::uint64_t sequences = std::ranges::find_if(kBatches, [&](const BatchRow& row) {
                              return weights <= row.weights_up_to;
                            })->sequences;
  const std::uint64_t states = state_bytes_of(graph);
  if (states > 0) sequences = std::min(sequences, kMostStates / states);
  if (device.memory_bytes > 0) {
    const std::uint64_t left = device.memory_bytes - std::min(device.memory_bytes, weights);
    sequences = std::min(sequences, left / 2 / bytes_of_each(engine, graph));
  }
  return std::max(kLeastBatch, static_cast<std::uint32_t>(sequences));
}

// Returns the most memory for saved states if no setting bounds it.
std::uint64_t room_for_saved(const config::EngineSettings& engine, std::uint64_t weight_bytes,
                             const model::ModelGraph& graph, const DeviceSize& device) {
  if (!device.alone) return kSavedAnywhere;
  const std::uint64_t share = device.memory_bytes / kShareOfStates;
  const std::uint64_t running =
      (std::uint64_t{engine.max_batch} + most_drafts(graph, engine)) * state_bytes_of(graph);
  // Matrix units' layouts take up to about an eighth more for each weight. As much again as the states' share is left
  // for activations, and for what the driver and other programs take.
  const std::uint64_t taken =
      weight_bytes / 8 * 9 + running + room_for_pages(graph, engine) + share;
  const std::uint64_t left = device.memory_bytes - std::min(device.memory_bytes, taken);
  return std::max(kSavedAnywhere, std::min(share, left));
}

}  // namespace

std::uint32_t usual_state_cache_mb(const config::EngineSettings& engine, std::uint64_t weight_bytes,
                                   const model::ModelGraph& graph, const DeviceSize& device) {
  if (engine.state_cache_mb != 0 || graph.states.empty()) return engine.state_cache_mb;
  const std::uint64_t two_each = 2 * std::uint64_t{engine.max_batch} * state_bytes_of(graph);
  const std::uint64_t room = room_for_saved(engine, weight_bytes, graph, device);
  if (std::min(room, two_each) <= kSavedAnywhere) return 0;
  constexpr std::uint64_t kMebibyte = 1U << 20;
  return static_cast<std::uint32_t>(
      std::min(room / kMebibyte, (two_each + kMebibyte - 1) / kMebibyte));
}

config::EngineSettings with_sizes(config::EngineSettings engine, const model::GgufFile& file,
                                  const model::ModelGraph& graph, const DeviceSize& device) {
  if (engine.max_batch == 0) engine.max_batch = batch_for(engine, file, graph, device);
  engine.state_cache_mb = usual_state_cache_mb(engine, tensor_bytes(file), graph, device);
  return engine;
}

UsualBatch usual_batch(const config::EngineSettings& engine, const model::GgufFile& file,
                       const model::ModelGraph& graph) {
  UsualBatch usual;
  usual.least = kLeastBatch;
  usual.most = batch_for(engine, file, graph, {});
  usual.memory_bytes = tensor_bytes(file) + 2 * usual.most * bytes_of_each(engine, graph);
  return usual;
}

gpu::kernels::KvFormat kv_format(config::KvType type) {
  switch (type) {
    case config::KvType::kF32:
      return gpu::kernels::KvFormat::kF32;
    case config::KvType::kQ8_0:
      return gpu::kernels::KvFormat::kQ8;
    case config::KvType::kF16:
      break;
  }
  return gpu::kernels::KvFormat::kF16;
}

gpu::kernels::UnitsAttention units_attention(config::MatrixAttention setting) {
  using enum gpu::kernels::UnitsAttention;
  switch (setting) {
    case config::MatrixAttention::kAuto:
      return kWhereFaster;
    case config::MatrixAttention::kOn:
      return kEverywhere;
    case config::MatrixAttention::kOff:
      break;
  }
  return kNowhere;
}

std::uint32_t widest_mixed_step(const config::EngineSettings& engine) {
  const std::uint32_t chunk = engine.prefill_chunk;
  // If no chunk is set, the time that a step takes decides its width.
  if (chunk == 0) return kUsualChunk;
  return std::max(chunk, engine.max_batch + std::max(chunk / 2, 1U));
}

std::uint32_t widest_step(const model::ModelGraph& graph, const config::EngineSettings& engine,
                          bool cpu) {
  const std::uint32_t mixed =
      std::max(widest_mixed_step(engine),
               engine.prefill_chunk == 0 ? engine.max_batch + kUsualChunk / 2 : 0);
  // A step of an encoder has a whole text.
  const std::uint32_t text = is_encoder(graph) ? std::min(graph.context, model::kLongestText) : 0;
  if (cpu) return std::min(std::max(mixed, text), kMostColumnsOnCpu);
  return std::max({mixed, engine.prefill_chunk_alone, text});
}

std::uint32_t most_outputs(const config::EngineSettings& engine) {
  const bool drafts = engine.speculation != config::Speculation::kOff;
  return std::max(engine.max_batch, drafts ? engine::kMostDrafts + 1 : 1);
}

std::uint32_t KvNeed::window_pages(std::uint64_t full_pages) const {
  if (window == 0) return 0;
  const std::uint32_t reserve = engine::window_reserve(window, gpu::kernels::kPageTokens);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(full_pages, reserve));
}

std::uint64_t KvNeed::bytes(std::uint64_t positions) const {
  constexpr std::uint64_t kTokens = gpu::kernels::kPageTokens;
  const std::uint64_t pages = (positions + kTokens - 1) / kTokens;
  return (pages * per_token + window_pages(pages) * per_window_token) * kTokens;
}

KvNeed kv_need(const model::ModelGraph& graph, gpu::kernels::KvFormat kv) {
  const KvWindows windows = kv_windows(graph);
  KvNeed need;
  need.window = windows.window;
  for (std::size_t i = 0; i < graph.kv.size(); ++i) {
    const model::KvStore& store = graph.kv[i];
    (windows.slides[i] ? need.per_window_token : need.per_token) +=
        std::uint64_t{store.heads} * (store.value_entries == 0 ? 2 : 1) *
        gpu::kernels::kv_position_bytes(store.head_size, kv);
  }
  return need;
}

std::uint64_t kv_bytes_per_token(const model::ModelGraph& graph, gpu::kernels::KvFormat kv) {
  const KvNeed need = kv_need(graph, kv);
  return need.per_token + need.per_window_token;
}

std::uint32_t state_slots(const model::ModelGraph& graph, const config::EngineSettings& engine) {
  if (graph.states.empty()) return 0;
  const std::uint32_t own = engine.max_batch + most_drafts(graph, engine);
  if (!engine.prefix_cache) return own;
  const std::uint64_t bytes = state_bytes_of(graph);
  constexpr std::uint64_t kMostSlots = 1U << 15;
  const std::uint64_t saved =
      engine.state_cache_mb != 0
          ? (std::uint64_t{engine.state_cache_mb} << 20) / bytes
          : std::min<std::uint64_t>(2 * std::uint64_t{engine.max_batch}, kSavedAnywhere / bytes);
  return own + static_cast<std::uint32_t>(std::min(saved, kMostSlots));
}

std::uint32_t most_drafts(const model::ModelGraph& graph, const config::EngineSettings& engine) {
  if (graph.states.empty()) return engine::kMostDrafts;
  if (engine.speculation == config::Speculation::kOff) return 0;
  // Slots for more drafts would take memory from the KV cache, and drafts that lie farther ahead are seldom right.
  constexpr std::uint64_t kMostBytes = std::uint64_t{512} << 20, kLeast = 4;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kMostBytes / state_bytes_of(graph), kLeast, engine::kMostDrafts));
}

std::uint64_t most_states_need(const model::ModelGraph& graph, config::EngineSettings engine) {
  DeviceSize roomy;
  roomy.memory_bytes = std::numeric_limits<std::uint64_t>::max();
  roomy.alone = true;
  engine.state_cache_mb = usual_state_cache_mb(engine, 0, graph, roomy);
  return graph.states.empty() ? 0 : states_need(graph, state_slots(graph, engine));
}

std::uint64_t state_bytes(const model::StateStore& store) {
  return slot_floats(store) * sizeof(float);
}

MemoryNeed memory_need(const model::ModelGraph& graph, const ModelPlan& plan,
                       const gpu::kernels::Mapping& mapping, gpu::kernels::KvFormat kv,
                       std::span<const StepShape> shapes, const ScratchOptions& options,
                       std::uint32_t state_slots) {
  MemoryNeed need;
  need.states = states_need(graph, state_slots);
  for (const std::uint64_t bytes : weight_sizes(graph, plan, options.context))
    need.weights += bytes;
  need.kv = kv_need(graph, kv);
  need.transient = plan_scratch(graph, plan, mapping, shapes, options).device_bytes();
  const std::uint32_t outputs = shapes.back().outputs;
  need.host_logits = options.slots * (host_logits_blocks(outputs) * kHostLogitsRows *
                                          graph.vocabulary * sizeof(float) +
                                      adjustment_bytes(graph.vocabulary, outputs));
  return need;
}

Result<MemoryNeed> memory_need(const model::GgufFile& file, const model::ModelGraph& graph,
                               const config::EngineSettings& asked, bool matrix_units) {
  const config::EngineSettings engine = with_sizes(asked, file, graph, {});
  gpu::kernels::Mapping mapping;
  mapping.attention_together = true;
  mapping.units = matrix_units;
  mapping.units_attention = units_attention(engine.matrix_attention);
  const gpu::kernels::KvFormat kv = kv_format(engine.kv_type);
  BULKHEAD_TRY(const ModelPlan plan, plan_model(graph, file, mapping, kv));
  const config::CommandBufferRingSettings ring;
  const std::vector<StepShape> shapes =
      step_shapes(widest_step(graph, engine, false), widest_mixed_step(engine),
                  most_outputs(engine), ring.ring_size);
  return memory_need(graph, plan, mapping, kv, shapes, {graph.context, ring.steps_in_flight},
                     state_slots(graph, engine));
}

}  // namespace bulkhead::forward

// How much device memory a model takes, from its file's header alone: needs no device and no GPU
// library.
#pragma once

#include <cstdint>

#include "config/settings.hpp"
#include "gpu/kernels/kv_layout.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/model_config.hpp"

namespace bulkhead::forward {

// How keys and values lie, by engine.kv_type.
gpu::kernels::KvFormat kv_format(config::KvType type);

// Columns of a step at most (engine::Scheduler): in which sequences generate, and in any. A CPU gains
// nothing from a prompt's wider steps.
std::uint32_t widest_mixed_step(const config::EngineSettings& engine);
std::uint32_t widest_step(const config::EngineSettings& engine, bool cpu);

// Bytes. Device memory that loading will take, for `bulkhead inspect` and for the check before
// loading.
struct MemoryNeed {
  std::uint64_t weights = 0;
  std::uint64_t kv_per_token = 0;
  std::uint64_t transient = 0;  // activations of the largest step, logits
};
MemoryNeed memory_need(const model::GgufFile& file, const model::ModelConfig& config,
                       const config::EngineSettings& engine, bool matrix_units = false);

}  // namespace bulkhead::forward

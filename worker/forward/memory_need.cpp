#include "worker/forward/memory_need.hpp"

#include <algorithm>

#include "gpu/kernels/weight_layout.hpp"

namespace bulkhead::forward {

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

std::uint32_t widest_mixed_step(const config::EngineSettings& engine) {
  const std::uint32_t chunk = engine.prefill_chunk;
  return std::max(chunk, engine.max_batch + std::max(chunk / 2, 1U));
}

std::uint32_t widest_step(const config::EngineSettings& engine, bool cpu) {
  const std::uint32_t mixed = widest_mixed_step(engine);
  return cpu ? mixed : std::max(mixed, engine.prefill_chunk_alone);
}

MemoryNeed memory_need(const model::GgufFile& file, const model::ModelConfig& config,
                       const config::EngineSettings& engine, bool matrix_units) {
  MemoryNeed need;
  for (const model::TensorInfo& tensor : file.tensors()) {
    if (tensor.dimensions < 2) {
      need.weights += tensor.elements() * 4;
      continue;
    }
    const auto type = static_cast<gpu::kernels::WeightType>(tensor.type);
    need.weights += matrix_units
                        ? gpu::kernels::unit_layout(type, tensor.rows(), tensor.ne[0]).bytes
                        : gpu::kernels::weight_layout(type, tensor.rows(), tensor.ne[0]).bytes;
  }

  const gpu::kernels::KvFormat format = kv_format(engine.kv_type);
  const std::uint64_t head = gpu::kernels::kv_padded(config.head_size, format);
  need.kv_per_token = std::uint64_t{config.layers} * config.kv_heads * 2 *
                      gpu::kernels::kv_position_bytes(config.head_size, format);

  const std::uint64_t columns = widest_step(engine, false) + 16;
  const std::uint64_t outputs = engine.max_batch + 16;
  const auto block = [](std::uint64_t n) { return (n + 1023) / 1024 * 1024; };
  const std::uint64_t q_width = std::uint64_t{config.heads} * config.head_size;
  const std::uint64_t per_column = block(config.embedding) * 2 + q_width + 2 * config.kv_width() +
                                   config.heads * head + block(q_width) +
                                   block(config.feed_forward) * 3;
  // Attention's partial results on a GPU: of up to 64 columns, a split of 64 positions or more each.
  const std::uint64_t splits = std::min<std::uint64_t>((config.context + 63) / 64, 64);
  const std::uint64_t partials =
      std::min<std::uint64_t>(columns, 64) * config.heads * splits * (head + 8);
  need.transient = 4 * (columns * per_column + partials +
                        outputs * (std::uint64_t{config.vocabulary} * 2 + block(config.embedding)));
  return need;
}

}  // namespace bulkhead::forward

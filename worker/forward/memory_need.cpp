#include "worker/forward/memory_need.hpp"

#include <algorithm>

#include "gpu/kernels/weight_layout.hpp"

namespace bulkhead::forward {

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

  const std::uint64_t head = (config.head_size + 7) / 8 * 8;
  const std::uint64_t entry = engine.kv_type == config::KvType::kF32 ? 4 : 2;
  need.kv_per_token = std::uint64_t{config.layers} * config.kv_heads * head * entry * 2;

  const std::uint64_t columns = engine.prefill_chunk + engine.max_batch + 16;
  const std::uint64_t outputs = engine.max_batch + 16;
  const auto block = [](std::uint64_t n) { return (n + 1023) / 1024 * 1024; };
  const std::uint64_t q_width = std::uint64_t{config.heads} * config.head_size;
  const std::uint64_t per_column = block(config.embedding) * 2 + q_width + 2 * config.kv_width() +
                                   config.heads * head + block(q_width) +
                                   block(config.feed_forward) * 3;
  const std::uint64_t partials =
      std::min<std::uint64_t>(columns, 16) * config.heads * 16 * (head + 8);
  need.transient = 4 * (columns * per_column + partials +
                        outputs * (std::uint64_t{config.vocabulary} * 2 + block(config.embedding)));
  return need;
}

}  // namespace bulkhead::forward

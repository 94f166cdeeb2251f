// What a step's buffers (step_buffers.cpp) and its dispatches (step_program.cpp) must agree on: for
// these two alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/forward/step_program.hpp"

namespace bulkhead::forward {

inline std::uint32_t up_to(std::uint32_t value, std::uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

inline std::uint32_t qkv_width(const model::ModelGraph& config) {
  return (config.heads + 2 * config.kv_heads) * config.head_size;
}

inline bool any_separate_gate(const ModelWeights& weights) {
  return std::any_of(weights.layers.begin(), weights.layers.end(),
                     [](const LayerWeights& layer) { return !layer.gate_up_joined; });
}

inline std::uint32_t greedy_chunks(const model::ModelGraph& config) {
  return (config.vocabulary + gpu::kernels::kGreedyChunk - 1) / gpu::kernels::kGreedyChunk;
}

// The residual stream's rows are read by fours.
inline std::uint32_t stream_stride(const StepContext& context) {
  return context.mapping.rows ? context.config.embedding : up_to(context.config.embedding, 4);
}

// A layer's FusedOperands.
enum Fused : std::uint32_t { kQkvSegments = 0, kOutput = 3, kGateUp = 4, kDown = 5, kFusedOfLayer };

inline float q_scale(const model::ModelGraph& config) {
  // Scores come in powers of two: exp2 is what devices have.
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(config.head_size)));
}

inline std::uint64_t parameters_of(const StepContext& context, std::uint32_t slot) {
  return context.parameters.address() + slot * context.parameter_layout.stride;
}

}  // namespace bulkhead::forward

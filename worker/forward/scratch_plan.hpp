// The memory that steps work in, as a list of pieces with their sizes. The same list serves allocation
// before a step and the count of memory before a model is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/kernels/kernels.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/forward/step_shapes.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

// Pieces behind those of the plan's activations, in this order.
enum class Scratch : std::uint32_t {
  kRotatedQ,        // [column][head][padded]
  kPartials,        // attention's partial results
  kScales,          // [column]: the factor that a norm comes to; GPUs
  kOutputNormed,    // [output][input_stride(embedding)]; build_hidden(): [output][embedding]
  kLogits,          // [slot][output][vocabulary]
  kGreedyPartials,  // [output][chunk]
  kLogprobSums,     // [output][chunk]
  kCount,
};

struct ScratchPiece {
  std::string name;
  std::uint64_t bytes = 0;  // 0: not needed
};

struct ScratchPlan {
  std::vector<ScratchPiece> pieces;  // the plan's activations, then each Scratch
  std::uint32_t logits_rows = 0;     // of a slot
  std::uint64_t operand_bytes = 0;   // what products need besides, of all slots; kept between steps
  std::uint64_t attention_count_bytes = 0;  // counts of workgroups that share a column; kept, too

  std::uint64_t bytes() const;  // all pieces, as a pool lays them
  // All that one step at a time takes on the device.
  std::uint64_t device_bytes() const { return bytes() + operand_bytes + attention_count_bytes; }
};

// The number of rows of logits in one block of the host's memory.
constexpr std::uint32_t kHostLogitsRows = 16;
// The blocks that so many rows take.
constexpr std::uint64_t host_logits_blocks(std::uint64_t rows) {
  return (rows + kHostLogitsRows - 1) / kHostLogitsRows;
}

struct ScratchOptions {
  std::uint32_t context = 0;  // positions that a column may see
  std::uint32_t slots = 1;    // steps in flight
  bool kept = true;           // false: made for a step and given back after it, as small as can be
};

// The memory for one step at a time, of any of these shapes. The layout does not depend on the shape,
// so the widest shape's memory serves all.
ScratchPlan plan_scratch(const model::ModelGraph& graph, const ModelPlan& plan,
                         const gpu::kernels::Mapping& mapping, std::span<const StepShape> shapes,
                         const ScratchOptions& options);

// Floats of a column of an activation.
std::uint64_t activation_stride(const gpu::kernels::Mapping& mapping,
                                const model::Activation& activation);

inline std::uint32_t greedy_chunks(const model::ModelGraph& graph) {
  return (graph.vocabulary + gpu::kernels::kGreedyChunk - 1) / gpu::kernels::kGreedyChunk;
}

}  // namespace bulkhead::forward

// The working memory of steps, as a list of pieces with their sizes. The same list serves to allocate memory before a
// step and to count memory before a model is loaded.
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

// Pieces that follow those of the plan's activations, in this order.
enum class Scratch : std::uint32_t {
  kRotatedQ,        // [column][head][padded]
  kPartials,        // attention's partial results
  kScales,          // [column]: a norm's factor; GPUs
  kOutputNormed,    // [output][input_stride(embedding)]
  kLogits,          // [slot][output][vocabulary]
  kHidden,          // [slot][output][embedding]: hidden states
  kGreedyPartials,  // [output][chunk]
  kLogprobSums,     // [output][chunk]
  kSampleCuts,      // [output]: where top-p ends (sample.comp)
  kCount,
};

struct ScratchPiece {
  std::string name;
  std::uint64_t bytes = 0;  // 0: not needed
};

struct ScratchPlan {
  std::vector<ScratchPiece> pieces;  // the plan's activations, then each Scratch
  std::uint32_t logits_rows = 0;     // per slot
  std::uint64_t operand_bytes = 0;   // other data for products, of all slots; kept between steps
  std::uint64_t attention_count_bytes = 0;  // counts of workgroups that share a column; also kept between steps

  std::uint64_t bytes() const;  // all pieces, with a pool's alignment
  // Returns all the device memory that one step at a time takes.
  std::uint64_t device_bytes() const { return bytes() + operand_bytes + attention_count_bytes; }
};

// The number of rows of logits in one block of the host's memory.
constexpr std::uint32_t kHostLogitsRows = 16;
// Returns the number of blocks for this many rows.
constexpr std::uint64_t host_logits_blocks(std::uint64_t rows) {
  return (rows + kHostLogitsRows - 1) / kHostLogitsRows;
}

// Returns the words of a mask that has a bit for each token.
constexpr std::uint32_t mask_words(std::uint32_t vocabulary) {
  return (vocabulary + 31) / 32;
}
// Returns the bytes of the list of a slot's adjusted outputs.
constexpr std::uint64_t adjusted_row_bytes(std::uint64_t outputs) {
  return gpu::kernels::kAdjustedRowsOffset + outputs * gpu::kernels::kAdjustedRowBytes;
}
// Returns the bytes of that list and of the masks after it.
constexpr std::uint64_t adjustment_bytes(std::uint32_t vocabulary, std::uint64_t outputs) {
  return adjusted_row_bytes(outputs) + outputs * 4 * std::uint64_t{mask_words(vocabulary)};
}

struct ScratchOptions {
  std::uint32_t context = 0;  // positions that a column may see
  std::uint32_t slots = 1;    // steps in flight
  bool kept = true;           // false: allocated for one step and freed after it, as small as possible
};

// Returns the memory for one step at a time, of any of these shapes. The layout does not depend on the shape, so the
// memory of the widest shape serves all.
ScratchPlan plan_scratch(const model::ModelGraph& graph, const ModelPlan& plan,
                         const gpu::kernels::Mapping& mapping, std::span<const StepShape> shapes,
                         const ScratchOptions& options);

// Returns the floats of a column of an activation.
std::uint64_t activation_stride(const gpu::kernels::Mapping& mapping,
                                const model::Activation& activation);

inline std::uint32_t greedy_chunks(const model::ModelGraph& graph) {
  return (graph.vocabulary + gpu::kernels::kGreedyChunk - 1) / gpu::kernels::kGreedyChunk;
}

}  // namespace bulkhead::forward

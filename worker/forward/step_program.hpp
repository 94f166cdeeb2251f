// The forward pass as a list of dispatches. Read add_layer() in the .cpp from top to bottom: that
// is the transformer.
//
// A program serves every step of its shape: what differs from step to step (tokens, positions, page
// tables, how many columns there really are) lies in the step's parameters, which kernels read.
//
// Steps in flight at the same time use different slots, in turn: parameters, logits and results of
// their own. Activations are shared, since steps are computed one after another. A program is made
// for a slot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"
#include "gpu/memory_pool.hpp"
#include "worker/forward/tuning.hpp"
#include "worker/forward/weights.hpp"
#include "worker/model/model_config.hpp"

namespace bulkhead::forward {

// Upper bounds on a step's columns and outputs.
struct StepShape {
  std::uint32_t columns = 1;
  std::uint32_t outputs = 0;
  auto operator<=>(const StepShape&) const = default;
};
// Every shape that steps are made for, rising: few enough that all of their recordings are kept
// from the warm-up on, whatever mixture of prompts and decoding comes: where more than `most`, the
// ring's size, would be made, wide ones are left out (narrow ones never). The last one takes any step.
// A shape has as many outputs as its columns may ask for; workgroups past the real counts end at
// once. `mixed` columns, fewer than max_columns, get a shape of their own: those of a chunk of
// prompts beside sequences that generate, where a step of prompts alone has more.
std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most);
// The narrowest that serves so many columns and outputs.
StepShape shape_for(std::span<const StepShape> shapes, std::uint32_t columns,
                    std::uint32_t outputs);

// Where the parts of the step's parameters lie.
struct ParameterLayout {
  std::uint64_t outputs = 0;  // [output]: which column
  std::uint64_t choices = 0;  // [output]: SampleChoice
  std::uint64_t pages = 0;    // page tables, one after another
  std::uint64_t bytes = 0;
  std::uint64_t stride = 0;  // between slots
};

// Narrow steps without barriers between their kernels (gpu/kernels/chain.glsl), where the device
// allows it.
struct ChainedSteps {
  std::uint32_t columns = 0;      // of the widest step; 0: none
  std::uint32_t broken_link = 0;  // for tests: this one waits in vain; 0: none
  gpu::Buffer counts;
};
// Of a step of so many layers, at most.
constexpr std::uint32_t chain_links(std::uint32_t layers) {
  return layers * 10 + 8;
}
// Counts of a chain: of its links, then of attention's workgroups (AttentionPush::counts).
inline std::uint32_t chain_counts(const model::ModelConfig& config, std::uint32_t columns) {
  static_assert(gpu::kernels::kAttentionCountBytes == gpu::kernels::kChainCountBytes);
  return chain_links(config.layers) + columns * config.heads;
}
// What programs of all shapes share.
struct StepContext {
  gpu::Device* device = nullptr;
  gpu::kernels::Mapping mapping;
  model::ModelConfig config;
  gpu::kernels::AttentionShape attention;
  std::uint32_t context = 0;
  ModelWeights weights;
  std::vector<gpu::Buffer> kv_blocks;
  std::vector<std::uint64_t> kv;  // of each layer: keys, then values
  std::uint64_t kv_half = 0;      // bytes of a layer's keys
  std::uint32_t slots = 1;        // steps in flight
  gpu::Buffer parameters;         // [slot]
  ParameterLayout parameter_layout;
  ChainedSteps chain;
  // [slot][output]{token, log-probability}; a slot's last row says in its first word whether its
  // step has failed.
  gpu::Buffer results;
  std::uint32_t result_rows = 0;  // of a slot
  gpu::Buffer logprobs;           // [slot][output] of LogprobRow
  Tuning* tuning = nullptr;       // which variant of a product's kernel; none: the default
  // While loading: called before each kernel is made and each operation recorded, which may take a
  // driver seconds.
  std::function<void()> alive;
  // While loading: kernels are listed there instead of made, and no address is needed yet.
  std::vector<gpu::KernelSpec>* wanted = nullptr;
};

// The buffers that a step works in. Their layout does not depend on the step's shape, so those of
// the widest serve all.
struct Activations {
  gpu::MemoryPool::Lease stream;            // [column][embedding]: the residual stream
  gpu::MemoryPool::Lease normed;            // [column][input_stride(embedding)]
  gpu::MemoryPool::Lease qkv;               // [column][q, k, v]
  gpu::MemoryPool::Lease q;                 // [column][head][padded]
  gpu::MemoryPool::Lease partials;          // attention's
  gpu::MemoryPool::Lease attention_counts;  // GPUs: [column][head], zeros at first
  gpu::MemoryPool::Lease attended;          // [column][input_stride(heads * head)]
  gpu::MemoryPool::Lease gate, up;          // only where they differ in type
  gpu::MemoryPool::Lease hidden;            // [column][input_stride(feed_forward)]
  gpu::MemoryPool::Lease output_normed;
  gpu::MemoryPool::Lease logits;  // [slot][logits_rows][vocabulary]
  std::uint32_t logits_rows = 0;
  gpu::MemoryPool::Lease greedy_partials;
  gpu::MemoryPool::Lease logprob_sums;
  // GPUs: what the layers' products need besides matrix and columns, the same for every shape.
  gpu::MemoryPool::Lease scales;  // [column]
  gpu::MemoryPool::Lease fused;
  std::vector<gpu::kernels::FusedOperands> fused_operands;  // upload_operands() puts it there
  // With the pool off: the one allocation that the step's parts are of, while the step lasts; its
  // size, and where it lay last.
  gpu::MemoryPool::Lease block;
  std::uint64_t block_bytes = 0, block_address = 0;
};
// Room for a step of any of these shapes, one at a time. With the pool off it is one allocation, as a
// program makes that has a scratch buffer for each step.
Result<Activations> acquire_activations(const StepContext& context, gpu::MemoryPool& pool,
                                        std::span<const StepShape> shapes);
// With the pool off: allocates the block anew, for another step in the same parts. False: it lies
// elsewhere than before, so programs must be built, and operands uploaded, anew. (Most drivers hand
// out again what was freed last.)
Result<bool> acquire_block(const StepContext& context, gpu::MemoryPool& pool,
                           Activations& activations);
// Before the first step in these buffers.
Status upload_operands(const Activations& activations, gpu::BlitQueue& blit);

struct StepOp {
  gpu::Kernel kernel;  // no pipeline: a barrier
  std::array<std::byte, 128> push{};
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t bytes_moved = 0;
};
using StepProgram = std::vector<StepOp>;
Result<StepProgram> build_step(const StepContext& context, const Activations& activations,
                               StepShape shape, std::uint32_t slot = 0);
// What comes behind a step of any shape where an output asks for a draw.
Result<StepProgram> build_sampling(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
// And behind that where an output asks for log-probabilities.
Result<StepProgram> build_logprobs(const StepContext& context, const Activations& activations,
                                   std::uint32_t slot = 0);
// The kernels that `build`, a call of one of the above, would make: behind those that are in `specs`.
template <typename Build>
Status list_kernels(StepContext& context, std::vector<gpu::KernelSpec>& specs, Build build) {
  context.wanted = &specs;
  const Result<StepProgram> listed = build();
  context.wanted = nullptr;
  return listed.ok() ? Status() : Status(listed.error());
}
void record_step(const StepContext& context, const StepProgram& program, gpu::Recorder& recorder);

}  // namespace bulkhead::forward

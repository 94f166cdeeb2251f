// The buffers in which a step works, and the operands in them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/memory_pool.hpp"
#include "worker/forward/scratch_plan.hpp"
#include "worker/forward/step_context.hpp"

namespace bulkhead::forward {

// The layout does not depend on the step's shape, so the buffers of the widest shape serve all.
struct Activations {
  std::vector<gpu::MemoryPool::Lease> pieces;  // as in ScratchPlan; unneeded ones are empty
  std::uint32_t logits_rows = 0;
  gpu::Buffer logits;  // empty if the logits are a lease like the other pieces
  // On GPUs: what the layers' products need besides matrix and columns. The same for every shape.
  gpu::MemoryPool::Lease operands;                          // [slot][OperandsIndex]
  std::vector<gpu::kernels::FusedOperands> operand_values;  // upload_operands() copies it there
  gpu::MemoryPool::Lease attention_counts;                  // GPUs: [column][head], zeros at first
  // With the pool off: the one allocation that contains the pieces, for the duration of the step; its size, and its
  // last address.
  gpu::MemoryPool::Lease block;
  std::uint64_t block_bytes = 0, block_address = 0;

  // Return device addresses; 0: not needed, or kernels are only listed.
  std::uint64_t at(model::ActivationIndex activation) const { return slice_of(activation).address; }
  std::uint64_t at(const ModelPlan& plan, Scratch scratch) const {
    return slice(plan, scratch).address;
  }
  gpu::BufferSlice slice(model::ActivationIndex activation) const { return slice_of(activation); }
  gpu::BufferSlice slice(const ModelPlan& plan, Scratch scratch) const {
    return slice_of(plan.activations.size() + static_cast<std::size_t>(scratch));
  }

 private:
  gpu::BufferSlice slice_of(std::size_t piece) const {
    return piece < pieces.size() ? pieces[piece].slice() : gpu::BufferSlice{};
  }
};

// Allocates room for one step at a time, of any of these shapes. With the pool off it is a single allocation, as a
// plain program would make for each step.
Result<Activations> acquire_activations(const StepContext& context, gpu::MemoryPool& pool,
                                        std::span<const StepShape> shapes);
// With the pool off: allocates the block again for another step. Returns false if the block has another address than
// before, so that programs must be built and operands uploaded again. (Most drivers return what was freed last.)
Result<bool> acquire_block(const StepContext& context, gpu::MemoryPool& pool,
                           Activations& activations);
// Call it before the first step in these buffers.
Status upload_operands(const Activations& activations, gpu::BlitQueue& blit);

// Returns the number of entries between two columns of an activation, as kernels get it.
std::uint32_t stride_of(const StepContext& context, model::ActivationIndex activation);

// Returns the factor of q. It makes scores exponents of two, because devices have exp2. `scale` is the graph's factor
// of the scores; 0: 1 / sqrt(entries of a head).
float q_scale(double scale, const model::HeadShape& heads);

}  // namespace bulkhead::forward

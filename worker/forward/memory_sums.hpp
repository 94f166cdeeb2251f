// Computes checksums of KV pages, saved states and weights while the device computes, so that changed memory is
// noticed. Only pieces_of() decides which memory belongs to a page or a slot of states.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/blit_queue.hpp"
#include "gpu/kernels/checksum.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_context.hpp"

namespace bulkhead::forward {

class MemorySums {
 public:
  // `context` must have its pages and weights, and must not move. `weights` has the checksums of the weights' blocks
  // as they were loaded; if it is empty, weights are not compared.
  static Result<std::unique_ptr<MemorySums>> create(const StepContext& context,
                                                    std::vector<gpu::kernels::Checksum> weights,
                                                    std::uint32_t timeout_ms);

  // Returns the most pages of one call to start(); 0: a page has more pieces than a lot allows.
  std::uint32_t most_pages() const { return most_pages_; }
  // See Executor::start_sums and finish_sums.
  Status start(std::span<const engine::PageIndex> pages, std::uint64_t weight_bytes);
  Result<std::span<const engine::PageSum>> finish();
  // See Executor::change_bit. kUnsupported in builds without fault injection.
  Status change_bit(engine::PageIndex page, gpu::BlitQueue& queue);
  std::uint32_t in_flight() const { return lots_->in_flight(); }
  // Returns how often all weights have been compared.
  std::uint64_t passes() const { return passes_; }

 private:
  explicit MemorySums(const StepContext& context) : context_(context) {}
  // Lists the pieces of memory of a page or a slot of states; `number` is as in
  // ExecutorLimits::first_state().
  void pieces_of(engine::PageIndex number, std::uint32_t sum);
  std::uint32_t pieces_of_weights(std::uint64_t bytes, std::uint32_t sum);
  Status add_weights(std::size_t block, const gpu::kernels::Checksum& sum, bool ends);

  // The part of the weights that a lot compares: neighbouring blocks, the first and last of which may be there in
  // part. The sums of a block's parts are added up over lots.
  struct WeightPart {
    std::size_t first = 0;
    std::uint32_t blocks = 0;
    bool ends = false;  // it ends with the last block
  };

  const StepContext& context_;
  std::vector<gpu::kernels::Checksum> weights_;
  std::unique_ptr<gpu::kernels::ChecksumLots> lots_;
  std::uint32_t most_pages_ = 0;
  std::vector<gpu::kernels::ChecksumPiece> pieces_;  // of the lot that is being started
  WeightPart parts_[gpu::kernels::ChecksumLots::kInFlight];
  std::uint32_t started_ = 0, finished_ = 0;
  std::size_t block_ = 0;  // the block with which the next lot continues, and how far it has come
  std::uint64_t quads_ = 0;
  gpu::kernels::Checksum so_far_{};
  std::uint64_t passes_ = 0;
};

}  // namespace bulkhead::forward

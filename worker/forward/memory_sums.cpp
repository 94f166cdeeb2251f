#include "worker/forward/memory_sums.hpp"

#include <algorithm>
#include <utility>

#include "config/base/fault_points.hpp"
#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

constexpr std::uint32_t kLotPieces = 16384;
constexpr std::uint32_t kMostPages = 1024;
constexpr std::uint32_t kBlocksOfLot = 8;
constexpr std::uint64_t kQuadBytes = 16;
// A workgroup sums a piece of at most this many quads, so that a lot has enough workgroups to keep a GPU busy.
constexpr std::uint64_t kPieceQuads = 16384;

// Returns the number of parts: keys, and values if they have their own places.
std::uint64_t parts_of(const model::KvStore& store) {
  return store.value_entries == 0 ? 2 : 1;
}

}  // namespace

Result<std::unique_ptr<MemorySums>> MemorySums::create(const StepContext& context,
                                                       std::vector<k::Checksum> weights,
                                                       std::uint32_t timeout_ms) {
  std::unique_ptr<MemorySums> self(new MemorySums(context));
  self->weights_ = std::move(weights);
  std::uint64_t of_full_page = 0, of_window_page = 0;
  for (std::size_t i = 0; i < context.graph.kv.size(); ++i) {
    const model::KvStore& store = context.graph.kv[i];
    const std::uint64_t quads = context.kv_shape(store).page_bytes() / kQuadBytes;
    (context.windows.slides[i] ? of_window_page : of_full_page) +=
        parts_of(store) * ((quads + kPieceQuads - 1) / kPieceQuads);
  }
  std::uint64_t of_states = 0;
  for (const model::StateStore& store : context.graph.states)
    of_states += (state_bytes(store) / kQuadBytes + kPieceQuads - 1) / kPieceQuads;
  const std::uint64_t of_page = std::max({of_full_page, of_window_page, of_states});
  // Pages take half a lot at most, so that each lot has room for weights.
  const std::uint64_t pages = of_page == 0 ? 0 : kLotPieces / 2 / of_page;
  self->most_pages_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, kMostPages));
  BULKHEAD_TRY(self->lots_,
               k::ChecksumLots::create(*context.device,
                                       {kLotPieces, self->most_pages_ + kBlocksOfLot}, timeout_ms));
  self->pieces_.reserve(kLotPieces);
  return self;
}

void MemorySums::pieces_of(engine::PageIndex number, std::uint32_t sum) {
  std::uint64_t place = 0;
  const auto add = [&](std::uint64_t address, std::uint64_t bytes) {
    for (std::uint64_t quads = bytes / kQuadBytes; quads > 0;) {
      const std::uint64_t piece = std::min(quads, kPieceQuads);
      pieces_.push_back({address, place, static_cast<std::uint32_t>(piece), sum});
      address += piece * kQuadBytes;
      place += piece;
      quads -= piece;
    }
  };
  const bool is_behind = number >= context_.full_pages;
  const engine::PageIndex page = is_behind ? number - context_.full_pages : number;
  // A model with states has no window pages.
  if (is_behind && !context_.states.empty()) {
    for (std::size_t i = 0; i < context_.states.size(); ++i) {
      const std::uint64_t bytes = state_bytes(context_.graph.states[i]);
      add(context_.states[i] + std::uint64_t{page} * bytes, bytes);
    }
    return;
  }
  for (std::size_t i = 0; i < context_.kv.size(); ++i) {
    if (context_.windows.slides[i] != is_behind) continue;
    const model::KvStore& store = context_.graph.kv[i];
    const std::uint64_t bytes = context_.kv_shape(store).page_bytes();
    const std::uint32_t counts = context_.page_stride(static_cast<model::KvIndex>(i));
    const std::uint64_t stride = counts == 0 ? bytes : counts;
    const std::uint64_t at =
        stride * (is_behind ? context_.number_of_window(page) : context_.number_of_page(page));
    add(context_.kv[i].keys + at, bytes);
    if (parts_of(store) > 1) add(context_.kv[i].values + at, bytes);
  }
}

// Lists the pieces of the next `bytes` of weights. Returns how many sums they go into, from number `sum` on: one for
// each block.
std::uint32_t MemorySums::pieces_of_weights(std::uint64_t bytes, std::uint32_t sum) {
  WeightPart& part = parts_[started_ % std::size(parts_)];
  part = {block_, 0, false};
  if (weights_.empty()) return 0;
  for (std::uint64_t left = bytes / kQuadBytes; left > 0 && pieces_.size() < kLotPieces;) {
    if (quads_ == 0 || part.blocks == 0) {
      if (part.blocks == kBlocksOfLot) break;
      ++part.blocks;
      part.ends = false;
    }
    const gpu::Buffer& block = context_.weights.blocks[block_];
    const std::uint64_t all = block.bytes() / kQuadBytes;
    const std::uint64_t piece = std::min({all - quads_, left, kPieceQuads});
    pieces_.push_back({block.address() + quads_ * kQuadBytes, quads_,
                       static_cast<std::uint32_t>(piece), sum + part.blocks - 1});
    quads_ += piece;
    left -= piece;
    if (quads_ < all) continue;
    part.ends = true;
    quads_ = 0;
    block_ = (block_ + 1) % weights_.size();
  }
  return part.blocks;
}

Status MemorySums::start(std::span<const engine::PageIndex> pages, std::uint64_t weight_bytes) {
  if (pages.size() > most_pages_)
    return Error(ErrorCode::kInternal, "more pages to sum than a lot takes");
  pieces_.clear();
  std::uint32_t sum = 0;
  for (const engine::PageIndex page : pages)
    pieces_of(page, sum++);
  sum += pieces_of_weights(weight_bytes, sum);
  BULKHEAD_RETURN_IF_ERROR(lots_->start(pieces_, sum));
  ++started_;
  return {};
}

Status MemorySums::change_bit(engine::PageIndex page, gpu::BlitQueue& queue) {
  if constexpr (fault::kCompiledIn) {
    pieces_.clear();
    pieces_of(page, 0);
    for (std::size_t i = 0; i < context_.kv_blocks.size() + context_.kv_slabs.size(); ++i) {
      if (pieces_.empty()) break;
      const std::size_t blocks = context_.kv_blocks.size();
      const gpu::Buffer& block = i < blocks ? context_.kv_blocks[i] : context_.kv_slabs[i - blocks];
      // The first key of the page's first layer.
      const std::uint64_t first = pieces_.front().source;
      if (first < block.address() || first >= block.address() + block.bytes()) continue;
      const gpu::BufferSlice place = gpu::slice(block, first - block.address(), kQuadBytes);
      BULKHEAD_TRY(const gpu::BlitQueue::Ticket ticket, queue.download(place, {}));
      BULKHEAD_TRY(const std::span<const std::byte> bytes, queue.finish_download(ticket));
      std::vector<std::byte> changed(bytes.begin(), bytes.end());
      changed[0] ^= std::byte{1};
      BULKHEAD_RETURN_IF_ERROR(queue.upload(changed, place));
      return queue.finish_uploads();
    }
  }
  return Error(ErrorCode::kUnsupported, "this build damages no memory, or not this page's");
}

Result<std::span<const engine::PageSum>> MemorySums::finish() {
  BULKHEAD_TRY(const std::span<const k::Checksum> sums, lots_->finish());
  const WeightPart part = parts_[finished_++ % std::size(parts_)];
  const std::size_t pages = sums.size() - part.blocks;
  for (std::uint32_t i = 0; i < part.blocks; ++i) {
    BULKHEAD_RETURN_IF_ERROR(add_weights((part.first + i) % weights_.size(), sums[pages + i],
                                         i + 1 < part.blocks || part.ends));
  }
  return sums.first(pages);
}

Status MemorySums::add_weights(std::size_t block, const k::Checksum& sum, bool ends) {
  for (std::size_t i = 0; i < so_far_.size(); ++i)
    so_far_[i] += sum[i];
  if (!ends) return {};
  if (std::exchange(so_far_, {}) != weights_[block])
    return Error(ErrorCode::kDeviceLost,
                 "the weights in device memory are no longer what was loaded");
  if (block + 1 == weights_.size()) ++passes_;
  return {};
}

}  // namespace bulkhead::forward

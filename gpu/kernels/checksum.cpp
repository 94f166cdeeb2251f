#include "gpu/kernels/checksum.hpp"

#include <algorithm>
#include <cstring>

#include "gpu/command_ring.hpp"
#include "gpu/kernels/memory_checksum.hpp"
#include "gpu/kernels/piece_checksum.hpp"
#include "gpu/kernels/push_constants.hpp"

namespace bulkhead::gpu::kernels {
namespace {

static_assert(sizeof(MemoryChecksumPush) == 24);

static_assert(sizeof(PieceChecksumPush) == 16);
constexpr std::uint64_t kCountsBytes = 64;  // of which the first 12 are read

constexpr std::uint64_t kQuadsOfGroup = 256 * 16;
constexpr std::uint64_t kMostGroups = 4096;

}  // namespace

KernelSpec checksum_kernel() {
  return {"checksum", spirv::memory_checksum, sizeof(MemoryChecksumPush), {}, 0};
}

KernelSpec piece_checksum_kernel() {
  return {"piece checksum", spirv::piece_checksum, sizeof(PieceChecksumPush), {}, 0};
}

Result<std::unique_ptr<Checksums>> Checksums::create(Device& device,
                                                     std::span<const BufferSlice> slices,
                                                     std::uint32_t timeout_ms) {
  for (const BufferSlice& slice : slices) {
    if (slice.address % 16 != 0 || slice.bytes % 16 != 0)
      return Error(ErrorCode::kInvalidArgument, "checksums: not of whole lots of 16 bytes");
  }
  std::unique_ptr<Checksums> self(new Checksums);
  self->count_ = slices.size();
  if (slices.empty()) return self;
  BULKHEAD_TRY(self->out_,
               device.allocate(slices.size() * sizeof(Checksum), Memory::kReadback, "checksums"));
  BULKHEAD_TRY(const Kernel kernel, device.make_kernel(checksum_kernel()));
  BULKHEAD_TRY(self->ring_, CommandRing::create(device, {}, true, timeout_ms));
  BULKHEAD_TRY(self->recording_, self->ring_->record([&](Recorder& recorder) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const MemoryChecksumPush push{slices[i].address, self->out_.address() + i * sizeof(Checksum),
                                    slices[i].bytes / 16};
      const std::uint64_t groups = (push.quads + kQuadsOfGroup - 1) / kQuadsOfGroup;
      recorder.dispatch(
          kernel, push_bytes(push),
          static_cast<std::uint32_t>(std::clamp(groups, std::uint64_t{1}, kMostGroups)), 1, 1,
          slices[i].bytes);
    }
  }));
  return self;
}

Result<std::vector<Checksum>> Checksums::run() {
  std::vector<Checksum> sums(count_);
  if (sums.empty()) return sums;
  std::memset(out_.mapped().data(), 0, sums.size() * sizeof(Checksum));
  BULKHEAD_TRY(const auto ticket, ring_->submit(recording_));
  BULKHEAD_RETURN_IF_ERROR(ring_->wait(ticket));
  std::memcpy(sums.data(), out_.mapped().data(), sums.size() * sizeof(Checksum));
  return sums;
}

Result<std::unique_ptr<ChecksumLots>> ChecksumLots::create(Device& device, Limits limits,
                                                           std::uint32_t timeout_ms) {
  if (limits.pieces == 0 || limits.pieces > kMostPieces || limits.sums == 0)
    return Error(ErrorCode::kInvalidArgument, "checksums: lots of an impossible size");
  std::unique_ptr<ChecksumLots> self(new ChecksumLots);
  self->limits_ = limits;
  self->in_stride_ = kCountsBytes + std::uint64_t{limits.pieces} * sizeof(ChecksumPiece);
  self->out_stride_ = std::uint64_t{limits.sums} * sizeof(Checksum);
  BULKHEAD_TRY(self->in_,
               device.allocate(self->in_stride_ * kInFlight, Memory::kUpload, "pieces to sum"));
  BULKHEAD_TRY(self->out_,
               device.allocate(self->out_stride_ * kInFlight, Memory::kReadback, "their sums"));
  BULKHEAD_TRY(const Kernel kernel, device.make_kernel(piece_checksum_kernel()));
  BULKHEAD_TRY(self->ring_, CommandRing::create(device, {}, true, timeout_ms));
  std::vector<CommandRing::Build> variants;
  for (std::uint32_t lot = 0; lot < kInFlight; ++lot) {
    const BufferSlice counts = slice(self->in_, lot * self->in_stride_, kCountsBytes);
    const PieceChecksumPush push{counts.address + kCountsBytes,
                                 self->out_.address() + lot * self->out_stride_};
    variants.emplace_back([kernel, push, counts](Recorder& recorder) {
      recorder.barrier();
      recorder.dispatch_indirect(kernel, push_bytes(push), counts);
      recorder.barrier();
    });
  }
  BULKHEAD_TRY(self->recording_, self->ring_->record_variants(std::move(variants)));
  self->results_.resize(limits.sums);
  return self;
}

Status ChecksumLots::start(std::span<const ChecksumPiece> pieces, std::uint32_t sums) {
  if (in_flight_ == kInFlight || pieces.size() > limits_.pieces || sums > limits_.sums)
    return Error(ErrorCode::kInternal, "checksums: a lot that there is no room for");
  std::byte* const in = input(next_);
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(pieces.size()), 1, 1};
  std::memcpy(in, counts, sizeof counts);
  if (!pieces.empty()) std::memcpy(in + kCountsBytes, pieces.data(), pieces.size_bytes());
  std::memset(out_.mapped().data() + next_ * out_stride_, 0, sums * sizeof(Checksum));
  lots_[next_].sums = sums;
  BULKHEAD_TRY(lots_[next_].ticket, ring_->submit(recording_, {}, next_));
  next_ = (next_ + 1) % kInFlight;
  ++in_flight_;
  return {};
}

Result<std::span<const Checksum>> ChecksumLots::finish() {
  if (in_flight_ == 0) return Error(ErrorCode::kInternal, "checksums: no lot is in flight");
  const std::uint32_t oldest = (next_ + kInFlight - in_flight_) % kInFlight;
  const Lot& lot = lots_[oldest];
  --in_flight_;
  BULKHEAD_RETURN_IF_ERROR(ring_->wait(lot.ticket));
  std::memcpy(results_.data(), out_.mapped().data() + oldest * out_stride_,
              lot.sums * sizeof(Checksum));
  return std::span<const Checksum>(results_).first(lot.sums);
}

Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms) {
  BULKHEAD_TRY(const auto made, Checksums::create(device, slices, timeout_ms));
  return made->run();
}

}  // namespace bulkhead::gpu::kernels

#include "gpu/kernels/checksum.hpp"

#include <algorithm>
#include <cstring>

#include "gpu/command_ring.hpp"
#include "gpu/kernels/memory_checksum.hpp"

namespace bulkhead::gpu::kernels {
namespace {

struct ChecksumPush {
  std::uint64_t source, sums, quads;
};

constexpr std::uint64_t kQuadsOfGroup = 256 * 16;
constexpr std::uint64_t kMostGroups = 4096;

}  // namespace

KernelSpec checksum_kernel() {
  return {"checksum", spirv::memory_checksum, sizeof(ChecksumPush), {}, 0};
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
      const ChecksumPush push{slices[i].address, self->out_.address() + i * sizeof(Checksum),
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

Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms) {
  BULKHEAD_TRY(const auto made, Checksums::create(device, slices, timeout_ms));
  return made->run();
}

}  // namespace bulkhead::gpu::kernels

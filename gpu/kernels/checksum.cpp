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

Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms) {
  std::vector<Checksum> sums(slices.size());
  if (slices.empty()) return sums;
  for (const BufferSlice& slice : slices) {
    if (slice.address % 16 != 0 || slice.bytes % 16 != 0)
      return Error(ErrorCode::kInvalidArgument, "checksums: not of whole lots of 16 bytes");
  }
  const std::uint64_t bytes = sums.size() * sizeof(Checksum);
  BULKHEAD_TRY(const Buffer out, device.allocate(bytes, Memory::kReadback, "checksums"));
  std::memset(out.mapped().data(), 0, bytes);
  BULKHEAD_TRY(const Kernel kernel, device.make_kernel(checksum_kernel()));
  BULKHEAD_TRY(const auto ring, CommandRing::create(device, {}, true, timeout_ms));
  BULKHEAD_TRY(const auto id, ring->record([&](Recorder& recorder) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const ChecksumPush push{slices[i].address, out.address() + i * sizeof(Checksum),
                              slices[i].bytes / 16};
      const std::uint64_t groups = (push.quads + kQuadsOfGroup - 1) / kQuadsOfGroup;
      recorder.dispatch(
          kernel, push_bytes(push),
          static_cast<std::uint32_t>(std::clamp(groups, std::uint64_t{1}, kMostGroups)), 1, 1,
          slices[i].bytes);
    }
  }));
  BULKHEAD_TRY(const auto ticket, ring->submit(id));
  BULKHEAD_RETURN_IF_ERROR(ring->wait(ticket));
  std::memcpy(sums.data(), out.mapped().data(), bytes);
  return sums;
}

}  // namespace bulkhead::gpu::kernels

// Whether memory on the device holds what it held: sums of it, computed there, at about the speed at
// which the device reads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

// Return the two kernels, for callers that compile kernels before they need them.
KernelSpec checksum_kernel();
KernelSpec piece_checksum_kernel();

using Checksum = std::array<std::uint32_t, 4>;

// One for each slice, whose offset and size are multiples of 16 bytes. They are the same on every
// device. No protection against somebody who wants two lots to have one sum.
class Checksums {
 public:
  // Everything that run() needs, so that it allocates nothing: a driver can be closed to who asks
  // it for memory, for as long as it takes another process's back. A run waits for `timeout_ms` at
  // most. Slices and device must outlive it.
  static Result<std::unique_ptr<Checksums>> create(Device& device,
                                                   std::span<const BufferSlice> slices,
                                                   std::uint32_t timeout_ms);
  Result<std::vector<Checksum>> run();

 private:
  Checksums() = default;

  std::size_t count_ = 0;
  Buffer out_;
  std::unique_ptr<CommandRing> ring_;
  CommandRing::RecordingId recording_ = 0;
};

// A piece of memory that goes into a sum: `quads` groups of 16 bytes from the device address `source` on,
// which is a multiple of 16. `place` is the first group's number within everything that the sum is over.
// The kernel reads this struct as it lies here.
struct ChecksumPiece {
  std::uint64_t source = 0;
  std::uint64_t place = 0;
  std::uint32_t quads = 0;
  std::uint32_t sum = 0;  // the number of the sum, within the lot
};
static_assert(sizeof(ChecksumPiece) == 24);

// Makes sums over pieces of memory while other work runs; each call may name other pieces. start() queues a
// lot of sums behind the work that was submitted before, and finish() takes the results later. Nothing is
// allocated after create(). One thread.
class ChecksumLots {
 public:
  static constexpr std::uint32_t kInFlight = 4;
  struct Limits {
    std::uint32_t pieces = 0, sums = 0;  // of a lot; at most kMostPieces pieces
  };
  static constexpr std::uint32_t kMostPieces =
      32768;  // half of the workgroups that any device takes

  static Result<std::unique_ptr<ChecksumLots>> create(Device& device, Limits limits,
                                                      std::uint32_t timeout_ms);
  std::uint32_t in_flight() const { return in_flight_; }
  // Queues a lot of `sums` sums. Fewer than kInFlight lots may be in flight, and the limits hold.
  Status start(std::span<const ChecksumPiece> pieces, std::uint32_t sums);
  // Waits for the oldest lot in flight and returns its sums, which are valid until the next start().
  Result<std::span<const Checksum>> finish();

 private:
  ChecksumLots() = default;

  struct Lot {
    std::uint32_t sums = 0;
    CommandRing::Ticket ticket = 0;
  };
  std::byte* input(std::uint32_t lot) const { return in_.mapped().data() + lot * in_stride_; }

  Limits limits_;
  Buffer in_, out_;  // [lot]: the counts of groups, then pieces; [lot][sum]
  std::uint64_t in_stride_ = 0, out_stride_ = 0;
  std::unique_ptr<CommandRing> ring_;
  CommandRing::RecordingId recording_ = 0;
  std::array<Lot, kInFlight> lots_;
  std::uint32_t next_ = 0, in_flight_ = 0;
  std::vector<Checksum> results_;
};

// Once.
Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu::kernels

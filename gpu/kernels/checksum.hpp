// Checks that device memory still holds the same content: computes checksums on the device, at about the device's
// read speed.
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

// These return the two kernels, for callers that compile kernels before they need them.
KernelSpec checksum_kernel();
KernelSpec piece_checksum_kernel();

using Checksum = std::array<std::uint32_t, 4>;

// Computes one checksum for each slice. A slice's offset and size are multiples of 16 bytes. Checksums are the same
// on every device. They do not protect against somebody who constructs two contents with the same checksum.
class Checksums {
 public:
  // Allocates everything that run() needs, so that run() allocates nothing: while a driver reclaims another process's
  // memory, an allocation can wait for the whole time. A run waits at most `timeout_ms`. The slices and the device
  // must outlive the object.
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

// A piece of memory that is part of a checksum: `quads` groups of 16 bytes, starting at the device address `source`,
// which is a multiple of 16. `place` is the number of its first group among all the groups of that checksum. The
// kernel reads this struct in this layout.
struct ChecksumPiece {
  std::uint64_t source = 0;
  std::uint64_t place = 0;
  std::uint32_t quads = 0;
  std::uint32_t sum = 0;  // the number of the checksum within the lot
};
static_assert(sizeof(ChecksumPiece) == 24);

// Computes checksums over pieces of memory while other work runs; each call may name other pieces. start() queues a
// lot of checksums after the work submitted so far, and finish() takes the results later. Nothing is allocated after
// create(). Use it from one thread.
class ChecksumLots {
 public:
  static constexpr std::uint32_t kInFlight = 4;
  struct Limits {
    std::uint32_t pieces = 0, sums = 0;  // in a lot; at most kMostPieces pieces
  };
  static constexpr std::uint32_t kMostPieces =
      32768;  // half of the workgroups that any device accepts

  static Result<std::unique_ptr<ChecksumLots>> create(Device& device, Limits limits,
                                                      std::uint32_t timeout_ms);
  std::uint32_t in_flight() const { return in_flight_; }
  // Queues a lot of `sums` checksums. At most kInFlight lots may be in flight, and the limits must hold.
  Status start(std::span<const ChecksumPiece> pieces, std::uint32_t sums);
  // Waits for the oldest lot in flight and returns its checksums, which stay valid until the next start().
  Result<std::span<const Checksum>> finish();

 private:
  ChecksumLots() = default;

  struct Lot {
    std::uint32_t sums = 0;
    CommandRing::Ticket ticket = 0;
  };
  std::byte* input(std::uint32_t lot) const { return in_.mapped().data() + lot * in_stride_; }

  Limits limits_;
  Buffer in_, out_;  // [lot]: the counts of groups, then the pieces; [lot][checksum]
  std::uint64_t in_stride_ = 0, out_stride_ = 0;
  std::unique_ptr<CommandRing> ring_;
  CommandRing::RecordingId recording_ = 0;
  std::array<Lot, kInFlight> lots_;
  std::uint32_t next_ = 0, in_flight_ = 0;
  std::vector<Checksum> results_;
};

// Creates a Checksums, runs it once and returns the results.
Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu::kernels

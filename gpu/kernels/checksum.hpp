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

// So that it can be compiled beside others, before it is needed.
KernelSpec checksum_kernel();

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

// Once.
Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu::kernels

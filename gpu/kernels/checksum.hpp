// Whether memory on the device holds what it held: sums of it, computed there, at about the speed at
// which the device reads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

// So that it can be compiled beside others, before it is needed.
KernelSpec checksum_kernel();

using Checksum = std::array<std::uint32_t, 4>;

// One for each slice, whose offset and size are multiples of 16 bytes. They are the same on every
// device. No protection against somebody who wants two lots to have one sum. Waits for so long at
// most.
Result<std::vector<Checksum>> checksums(Device& device, std::span<const BufferSlice> slices,
                                        std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu::kernels

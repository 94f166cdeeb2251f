// Device memory that outlives the process that filled it: what a process must tell of its memory, so
// that a successor on the same device can take it over instead of loading, and what the successor is
// given.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/checksum.hpp"

namespace bulkhead::forward {

// Two processes may share memory only if all of this is equal.
struct MemoryLayout {
  // Lines of text: device, driver, numerics, what lies where, and the settings that decided on it.
  std::string identity;
  std::uint32_t context = 0;  // tokens of a sequence
  std::uint32_t pages = 0;    // KV pages for sequences
  std::uint32_t weight_blocks = 0;
  std::vector<std::uint64_t> block_bytes;  // the weights' blocks, then the KV pages'
  bool operator==(const MemoryLayout&) const = default;
};

// What was there, for one who takes it over.
struct KeptMemory {
  MemoryLayout layout;
  std::vector<gpu::kernels::Checksum> checksums;  // of the weights' blocks
  std::vector<UniqueFd> blocks;                   // of all blocks
};

}  // namespace bulkhead::forward

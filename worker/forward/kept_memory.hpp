// Device memory that outlives the process that filled it: what a process must tell of its memory, so
// that a successor on the same device can take it over instead of loading, and what the successor is
// given.
#pragma once

#include <cstddef>
#include <cstdint>
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

// kCorrupt: why a successor loads instead.
Error not_as_expected(const std::string& what);

// Of what a predecessor kept, before any of it is touched: is it of the layout that this process
// would have made?
Status compare_layouts(const MemoryLayout& ours, const KeptMemory& kept);

// Blocks [first, first + count) of it, whose descriptors are gone then; adds the time that it takes.
Result<std::vector<gpu::Buffer>> import_blocks(gpu::Device& device, KeptMemory& kept,
                                               std::size_t first, std::size_t count,
                                               const char* name, std::uint64_t& import_ns);

}  // namespace bulkhead::forward

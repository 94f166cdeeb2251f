// Device memory that outlives the process that filled it. A process describes its memory here, so that
// a successor on the same device can import it instead of loading the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/checksum.hpp"
#include "worker/forward/cache_size.hpp"

namespace bulkhead::forward {

// Two processes can share memory only if all of this is equal.
struct MemoryLayout {
  // Lines of text: device, driver, numerics, the layout, and the settings that determined it.
  std::string identity;
  CacheSize cache;
  std::uint32_t weight_blocks = 0;
  std::vector<std::uint64_t> block_bytes;  // the weights' blocks, then the KV pages'
  bool operator==(const MemoryLayout&) const = default;
};

// A slab of KV pages by which the cache has grown (kv_memory.hpp).
struct ExportedSlab {
  std::uint32_t piece = 0;   // the slab's number; of a split model also which device's piece it is
  std::uint64_t offset = 0;  // of its first page
  UniqueFd memory;
};

// What a predecessor exported, as its successor gets it.
struct ExportedMemory {
  MemoryLayout layout;
  std::vector<gpu::kernels::Checksum> checksums;  // of the weights' blocks
  std::vector<UniqueFd> blocks;                   // of all blocks
  std::vector<ExportedSlab> slabs;                // those that it had at its end
};

// Makes a kCorrupt error that says why a successor loads the model instead.
Error not_as_expected(const std::string& what);

// Checks, before touching any of it, that the predecessor's memory has the layout that this process
// would have made.
Status compare_layouts(const MemoryLayout& ours, const ExportedMemory& exported);

// Imports blocks [first, first + count), which consumes their descriptors, and adds the time taken.
Result<std::vector<gpu::Buffer>> import_blocks(gpu::Device& device, ExportedMemory& exported,
                                               std::size_t first, std::size_t count,
                                               const char* name, std::uint64_t& import_ns);

}  // namespace bulkhead::forward

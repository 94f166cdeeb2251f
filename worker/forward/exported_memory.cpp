#include "worker/forward/exported_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/forward/load_figures.hpp"

namespace bulkhead::forward {

Error not_as_expected(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "what a predecessor exported can't be used: " + what);
}

Status compare_layouts(const MemoryLayout& ours, const ExportedMemory& exported) {
  const MemoryLayout& theirs = exported.layout;
  if (theirs.identity != ours.identity) {
    const auto differs = std::ranges::mismatch(ours.identity, theirs.identity).in1;
    const auto line = static_cast<std::size_t>(std::count(ours.identity.begin(), differs, '\n'));
    const char* const names[] = {
        "the device",          "the driver",   "the kernels or number formats",
        "the model's tensors", "the KV cache", "the settings"};
    return not_as_expected(std::string("it is of other ") +
                           (line < std::size(names) ? names[line] + 4 : "lines"));
  }
  if (!(theirs == ours)) return not_as_expected("its blocks are of other sizes");
  if (exported.blocks.size() != theirs.block_bytes.size() ||
      exported.checksums.size() != theirs.weight_blocks)
    return not_as_expected("parts of it are missing");
  return {};
}

Result<std::vector<gpu::Buffer>> import_blocks(gpu::Device& device, ExportedMemory& exported,
                                               std::size_t first, std::size_t count,
                                               const char* name, std::uint64_t& import_ns) {
  const auto begin = Clock::now();
  std::vector<gpu::Buffer> blocks;
  for (std::size_t i = first; i < first + count; ++i) {
    BULKHEAD_TRY(gpu::Buffer block, device.import_memory(std::move(exported.blocks[i]),
                                                         exported.layout.block_bytes[i], name));
    blocks.push_back(std::move(block));
  }
  import_ns += nanoseconds_since(begin);
  return blocks;
}

}  // namespace bulkhead::forward

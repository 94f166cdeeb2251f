#include "worker/forward/split_exported.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

namespace bulkhead::forward {
namespace {

// The line of the identity that precedes a stage's own lines.
struct Heading {
  std::uint32_t first = 0, end = 0;  // layers
  bool windows = false;              // whether the stage has window pages
  std::uint32_t weight_blocks = 0, other_blocks = 0;
  std::uint32_t lines = 0;  // of the stage's part of the identity
};
constexpr const char* kHeading = "stage layers %u-%u windows %d blocks %u+%u lines %u\n";

std::string text_of(const Heading& h) {
  char text[160];
  std::snprintf(text, sizeof text, kHeading, h.first, h.end, h.windows ? 1 : 0, h.weight_blocks,
                h.other_blocks, h.lines);
  return text;
}

// Takes a heading from the front of `text`.
Result<Heading> read_heading(std::string& text) {
  Heading h;
  const std::size_t end = text.find('\n');
  int windows = 0;
  if (end == std::string::npos || std::sscanf(text.c_str(), kHeading, &h.first, &h.end, &windows,
                                              &h.weight_blocks, &h.other_blocks, &h.lines) != 6)
    return not_as_expected("it is not of a split model");
  h.windows = windows != 0;
  text.erase(0, end + 1);
  return h;
}

// Takes lines from the front of `text`.
Result<std::string> read_lines(std::string& text, std::uint32_t lines) {
  std::size_t end = 0;
  for (std::uint32_t i = 0; i < lines; ++i) {
    end = text.find('\n', end);
    if (end == std::string::npos) return not_as_expected("lines are missing");
    ++end;
  }
  std::string taken = text.substr(0, end);
  text.erase(0, end);
  return taken;
}

// Moves the first `count` elements of `from` to the end of `to`.
template <typename T>
bool take(std::vector<T>& from, std::uint32_t count, std::vector<T>& to) {
  if (from.size() < count) return false;
  std::move(from.begin(), from.begin() + count, std::back_inserter(to));
  from.erase(from.begin(), from.begin() + count);
  return true;
}

}  // namespace

ExportedMemory join_exported(std::vector<ExportedStage> stages) {
  ExportedMemory joined;
  for (ExportedStage& stage : stages) {
    const MemoryLayout& layout = stage.memory.layout;
    const auto lines = std::ranges::count(layout.identity, '\n');
    joined.layout.identity +=
        text_of({stage.layers.first, stage.layers.end, layout.cache.window_pages > 0,
                 layout.weight_blocks,
                 static_cast<std::uint32_t>(layout.block_bytes.size()) - layout.weight_blocks,
                 static_cast<std::uint32_t>(lines)}) +
        layout.identity;
    // All stages have the same sizes, but those without windows have no window pages.
    if (joined.layout.cache.window_pages == 0) joined.layout.cache = layout.cache;
    joined.layout.weight_blocks += layout.weight_blocks;
    joined.checksums.insert(joined.checksums.end(), stage.memory.checksums.begin(),
                            stage.memory.checksums.end());
  }
  for (const bool weights : {true, false}) {
    for (ExportedStage& stage : stages) {
      const std::uint32_t own = stage.memory.layout.weight_blocks;
      const auto count = weights ? own : static_cast<std::uint32_t>(stage.memory.blocks.size());
      take(stage.memory.layout.block_bytes, count, joined.layout.block_bytes);
      take(stage.memory.blocks, count, joined.blocks);
    }
  }
  return joined;
}

Result<std::vector<ExportedStage>> part_exported(ExportedMemory& exported, std::size_t devices) {
  std::vector<ExportedStage> stages;
  std::vector<Heading> headings;
  std::string text = exported.layout.identity;
  while (!text.empty()) {
    BULKHEAD_TRY(const Heading heading, read_heading(text));
    ExportedStage& stage = stages.emplace_back();
    headings.push_back(heading);
    stage.layers = {heading.first, heading.end};
    MemoryLayout& layout = stage.memory.layout;
    BULKHEAD_TRY(layout.identity, read_lines(text, heading.lines));
    layout.cache =
        heading.windows ? exported.layout.cache : exported.layout.cache.without_windows();
    layout.weight_blocks = heading.weight_blocks;
  }
  if (stages.size() != devices)
    return not_as_expected("it is of a model on another number of devices");
  for (const bool weights : {true, false}) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      ExportedMemory& memory = stages[i].memory;
      const std::uint32_t count = weights ? headings[i].weight_blocks : headings[i].other_blocks;
      if (!take(exported.layout.block_bytes, count, memory.layout.block_bytes) ||
          !take(exported.blocks, count, memory.blocks) ||
          (weights && !take(exported.checksums, count, memory.checksums)))
        return not_as_expected("parts of it are missing");
    }
  }
  for (ExportedSlab& slab : exported.slabs) {
    const std::size_t stage = slab.piece % devices;
    slab.piece /= static_cast<std::uint32_t>(devices);
    stages[stage].memory.slabs.push_back(std::move(slab));
  }
  exported.slabs.clear();
  return stages;
}

}  // namespace bulkhead::forward

// The exported memory of a split model: that of all its stages, as one. All stages' weights come first, then all
// stages' KV pages; the identity says which layers and blocks are whose. A slab has a piece on each device that has
// pages of its kind; the piece of slab s on device d of n has the number s * n + d.
#pragma once

#include <vector>

#include "config/base/error.hpp"
#include "worker/forward/exported_memory.hpp"
#include "worker/forward/layer_split.hpp"

namespace bulkhead::forward {

struct ExportedStage {
  StageLayers layers;
  ExportedMemory memory;
};

ExportedMemory join_exported(std::vector<ExportedStage> stages);
// Takes apart what join_exported() has made; its blocks are gone then. kCorrupt: it is not of a model split over so
// many devices.
Result<std::vector<ExportedStage>> part_exported(ExportedMemory& exported, std::size_t devices);

}  // namespace bulkhead::forward

// The kept memory of a split model: that of all its stages, as one. All stages' weights come first, then all stages' KV
// pages; the identity says which layers and blocks are whose.
#pragma once

#include <vector>

#include "config/base/error.hpp"
#include "worker/forward/kept_memory.hpp"
#include "worker/forward/layer_split.hpp"

namespace bulkhead::forward {

struct KeptStage {
  StageLayers layers;
  KeptMemory memory;
};

KeptMemory join_kept(std::vector<KeptStage> stages);
// Takes apart what join_kept() has made; its blocks are gone then. kCorrupt: it is not of a model split over so many
// devices.
Result<std::vector<KeptStage>> part_kept(KeptMemory& kept, std::size_t devices);

}  // namespace bulkhead::forward

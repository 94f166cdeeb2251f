// Decides how a model is split over devices before any of its memory is allocated: which layers each device gets, and
// the sizes that all stages share.
#pragma once

#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/layer_split.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

struct SplitPlan {
  std::vector<StageLayers> layers;        // of each device
  std::vector<model::ModelGraph> graphs;  // of each device
  SharedSizes sizes;
};

// A device that is listed twice shares its free memory between two stages. `options` has sizes (with_sizes).
// `exported_layers`: those of a predecessor whose memory is imported; empty: the devices' memory decides, and `sizes`
// follow.
Result<SplitPlan> plan_split(std::span<gpu::Device* const> devices, const model::GgufFile& file,
                             const model::ModelGraph& graph, const TransformerOptions& options,
                             const std::vector<StageLayers>& exported_layers);

// Returns the shapes of a stage's steps on this kind of device.
std::vector<StepShape> shapes_on(gpu::DeviceKind kind, const model::ModelGraph& graph,
                                 const TransformerOptions& options);

}  // namespace bulkhead::forward

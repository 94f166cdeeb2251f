// Splits a model into stages: each stage has some consecutive layers, which one device computes. Pure host code.
//
// A model can be cut between two layers if the layers after the cut need only the residual stream from those before
// it. Some models share keys and values between layers, or make inputs of later layers from the token; such a model
// can be cut in few places or nowhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

// Layers [first, end) of a model.
struct StageLayers {
  std::uint32_t first = 0, end = 0;
  bool operator==(const StageLayers&) const = default;
};

// Returns for each layer why the model can't be cut before it; empty if it can. There is no cut before layer 0.
std::vector<std::string> obstacles(const model::ModelGraph& graph);

// Returns what a stage computes: these layers and what they need. The first stage embeds the tokens, and the last one
// computes the logits. `prepared` is ModelPlan::prepared of the whole model, for the stage's first layer.
model::ModelGraph stage_graph(const model::ModelGraph& graph, StageLayers layers, bool prepared);

// The bytes that parts of a model take on a device.
struct PartSizes {
  std::vector<std::uint64_t> layers;
  std::uint64_t embedding = 0, output = 0;
};
// Returns the bytes that a stage with these layers takes.
std::uint64_t bytes_of(const PartSizes& sizes, StageLayers layers);
// Returns whether no stage takes more than `free`.
bool fits(std::span<const StageLayers> stages, const PartSizes& sizes,
          std::span<const std::uint64_t> free);
// Distributes the layers so that the fullest device keeps as much free room as possible. `free` has the free memory
// of each stage's device. Each stage gets at least one layer. kUnsupported says why the model can't be split.
Result<std::vector<StageLayers>> share_out_layers(const PartSizes& sizes,
                                                  std::span<const std::string> obstacles,
                                                  std::span<const std::uint64_t> free);

}  // namespace bulkhead::forward

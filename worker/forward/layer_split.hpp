// Splits a model into stages: each has some of the layers that follow each other, and a device computes it. Pure host
// code.
//
// A model can be cut between two layers if the residual stream is all that the layers behind the cut need of those
// before it. Some models share keys and values between layers, or make inputs of later layers from the token: these can
// be cut in few places or in none.
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

// Returns for each layer why the model can't be cut before it; empty where it can. Layer 0 has no cut before it.
std::vector<std::string> obstacles(const model::ModelGraph& graph);

// What a stage computes: these layers and what they need. The first stage embeds the tokens, and the last one makes the
// logits. `prepared`: ModelPlan::prepared of the whole model, for the stage's first layer.
model::ModelGraph stage_graph(const model::ModelGraph& graph, StageLayers layers, bool prepared);

// The bytes that parts of a model take on a device.
struct PartSizes {
  std::vector<std::uint64_t> layers;
  std::uint64_t embedding = 0, output = 0;
};
// Returns what a stage with these layers takes.
std::uint64_t bytes_of(const PartSizes& sizes, StageLayers layers);
// Says whether each stage takes no more than `free`.
bool fits(std::span<const StageLayers> stages, const PartSizes& sizes,
          std::span<const std::uint64_t> free);
// Shares the layers out so that the fullest device has as much room as can be: `free` is what each stage's device has. Each stage gets a layer at least. kUnsupported names what stands against a split.
Result<std::vector<StageLayers>> share_out_layers(const PartSizes& sizes,
                                                  std::span<const std::string> obstacles,
                                                  std::span<const std::uint64_t> free);

}  // namespace bulkhead::forward

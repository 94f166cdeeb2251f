// What the stages of a split model have in common: limits, names, figures.
#pragma once

#include <string>
#include <vector>

#include "worker/forward/layer_split.hpp"
#include "worker/forward/transformer.hpp"

namespace bulkhead::forward {

using Stages = std::vector<const Transformer*>;

engine::ExecutorLimits joined_limits(const Stages& stages);
std::string joined_names(const Stages& stages);
// Returns an id that names all devices and kernels, the layers where the model is cut, and the weights of all stages.
std::string joined_id(const Stages& stages, const std::vector<StageLayers>& layers);
std::vector<FigureValue> joined_counters(const Stages& stages);
std::vector<engine::Executor::Optimization> joined_parts(const Stages& stages);
// Adds a stage's checksum of a page to those of the stages before it. The result depends on the order of the stages.
void add_sum(const engine::PageSum& sum, engine::PageSum& to);

}  // namespace bulkhead::forward

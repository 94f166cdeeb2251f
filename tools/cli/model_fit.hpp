// Finds the devices on which a model fits, for `bulkhead doctor --model FILE` and `bulkhead inspect FILE`.
#pragma once

#include <span>
#include <string>

#include "config/base/error.hpp"
#include "gpu/device.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::cli {

struct ModelFit {
  std::string
      text;  // a line for each usable device; the last one lists the devices for replicas or for a split
  bool fits = false;  // at least one device can hold the model
};

// Reads the model file's header, and allocates nothing on a device. The sizes are those of the default settings.
// Returns an error if the file can't be read or its model can't be served.
Result<ModelFit> model_fit(const std::string& file, std::span<const gpu::DeviceInfo> devices);
// The same for a file that has been read.
Result<ModelFit> model_fit(const model::GgufFile& file, const model::ModelGraph& graph,
                           std::span<const gpu::DeviceInfo> devices);

}  // namespace bulkhead::cli

// How a device's lanes share a model's work: the device's own mapping, as changed by settings.
#pragma once

#include <string>

#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/transformer.hpp"

namespace bulkhead::forward {

gpu::kernels::Mapping mapping_of(gpu::Device& device, const TransformerOptions& options);
// Returns a name for everything besides the kernels' code that determines the order of additions.
std::string mapping_name(const gpu::kernels::Mapping& mapping);

}  // namespace bulkhead::forward

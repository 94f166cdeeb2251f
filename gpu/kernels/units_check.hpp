// Checks that a device's matrix units lay out their fragments as units.glsl fills them.
#pragma once

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

// Runs one small kernel and waits for it. Returns false if the device has no such units, or if its lanes hold a
// fragment's entries in another order; products then use FMA.
Result<bool> fragments_as_expected(Device& device);

}  // namespace bulkhead::gpu::kernels

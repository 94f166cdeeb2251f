// Whether a device's matrix units hold their fragments as units.glsl fills them.
#pragma once

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

// Runs one small kernel and waits for it. False: the device has no such units, or another order of
// a fragment's entries among the lanes; its products then go through FMA.
Result<bool> fragments_as_expected(Device& device);

}  // namespace bulkhead::gpu::kernels

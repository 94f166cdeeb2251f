// Whether a device's matrix units hold their fragments as units.glsl fills them.
#pragma once

#include <vector>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu::kernels {

// Runs one small kernel and waits for it. False: the device has no such units, or another order of
// a fragment's entries among the lanes; its products then go through FMA.
Result<bool> fragments_as_expected(Device& device);
// What each of the 32 lanes holds: 8 entries of a 16x16 matrix whose entries count on along its
// rows, 4 each of two 16x8 ones, as right factor and as sums, and 4 of the first two's product.
Result<std::vector<float>> read_fragments(Device& device);

}  // namespace bulkhead::gpu::kernels

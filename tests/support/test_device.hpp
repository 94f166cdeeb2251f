// The device on which tests compute.
#pragma once

#include <cstdlib>

#include "gpu/device.hpp"

namespace bulkhead::test {

// Returns the options that select the CPU's device, so that the tests run anywhere, or the device that
// BULKHEAD_TEST_DEVICE names.
inline gpu::DeviceOptions chosen_device_options() {
  gpu::DeviceOptions options;
  const char* const chosen = std::getenv("BULKHEAD_TEST_DEVICE");
  options.selector = chosen != nullptr ? chosen : "cpu";
  return options;
}

}  // namespace bulkhead::test

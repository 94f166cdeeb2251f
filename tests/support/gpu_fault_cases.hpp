// The cases of the tests that make calls of the device fail: which call fails, in which way, and in which form of the
// optimisations. For tests that go through all of one kind.
#pragma once

#include <ostream>

#include <gtest/gtest.h>

#include "config/base/error.hpp"
#include "gpu/fault_injection.hpp"

namespace bulkhead::gpu {

struct FaultCase {
  const char* name;
  bool enabled;
  bool shared_events;
  fault::Call kinds;
  VkResult result;

  ErrorCode expected() const {
    return result == VK_ERROR_DEVICE_LOST ? ErrorCode::kDeviceLost
           : result == VK_TIMEOUT         ? ErrorCode::kDeadlineExceeded
                                          : ErrorCode::kResourceExhausted;
  }
};

inline void PrintTo(const FaultCase& fault_case, std::ostream* out) {
  *out << fault_case.name;
}

inline auto all_fault_cases() {
  using fault::Call;
  return ::testing::Values(
      FaultCase{"AllocateOn", true, true, Call::kAllocate, VK_ERROR_OUT_OF_DEVICE_MEMORY},
      FaultCase{"AllocateOff", false, true, Call::kAllocate, VK_ERROR_OUT_OF_DEVICE_MEMORY},
      FaultCase{"SubmitOn", true, true, Call::kSubmit, VK_ERROR_DEVICE_LOST},
      FaultCase{"SubmitFences", true, false, Call::kSubmit, VK_ERROR_DEVICE_LOST},
      FaultCase{"SubmitOff", false, true, Call::kSubmit, VK_ERROR_DEVICE_LOST},
      FaultCase{"WaitOn", true, true, Call::kWait, VK_TIMEOUT},
      FaultCase{"WaitLostOn", true, true, Call::kWait, VK_ERROR_DEVICE_LOST},
      FaultCase{"WaitFences", true, false, Call::kWait, VK_TIMEOUT},
      FaultCase{"WaitOff", false, true, Call::kWait, VK_TIMEOUT});
}

}  // namespace bulkhead::gpu

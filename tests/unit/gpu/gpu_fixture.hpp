// What the tests of gpu/ share: one lavapipe device with validation for the whole program, and one small kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/base/log.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "tests/support/log_capture.hpp"

namespace bulkhead::gpu {

// y = a * x + b (axpb.comp); groups of kAxpbGroup.
struct AxpbPush {
  VkDeviceAddress x = 0, y = 0;
  std::uint32_t count = 0;
  float a = 0, b = 0;
  std::uint32_t padding = 0;  // the struct's size is a multiple of 8
};
inline constexpr std::uint32_t kAxpbGroup = 64;
KernelSpec axpb_spec();

// Selects the CPU device, so that the tests run anywhere, or the device in BULKHEAD_TEST_DEVICE; with validation if
// the layer is installed.
DeviceOptions test_device_options();

using test::LogCapture;

// Skips tests if there is no device. Fails a test about which the validation layer complained.
class GpuTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTimeoutMs = 20000;

  void SetUp() override;
  void TearDown() override;
  static Device& device();
  // Returns whether its transfer queue has timestamps that can be read while it works.
  static bool times_copies() {
    return device().has_host_query_reset() && device().tells_timestamps_at_once() &&
           device().transfer_timestamp_bits() > 0;
  }

  // Runs the kernel over whole slices of floats.
  static void axpb(Recorder& recorder, const Kernel& kernel, const BufferSlice& x,
                   const BufferSlice& y, float a, float b);
  static Kernel axpb_kernel();
  // Makes a host-visible buffer of floats.
  static Buffer floats(const std::vector<float>& values);
  static std::vector<float> read_floats(const BufferSlice& slice);

 private:
  std::uint64_t errors_before_ = 0;
};

}  // namespace bulkhead::gpu

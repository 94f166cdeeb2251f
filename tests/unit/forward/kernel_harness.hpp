// Runs single kernels on host-visible buffers of one device that the whole test program shares.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::forward {

// Null when there is no Vulkan device: tests then skip. BULKHEAD_TEST_DEVICE names another than the
// CPU one.
gpu::Device* test_device();
// Whether a test goes every way that kernels can be made: on a GPU, or with BULKHEAD_EVERY_WAY=1. A CPU's driver takes
// seconds to compile each, so there a test goes some, which take every type, mode and size at least once; it says so.
bool every_way();
// Both ways of sharing work among lanes, named for messages.
struct NamedMapping {
  const char* name;
  gpu::kernels::Mapping mapping;
};
std::vector<NamedMapping> test_mappings(const gpu::Device& device);

class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override;

  gpu::Device& device() { return *test_device(); }
  bool on_cpu() { return device().info().kind == gpu::DeviceKind::kCpu; }
  template <typename T>
  gpu::Buffer buffer(std::span<const T> values) {
    gpu::Buffer made = empty(values.size_bytes());
    std::memcpy(made.mapped().data(), values.data(), values.size_bytes());
    return made;
  }
  gpu::Buffer empty(std::uint64_t bytes);  // filled with NaN
  template <typename T>
  std::vector<T> read(const gpu::Buffer& from, std::size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), from.mapped().data(), count * sizeof(T));
    return values;
  }
  // Counts, columns and outputs as step parameters start.
  gpu::Buffer parameters(std::uint32_t columns,
                         std::span<const gpu::kernels::ColumnEntry> entries = {});

  template <typename Push>
  void run(const gpu::KernelSpec& spec, const Push& push, std::uint32_t x, std::uint32_t y = 1,
           std::uint32_t z = 1) {
    run_bytes(spec, gpu::push_bytes(push), x, y, z);
  }

 private:
  void run_bytes(const gpu::KernelSpec& spec, std::span<const std::byte> push, std::uint32_t x,
                 std::uint32_t y, std::uint32_t z);
};

}  // namespace bulkhead::forward

#include "tests/unit/gpu/gpu_fixture.hpp"

#include <algorithm>
#include <cstring>

#include <vulkan/vulkan.h>

#include "gpu/kernels/test_axpb.hpp"
#include "tests/support/test_device.hpp"

namespace bulkhead::gpu {
namespace {

bool validation_layer_installed() {
  std::uint32_t count = 0;
  vkEnumerateInstanceLayerProperties(&count, nullptr);
  std::vector<VkLayerProperties> layers(count);
  vkEnumerateInstanceLayerProperties(&count, layers.data());
  return std::any_of(layers.begin(), layers.end(), [](const VkLayerProperties& layer) {
    return std::strcmp(layer.layerName, "VK_LAYER_KHRONOS_validation") == 0;
  });
}

Result<std::unique_ptr<Device>>& shared_device() {
  static Result<std::unique_ptr<Device>> device = Device::open(test_device_options());
  return device;
}

}  // namespace

KernelSpec axpb_spec() {
  KernelSpec spec;
  spec.name = "axpb";
  spec.spirv = spirv::test_axpb;
  spec.push_bytes = sizeof(AxpbPush);
  spec.constants = {kAxpbGroup};
  return spec;
}

DeviceOptions test_device_options() {
  DeviceOptions options = test::chosen_device_options();
  options.validation = validation_layer_installed();
  return options;
}

void GpuTest::SetUp() {
  if (!shared_device().ok()) {
    GTEST_SKIP() << "no Vulkan device for tests: " << shared_device().error().message();
  }
  errors_before_ = device().validation_errors();
}

void GpuTest::TearDown() {
  if (!shared_device().ok()) return;
  EXPECT_EQ(device().validation_errors(), errors_before_) << "see the log above";
}

Device& GpuTest::device() {
  return **shared_device();
}

void GpuTest::axpb(Recorder& recorder, const Kernel& kernel, const BufferSlice& x,
                   const BufferSlice& y, float a, float b) {
  AxpbPush push;
  push.x = x.address;
  push.y = y.address;
  push.count = static_cast<std::uint32_t>(x.bytes / sizeof(float));
  push.a = a;
  push.b = b;
  recorder.dispatch(kernel, push_bytes(push), (push.count + kAxpbGroup - 1) / kAxpbGroup, 1, 1,
                    2 * x.bytes);
}

Kernel GpuTest::axpb_kernel() {
  return *device().make_kernel(axpb_spec());
}

Buffer GpuTest::floats(const std::vector<float>& values) {
  Buffer buffer = *device().allocate(values.size() * sizeof(float), Memory::kReadback, "floats");
  std::memcpy(buffer.mapped().data(), values.data(), values.size() * sizeof(float));
  return buffer;
}

std::vector<float> GpuTest::read_floats(const BufferSlice& slice) {
  std::vector<float> values(slice.bytes / sizeof(float));
  std::memcpy(values.data(), slice.mapped, values.size() * sizeof(float));
  return values;
}

}  // namespace bulkhead::gpu

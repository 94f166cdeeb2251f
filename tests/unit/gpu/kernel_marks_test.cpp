// A ring with marks names the kernel at which its device hangs.
#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/kernels/test_stall.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

class KernelMarksOfARing : public GpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  static Kernel stall_kernel() {
    KernelSpec spec;
    spec.name = "stall";
    spec.spirv = spirv::test_stall;
    spec.push_bytes = sizeof(VkDeviceAddress);
    return *device().make_kernel(spec);
  }
  // Returns whether the submission ends, however busy the machine is.
  static bool ends(CommandRing& ring, CommandRing::Ticket ticket) {
    for (int i = 0; i < 60; ++i) {
      if (ring.wait(ticket).ok()) return true;
    }
    return false;
  }
};

TEST_P(KernelMarksOfARing, NameTheKernelAtWhichADeviceHangs) {
  config::CommandBufferRingSettings settings;
  settings.mark_kernels = true;
  const auto made = CommandRing::create(device(), settings, GetParam(), 500);
  ASSERT_TRUE(made.ok()) << made.error().message();
  CommandRing& ring = **made;
  const Kernel kernel = axpb_kernel(), stall = stall_kernel();
  const Buffer x = floats({1, 2, 3}), y = floats({0, 0, 0}), z = floats({0, 0, 0});
  const Buffer flag = floats({0});
  const auto quick =
      ring.record([&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(y), 1, 0); });
  const auto hanging = ring.record([&](Recorder& recorder) {
    axpb(recorder, kernel, slice(x), slice(y), 2, 1);
    // Mesa's CPU driver ends a loop after 65,535 rounds, so there are many workgroups.
    const bool by_cpu = device().info().kind == DeviceKind::kCpu;
    recorder.dispatch(stall, push_bytes(flag.address()), by_cpu ? 20000 : 100);
    axpb(recorder, kernel, slice(x), slice(z), 2, 1);
  });
  ASSERT_TRUE(quick.ok() && hanging.ok());
  const auto first = ring.submit(*quick);
  ASSERT_TRUE(first.ok() && ends(ring, *first));

  const auto ticket = ring.submit(*hanging);
  ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  std::string words;
  for (int i = 0; i < 60 && words.find("stall") == std::string::npos; ++i) {
    const Status waited = ring.wait(*ticket);  // the machine may be too busy to get there at once
    ASSERT_FALSE(waited.ok());
    ASSERT_EQ(waited.error().code(), ErrorCode::kDeadlineExceeded) << waited.error().message();
    words = waited.error().message();
  }
  EXPECT_TRUE(
      words.starts_with("submission 2 of 2 (1 had ended), the device stopped at operation "
                        "2 of 3, kernel stall: "))
      << words;
  EXPECT_EQ(read_floats(slice(y))[1], 5) << "what came before the kernel is done";
  EXPECT_EQ(read_floats(slice(z))[1], 0) << "what comes behind it has not begun";

  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(flag.mapped().data())).store(1);
  ASSERT_TRUE(ends(ring, *ticket));
  EXPECT_EQ(read_floats(slice(z))[1], 5);
}

INSTANTIATE_TEST_SUITE_P(OnAndOff, KernelMarksOfARing, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Recorded" : "Plain"; });

}  // namespace
}  // namespace bulkhead::gpu

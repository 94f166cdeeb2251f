// The thread that computes must not wait for the amount of free memory, however long a driver takes to answer.
#include "gpu/free_memory_watch.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "gpu/optimizations.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace {
bool left_a_hung_device = false;
}

// LeakSanitizer calls this at the end of the process. The driver's objects of an abandoned device are leaked on
// purpose; all else is checked.
extern "C" int __lsan_is_turned_off() {
  return left_a_hung_device ? 1 : 0;
}

namespace bulkhead::gpu {
namespace {

constexpr std::uint64_t kAnswer = 4711;

// A driver that does not answer until the test lets it.
struct SlowDriver {
  std::promise<void> asked, may_answer;

  FreeMemoryWatch::Ask ask() {
    return [this, go = may_answer.get_future().share(), first = true]() mutable {
      if (first) asked.set_value();
      first = false;
      go.wait();
      return kAnswer;
    };
  }
};

bool comes_to_tell(const FreeMemoryWatch& watch, std::uint64_t bytes) {
  for (int i = 0; i < 2000 && watch.newest() != bytes; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return watch.newest() == bytes;
}

double free_in(const std::vector<FigureValue>& figures) {
  for (const FigureValue& figure : figures) {
    if (figure.name == "device_memory_free_bytes") return figure.value;
  }
  return -1;
}

using FreeMemory = GpuTest;

TEST_F(FreeMemory, FiguresDoNotWaitForTheDriver) {
  Optimizations parts = *create_optimizations(device(), {}, kTimeoutMs);
  SlowDriver driver;
  parts.free_memory = std::make_unique<FreeMemoryWatch>(device(), kTimeoutMs, driver.ask());
  const auto at_first = static_cast<double>(device().info().free_memory_bytes);
  EXPECT_EQ(free_in(figures(parts, device())), at_first);
  driver.asked.get_future().wait();
  // The driver has not answered yet, and nobody waits for it.
  EXPECT_EQ(free_in(figures(parts, device())), at_first);
  driver.may_answer.set_value();
  ASSERT_TRUE(comes_to_tell(*parts.free_memory, kAnswer));
  EXPECT_EQ(free_in(figures(parts, device())), kAnswer);
}

TEST_F(FreeMemory, IsTheDevicesOwnAnswer) {
  const Optimizations parts = *create_optimizations(device(), {}, kTimeoutMs);
  const std::uint64_t at_first = device().info().free_memory_bytes;
  // It may well be the same as before, so this does not wait for long.
  for (int i = 0; i < 100 && parts.free_memory->newest() == at_first; ++i) {
    parts.free_memory->ask();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GT(parts.free_memory->newest(), 0U);
  EXPECT_LE(parts.free_memory->newest(), device().info().device_memory_bytes);
}

TEST_F(FreeMemory, GivesUpADeviceWhoseDriverHangs) {
  // An abandoned device frees nothing, so the test does not destroy it.
  static Device* const other = Device::open(test_device_options())->release();
  SlowDriver driver;
  {
    constexpr std::uint32_t kShortTimeoutMs = 20;
    FreeMemoryWatch watch(*other, kShortTimeoutMs, driver.ask());
    watch.ask();
    driver.asked.get_future().wait();
  }
  EXPECT_TRUE(other->abandoned());
  left_a_hung_device = true;
  driver.may_answer.set_value();
}

}  // namespace
}  // namespace bulkhead::gpu

// A model on a device that stands still while it uploads, warms up or computes a step; and the progress that
// loading reports while it waits.
#include <chrono>
#include <optional>

#include "failing_device.hpp"
#include "gpu/wear_in.hpp"

namespace bulkhead::forward {
namespace {

// Makes a device stand still: its queues wait for the host.
class Standstill {
 public:
  explicit Standstill(gpu::Device& device) : device_(device) {
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    EXPECT_EQ(vkCreateSemaphore(device_.handle(), &info, nullptr, &semaphore_), VK_SUCCESS);
  }
  ~Standstill() {
    end();
    vkDestroySemaphore(device_.handle(), semaphore_, nullptr);
  }
  void begin() {
    VkSemaphoreSubmitInfo wait{};
    wait.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO;
    wait.semaphore = semaphore_;
    wait.value = 1;
    wait.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
    VkSubmitInfo2 info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2;
    info.waitSemaphoreInfoCount = 1;
    info.pWaitSemaphoreInfos = &wait;
    for (const VkQueue queue :
         {device_.compute_queue(), device_.transfer_queue(), device_.download_queue()}) {
      EXPECT_EQ(vkQueueSubmit2(queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    }
    begun_ = true;
  }
  // Lets the device go on, and waits until it has done everything that it was given meanwhile.
  void end() {
    go_on();
    vkDeviceWaitIdle(device_.handle());
  }
  void go_on() {
    if (!std::exchange(begun_, false)) return;
    VkSemaphoreSignalInfo signal{};
    signal.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO;
    signal.semaphore = semaphore_;
    signal.value = 1;
    EXPECT_EQ(vkSignalSemaphore(device_.handle(), &signal), VK_SUCCESS);
  }
  bool begun() const { return begun_; }

 private:
  gpu::Device& device_;
  VkSemaphore semaphore_ = VK_NULL_HANDLE;
  bool begun_ = false;
};

TEST_F(FailingDevice, AHangWhileUploadingIsAnError) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    options_.gpu.enabled = enabled;
    options_.wait_timeout_ms = 200;
    standstill.begin();
    const auto executor = load();
    ASSERT_FALSE(executor.ok());
    EXPECT_EQ(executor.error().code(), ErrorCode::kDeadlineExceeded) << executor.error().message();
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInTheWarmUpIsAnError) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    options_.gpu.enabled = enabled;
    options_.wait_timeout_ms = 2000;
    options_.progress = [&](const std::string& stage, std::uint64_t, std::uint64_t) {
      if (stage == "warm-up" && !standstill.begun()) standstill.begin();
    };
    const auto executor = load();
    ASSERT_FALSE(executor.ok());
    EXPECT_EQ(executor.error().code(), ErrorCode::kDeadlineExceeded) << executor.error().message();
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInAStepIsAnErrorAndTheEnd) {
  options_.wait_timeout_ms = 3000;
  auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  Standstill standstill(*device_);
  standstill.begin();
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  const auto rows = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(rows.error().message().starts_with(
      "recorded for 1 columns and 1 outputs, with barriers: submission "))
      << rows.error().message();
  const auto more = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().message(), rows.error().message());
  executor->reset();
  EXPECT_TRUE(device_->abandoned());
}

// Marks change no result. While the device waits for something before a step, no kernel is blamed.
TEST_F(FailingDevice, MarksOfKernelsChangeNothingAndBlameNoKernelThatDidNotRun) {
  const auto right = load_and_run();
  ASSERT_TRUE(right.ok()) << right.error().message();
  options_.gpu.command_buffer_ring.mark_kernels = true;
  for (const bool enabled : {false, true}) {
    options_.gpu.enabled = enabled;
    const auto marked = load_and_run();
    ASSERT_TRUE(marked.ok()) << marked.error().message();
    EXPECT_EQ(*marked, *right);
  }
  options_.wait_timeout_ms = 3000;
  auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  Standstill standstill(*device_);
  standstill.begin();
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  const auto rows = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(rows.error().message().find("the device stopped between submissions"),
            std::string::npos)
      << rows.error().message();
  executor->reset();
}

// The object that ends has no work under way, while other work on the device never ends.
TEST_F(FailingDevice, AnEndBesideAHangIsBounded) {
  for (const bool enabled : {true, false}) {
    device_ = open_device();
    Standstill standstill(*device_);
    {
      const auto ring = gpu::CommandRing::create(*device_, {}, enabled, 200);
      ASSERT_TRUE(ring.ok());
      standstill.begin();
    }
    EXPECT_TRUE(device_->abandoned());
  }
}

TEST_F(FailingDevice, AHangInTheFirstSubmissionsIsAnError) {
  ASSERT_TRUE(gpu::wear_in(*device_, 200, 60000).ok());
  Standstill standstill(*device_);
  standstill.begin();
  const Status status = gpu::wear_in(*device_, 200, 200);
  EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded) << status.error().message();
  EXPECT_TRUE(device_->abandoned());
}

TEST_F(FailingDevice, ASlowFirstStepGivesSignsOfLife) {
  Standstill standstill(*device_);
  std::optional<std::chrono::steady_clock::time_point> began;
  int signs = 0;
  // The device goes on only when this report says, while it stands still, that loading waits.
  options_.progress = [&](const std::string& stage, std::uint64_t, std::uint64_t) {
    if (stage != "warm-up") return;
    const auto now = std::chrono::steady_clock::now();
    if (!began) {
      began = now;
      standstill.begin();
    } else if (standstill.begun() && now - *began > std::chrono::milliseconds(600)) {
      ++signs;
      standstill.go_on();
    }
  };
  const auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  EXPECT_EQ(signs, 1);
}

}  // namespace
}  // namespace bulkhead::forward

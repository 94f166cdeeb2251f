// The loading pipeline: every byte of every buffer arrives, through each form of the blit queue and
// however small its staging memory is. A failure or an abort ends the pipeline and leaves no copy
// under way.
#include "worker/forward/weight_pipeline.hpp"

#include <atomic>
#include <ostream>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "gpu/fault_injection.hpp"
#include "tests/support/test_device.hpp"
#include "worker/forward/kernel_compiler.hpp"

namespace bulkhead::forward {
namespace {

namespace fault = gpu::fault;

enum class Form { kTimeline, kFences, kOff };

void PrintTo(Form form, std::ostream* out) {
  const char* const names[] = {"Timeline", "Fences", "Off"};
  *out << names[static_cast<int>(form)];
}

std::byte value_at(std::size_t job, std::uint64_t offset) {
  return static_cast<std::byte>((job * 31 + offset * 7 + (offset >> 16)) % 251);
}

class Pipeline : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    auto opened = gpu::Device::open(test::chosen_device_options());
    if (!opened.ok()) GTEST_SKIP() << opened.error().message();
    device_ = *std::move(opened);
    config::BlitQueueSettings settings;
    settings.staging_buffer_size_mb = 1;
    settings.max_pending_ops = 3;
    settings.use_shared_events = GetParam() == Form::kTimeline;
    blit_ = *gpu::BlitQueue::create(*device_, settings, GetParam() != Form::kOff, 20000);
  }
  void TearDown() override { fault::arm(0); }

  static std::vector<PipelineJob> jobs(std::initializer_list<std::uint64_t> sizes) {
    std::vector<PipelineJob> all;
    for (const std::uint64_t bytes : sizes) {
      PipelineJob job;
      job.name = "job " + std::to_string(all.size());
      job.bytes = bytes;
      job.fill = [index = all.size()](std::uint64_t offset, std::span<std::byte> piece) {
        for (std::size_t i = 0; i < piece.size(); ++i)
          piece[i] = value_at(index, offset + i);
      };
      all.push_back(std::move(job));
    }
    return all;
  }

  Status load(std::vector<PipelineJob> plan) {
    std::vector<gpu::Buffer> buffers;  // destroyed after the pipeline, whose copies write to them
    WeightPipeline pipeline(*device_, *blit_, std::move(plan), {});
    BULKHEAD_TRY(buffers, pipeline.buffers({}));
    return pipeline.finish({});
  }

  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<gpu::BlitQueue> blit_;
};

TEST_P(Pipeline, BringsEveryByteWhereItBelongs) {
  constexpr std::uint64_t kMib = 1 << 20;
  const std::vector<std::byte> source(300000);
  std::atomic<std::uint64_t> forgotten = 0;
  auto plan = jobs({5 * kMib + 4, 4, 17 * kMib, 100000});
  plan[2].sources = {std::span(source).first(100000), std::span(source).subspan(100000)};
  WeightPipeline pipeline(*device_, *blit_, std::move(plan),
                          [&](std::span<const std::byte> pages) { forgotten += pages.size(); });
  std::uint64_t told = 0;
  const auto alive = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, told);
    EXPECT_LE(done, total);
    told = done;
  };
  const auto buffers = pipeline.buffers(alive);
  ASSERT_TRUE(buffers.ok()) << buffers.error().message();
  ASSERT_EQ(buffers->size(), 4u);
  const Status finished = pipeline.finish(alive);
  ASSERT_TRUE(finished.ok()) << finished.error().message();
  EXPECT_EQ(told, 22 * kMib + 100008);
  for (std::size_t job = 0; job < buffers->size(); ++job) {
    const gpu::Buffer& buffer = (*buffers)[job];
    const auto got = blit_->finish_download(*blit_->download(gpu::slice(buffer), {}));
    ASSERT_TRUE(got.ok());
    for (std::uint64_t i = 0; i < buffer.bytes(); ++i)
      ASSERT_EQ((*got)[i], value_at(job, i)) << "job " << job << " at " << i;
  }
  // The pages are whole and lie within the two sources; no page of a neighbour is among them.
  EXPECT_GT(forgotten, 280000u);
  EXPECT_LE(forgotten, 300000u);
  const PipelineTimes times = pipeline.times();
  EXPECT_GE(times.threads, 1u);
  EXPECT_GT(times.pack, 0u);
  EXPECT_GT(times.allocate, 0u);
  EXPECT_GT(times.total, 0u);
  // With the queue off, the host measures its wait for each copy; otherwise the device's timestamps
  // count.
  const bool timed = GetParam() == Form::kOff ||
                     (device_->has_host_query_reset() && device_->tells_timestamps_at_once() &&
                      device_->transfer_timestamp_bits() > 0);
  EXPECT_EQ(times.upload > 0, timed);
  // The caller may use the queue again.
  const std::vector<std::byte> more(1000);
  EXPECT_TRUE(blit_->upload(more, gpu::slice(buffers->front(), 0, 1000)).ok());
  EXPECT_TRUE(blit_->finish_uploads().ok());
}

TEST_P(Pipeline, GivenUpAtAnyTimeItLeavesTheQueueUsable) {
  for (int when = 0; when < 6; ++when) {
    std::atomic<int> pieces = 0;
    auto plan = jobs({1 << 20, 3 << 20, 2 << 20});
    for (PipelineJob& job : plan) {
      job.fill = [&pieces, fill = job.fill](std::uint64_t offset, std::span<std::byte> piece) {
        ++pieces;
        fill(offset, piece);
      };
    }
    {
      WeightPipeline pipeline(*device_, *blit_, std::move(plan), {});
      while (pieces < when)
        std::this_thread::yield();
    }
    EXPECT_GE(pieces, when);
  }
  const auto buffer = device_->allocate(1000, gpu::Memory::kDeviceLocal, "after");
  EXPECT_TRUE(blit_->upload(std::vector<std::byte>(1000), gpu::slice(*buffer)).ok());
  EXPECT_TRUE(blit_->finish_uploads().ok());
}

TEST_P(Pipeline, ANameGoesWithAFailure) {
  auto plan = jobs({1 << 20, 1 << 20});
  plan[1].fill = [](std::uint64_t, std::span<std::byte>) { throw std::runtime_error("no more"); };
  const Status finished = load(std::move(plan));
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(finished.error().message().find("job 1"), std::string::npos)
      << finished.error().message();
}

TEST_P(Pipeline, EachFailingCallEndsIt) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  for (const auto kind : {fault::Call::kAllocate, fault::Call::kSubmit}) {
    for (std::uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 500u);
      fault::arm(n, kind);
      const Status finished = load(jobs({300000, 1 << 20, 100000}));
      if (!fault::fired()) {
        EXPECT_TRUE(finished.ok()) << finished.error().message();
        EXPECT_GT(n, 3u);
        break;
      }
      ASSERT_FALSE(finished.ok()) << "call " << n;
      EXPECT_EQ(finished.error().code(), kind == fault::Call::kAllocate
                                             ? ErrorCode::kResourceExhausted
                                             : ErrorCode::kDeviceLost);
      fault::arm(0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Pipeline,
                         ::testing::Values(Form::kTimeline, Form::kFences, Form::kOff),
                         [](const auto& test) { return ::testing::PrintToString(test.param); });

TEST(KernelCompilerTest, ReportsTheFirstKernelThatCanNotBeMade) {
  gpu::DeviceOptions options;
  options.selector = "cpu";
  const auto device = gpu::Device::open(options);
  if (!device.ok()) GTEST_SKIP() << device.error().message();
  gpu::KernelSpec broken;
  broken.name = "no code";
  KernelCompiler compiler(**device, {broken, broken});
  const Status status = compiler.finish({});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message().find("no code"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::forward

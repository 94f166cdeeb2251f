// In a small program that uses all of the GPU layer, every allocation, submit and wait fails once, one after another.
// Each time the program must end with an error, free everything in an order that the validation layer accepts, and
// leave the device usable.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/fault_injection.hpp"
#include "gpu/optimizations.hpp"
#include "tests/support/gpu_fault_cases.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

config::GpuOptimizations small_settings() {
  config::GpuOptimizations settings;
  settings.fallback_log_level = "debug";
  settings.memory_pool.heap_size_mb = 1;
  settings.memory_pool.warmup_sizes = {};
  settings.memory_pool.log_exhaustion = false;
  settings.blit_queue.staging_buffer_size_mb = 1;
  settings.blit_queue.max_pending_ops = 2;
  return settings;
}

class Optimized : public GpuTest {
 protected:
  void TearDown() override {
    fault::arm(0);
    GpuTest::TearDown();
  }

  // Uploads, computes twice, and downloads, each with more bytes than the pool and the staging ring
  // hold.
  static Result<float> program(const config::GpuOptimizations& settings) {
    BULKHEAD_TRY(Optimizations parts, create_optimizations(device(), settings, kTimeoutMs));
    BULKHEAD_TRY(const Kernel kernel, device().make_kernel(axpb_spec()));
    BULKHEAD_TRY(const auto x, parts.memory_pool->acquire(1 << 20, "x"));
    BULKHEAD_TRY(const auto y, parts.memory_pool->acquire(3 << 20, "y"));
    // Even if an error ends this early, the device must have finished with x and y before they are destroyed.
    struct Drain {
      Optimizations& parts;
      ~Drain() { parts.drain(); }
    } const drain{parts};
    const std::vector<float> values((1 << 20) / sizeof(float), 2);
    BULKHEAD_RETURN_IF_ERROR(parts.blit_queue->upload(std::as_bytes(std::span(values)), x.slice()));
    BULKHEAD_TRY(const auto id, parts.command_ring->record([&](Recorder& recorder) {
      axpb(recorder, kernel, x.slice(), y.slice(), 3, 1);
      recorder.barrier();
      axpb(recorder, kernel, x.slice(), y.slice(), 5, 1);
    }));
    const CommandRing::After uploaded = parts.blit_queue->uploads_done();
    BULKHEAD_TRY(const auto first, parts.command_ring->submit(id, {&uploaded, 1}));
    BULKHEAD_TRY(const auto second, parts.command_ring->submit(id));
    BufferSlice result = y.slice();
    result.bytes = 1 << 20;
    BULKHEAD_TRY(const auto ticket,
                 parts.blit_queue->download(result, {parts.command_ring->timeline(), second}));
    BULKHEAD_RETURN_IF_ERROR(parts.command_ring->wait(first));
    BULKHEAD_TRY(const auto bytes, parts.blit_queue->finish_download(ticket));
    BULKHEAD_RETURN_IF_ERROR(parts.blit_queue->finish_uploads());
    return reinterpret_cast<const float*>(bytes.data())[1000];
  }
};

TEST_F(Optimized, EveryCombinationOfSwitchesGivesTheSameResult) {
  for (int bits = 0; bits < 16; ++bits) {
    config::GpuOptimizations settings = small_settings();
    settings.enabled = (bits & 8) != 0;
    settings.memory_pool.enabled = (bits & 1) != 0;
    settings.blit_queue.enabled = (bits & 2) != 0;
    settings.command_buffer_ring.enabled = (bits & 4) != 0;
    const auto result = program(settings);
    ASSERT_TRUE(result.ok()) << result.error().message();
    EXPECT_EQ(*result, 11.0f);
  }
}

TEST_F(Optimized, ReportsSayWhatIsOffAndWhy) {
  config::GpuOptimizations settings = small_settings();
  settings.blit_queue.enabled = false;
  const auto parts = create_optimizations(device(), settings, kTimeoutMs);
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->reports.size(), 3u);
  EXPECT_TRUE(parts->reports[0].active && parts->reports[0].name == "memory_pool" &&
              parts->reports[0].reason.empty());
  EXPECT_FALSE(parts->reports[1].active);
  EXPECT_EQ(parts->reports[1].reason, "gpu_optimizations.blit_queue.enabled is false");
}

TEST_F(Optimized, APartThatCanNotStartFallsBackOrFails) {
  config::GpuOptimizations settings = small_settings();
  settings.memory_pool.heap_size_mb = 1 << 20;  // a terabyte
  const auto parts = create_optimizations(device(), settings, kTimeoutMs);
  ASSERT_TRUE(parts.ok()) << parts.error().message();
  EXPECT_FALSE(parts->memory_pool->enabled());
  EXPECT_FALSE(parts->reports[0].active);
  EXPECT_NE(parts->reports[0].reason.find("memory pool heap 1 of 2"), std::string::npos)
      << parts->reports[0].reason;
  EXPECT_TRUE(parts->reports[1].active && parts->reports[2].active);

  settings.graceful_fallback = false;
  const auto refused = create_optimizations(device(), settings, kTimeoutMs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
}

class Faults : public Optimized, public ::testing::WithParamInterface<FaultCase> {};

TEST_P(Faults, EachFailingCallEndsInAnError) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  config::GpuOptimizations settings = small_settings();
  settings.graceful_fallback = false;
  settings.enabled = GetParam().enabled;
  settings.blit_queue.use_shared_events = GetParam().shared_events;
  ASSERT_TRUE(device().make_kernel(axpb_spec()).ok());
  int failures = 0;
  for (std::uint64_t n = 1; n < 200; ++n) {
    fault::arm(n, GetParam().kinds, GetParam().result);
    const auto result = program(settings);
    if (!fault::fired()) {
      ASSERT_TRUE(result.ok()) << result.error().message();
      EXPECT_EQ(*result, 11.0f);
      break;
    }
    ++failures;
    ASSERT_FALSE(result.ok()) << "call " << n;
    const ErrorCode expected = GetParam().expected();
    EXPECT_EQ(result.error().code(), expected) << result.error().message();
  }
  EXPECT_GT(failures, 1);
}

INSTANTIATE_TEST_SUITE_P(All, Faults, all_fault_cases(),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(Optimized, AFaultDuringStartFallsBackPartByPart) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  for (std::uint64_t n = 1; n <= 4; ++n) {  // two heaps, two staging rings
    fault::arm(n, fault::Call::kAllocate);
    const auto parts = create_optimizations(device(), small_settings(), kTimeoutMs);
    ASSERT_TRUE(parts.ok()) << parts.error().message();
    EXPECT_TRUE(fault::fired());
    EXPECT_EQ(parts->reports[0].active, n > 2);
    EXPECT_EQ(parts->reports[1].active, n <= 2);
    EXPECT_TRUE(parts->reports[2].active);
    EXPECT_FALSE(parts->reports[n > 2 ? 1 : 0].reason.empty());
  }
}

// The blit queue makes a command pool and a semaphore for each direction, and the ring one of each. What a plain form
// needs is made after the failure.
TEST_F(Optimized, APartWithoutItsSemaphoresOrCommandPoolFallsBackAndTheRestRuns) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  constexpr std::uint64_t kOfBlitQueue = 4, kInAll = 6;
  for (std::uint64_t n = 1; n <= kInAll; ++n) {
    const std::size_t failing = n <= kOfBlitQueue ? 1 : 2;
    fault::arm(n, fault::Call::kCreate);
    {
      const auto parts = create_optimizations(device(), small_settings(), kTimeoutMs);
      ASSERT_TRUE(parts.ok()) << parts.error().message();
      EXPECT_TRUE(fault::fired()) << n;
      for (std::size_t part = 0; part < 3; ++part) {
        EXPECT_EQ(parts->reports[part].active, part != failing) << n;
        EXPECT_EQ(parts->reports[part].reason.empty(), part != failing) << n;
      }
    }
    fault::arm(n, fault::Call::kCreate);
    const auto result = program(small_settings());
    ASSERT_TRUE(result.ok()) << result.error().message();
    EXPECT_EQ(*result, 11.0f);

    config::GpuOptimizations strict = small_settings();
    strict.graceful_fallback = false;
    fault::arm(n, fault::Call::kCreate);
    const auto refused = create_optimizations(device(), strict, kTimeoutMs);
    ASSERT_FALSE(refused.ok()) << n;
    EXPECT_NE(refused.error().message().find(n <= kOfBlitQueue ? "blit queue" : "command ring"),
              std::string::npos)
        << refused.error().message();
  }
}

TEST_F(Optimized, AFallbackIsLoggedAtTheLevelThatIsAskedFor) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  config::GpuOptimizations settings = small_settings();
  for (const char* const level : {"warn", "off"}) {
    settings.fallback_log_level = level;
    fault::arm(1, fault::Call::kAllocate);
    const LogCapture log;
    ASSERT_TRUE(create_optimizations(device(), settings, kTimeoutMs).ok());
    EXPECT_EQ(log.count("gpu_optimizations.memory_pool could not start"),
              std::string(level) == "off" ? 0 : 1);
  }
}

TEST_F(Optimized, AWaitThatFailsNamesWhatItWaitedFor) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  for (const bool enabled : {true, false}) {
    config::GpuOptimizations settings = small_settings();
    settings.enabled = enabled;
    auto parts = create_optimizations(device(), settings, kTimeoutMs);
    ASSERT_TRUE(parts.ok());
    const Buffer buffer = *device().allocate(4096, Memory::kDeviceLocal, "target");
    const auto id =
        parts->command_ring->record([&](Recorder& recorder) { recorder.fill(slice(buffer), 0); });
    const auto ticket = parts->command_ring->submit(*id);
    ASSERT_TRUE(ticket.ok());
    fault::arm(1, fault::Call::kWait, VK_ERROR_DEVICE_LOST);
    const Status lost = parts->command_ring->wait(*ticket);
    EXPECT_EQ(lost.error().code(), ErrorCode::kDeviceLost);
    EXPECT_NE(lost.error().message().find("submission 1 of 1"), std::string::npos)
        << lost.error().message();
    parts->drain();  // before the buffer is destroyed
    if (!enabled) continue;
    ASSERT_TRUE(parts->blit_queue->upload(std::vector<std::byte>(64), slice(buffer)).ok());
    fault::arm(1, fault::Call::kWait, VK_TIMEOUT);
    const Status late = parts->blit_queue->finish_uploads();
    EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_NE(late.error().message().find("transfer 1 of 1: uploading to the device"),
              std::string::npos)
        << late.error().message();
    parts->drain();
  }
}

TEST_F(Optimized, FiguresAreOfEveryPartAndWithinTheirBounds) {
  const auto parts = create_optimizations(device(), small_settings(), kTimeoutMs);
  ASSERT_TRUE(parts.ok());
  const Buffer buffer = *device().allocate(4096, Memory::kDeviceLocal, "target");
  const auto lease = *parts->memory_pool->acquire(1000, "a lease");
  const auto id =
      parts->command_ring->record([&](Recorder& recorder) { recorder.fill(slice(buffer), 0); });
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(parts->blit_queue->upload(std::vector<std::byte>(64), slice(buffer)).ok());
    const CommandRing::After uploaded = parts->blit_queue->uploads_done();
    ASSERT_TRUE(parts->command_ring->wait(*parts->command_ring->submit(*id, {&uploaded, 1})).ok());
  }
  ASSERT_TRUE(parts->blit_queue->finish_uploads().ok());
  std::map<std::string, double> by_name;
  for (const FigureValue& figure : figures(*parts, device()))
    EXPECT_TRUE(by_name.emplace(figure.name, figure.value).second) << figure.name;
  EXPECT_EQ(by_name.at("pool_acquires"), 1);
  EXPECT_EQ(by_name.at("pool_hit_rate"), 1);
  EXPECT_EQ(by_name.at("pool_active_heaps"), 1);
  EXPECT_EQ(by_name.at("pool_largest_allocation_bytes"), 1024);
  EXPECT_EQ(by_name.at("blit_uploads"), 4);
  EXPECT_GT(by_name.at("gpu_busy_seconds"), 0);
  EXPECT_GE(by_name.at("gpu_idle_seconds"), 0);
  EXPECT_EQ(by_name.at("blit_average_upload_microseconds") > 0, times_copies());
  EXPECT_EQ(by_name.at("blit_pending"), 0);
  EXPECT_EQ(by_name.at("ring_submissions"), 4);
  EXPECT_EQ(by_name.at("ring_reuse_rate"), 0.75);
  EXPECT_EQ(by_name.at("ring_waits"), 4);
  for (const char* const share : {"pool_utilisation", "blit_overlap_ratio", "gpu_busy_share",
                                  "pool_internal_fragmentation", "pool_external_fragmentation"}) {
    EXPECT_GE(by_name.at(share), 0) << share;
    EXPECT_LE(by_name.at(share), 1) << share;
  }
}

}  // namespace
}  // namespace bulkhead::gpu

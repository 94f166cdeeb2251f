// A model on a device that fails: every allocation, submit and wait fails once, in loading and in steps. Each
// failure ends in an error, frees nothing that running work uses, and leaves nothing behind.
#include "failing_device.hpp"

#include "tests/support/gpu_fault_cases.hpp"

// LeakSanitizer calls this at the end of the process. What an abandoned device may use is leaked on
// purpose; everything else is checked.
extern "C" int __lsan_is_turned_off() {
  return bulkhead::forward::left_a_hung_device ? 1 : 0;
}

namespace bulkhead::forward {
namespace {

class EachCall : public FailingDevice, public ::testing::WithParamInterface<gpu::FaultCase> {};

TEST_P(EachCall, EndsInAnErrorOrChangesNothing) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  options_.gpu.enabled = GetParam().enabled;
  options_.gpu.blit_queue.use_shared_events = GetParam().shared_events;
  const auto right = load_and_run();
  ASSERT_TRUE(right.ok()) << right.error().message();
  ASSERT_EQ(right->size(), 3U);
  const ErrorCode expected = GetParam().expected();
  std::uint64_t n = 0, errors = 0;
  bool fired = true;
  while (fired && n < 1000) {
    fault::arm(++n, GetParam().kinds, GetParam().result);
    const auto rows = load_and_run();
    fired = fault::fired();
    if (!rows.ok()) {
      ++errors;
      ASSERT_TRUE(fired) << rows.error().message();
      ASSERT_EQ(rows.error().code(), expected) << "call " << n << ": " << rows.error().message();
    } else {
      ASSERT_EQ(*rows, *right) << "call " << n;
    }
    ASSERT_FALSE(device_->abandoned());
    ASSERT_EQ(device_->allocations_alive(), 0U) << "call " << n;
    ASSERT_EQ(device_->validation_errors(), 0U) << "call " << n;
  }
  EXPECT_FALSE(fired);
  EXPECT_GT(errors, 3U);
}

INSTANTIATE_TEST_SUITE_P(All, EachCall, gpu::all_fault_cases(),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(FailingDevice, APartThatCanNotStartIsDoneWithout) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  const auto right = load_and_run();
  ASSERT_TRUE(right.ok()) << right.error().message();
  options_.gpu.graceful_fallback = true;
  options_.gpu.fallback_log_level = "debug";
  const auto falls_back = [&](std::uint64_t n, fault::Call call, std::size_t part) {
    fault::arm(n, call);
    const auto executor = load();
    EXPECT_TRUE(fault::fired());
    ASSERT_TRUE(executor.ok()) << executor.error().message();
    const auto parts = (*executor)->optimizations();
    ASSERT_EQ(parts.size(), 3U);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].active, i != part) << parts[i].name;
      EXPECT_EQ(parts[i].reason.empty(), i != part) << parts[i].reason;
    }
    fault::arm(n, call);
    const auto rows = load_and_run();
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    EXPECT_EQ(*rows, *right);
  };
  for (std::uint64_t n = 1; n <= 3; ++n)  // a heap, two staging rings
    falls_back(n, fault::Call::kAllocate, n == 1 ? 0 : 1);
  for (std::uint64_t n = 1; n <= 6; ++n)  // a pool and a semaphore for either lane and the ring
    falls_back(n, fault::Call::kCreate, n <= 4 ? 1 : 2);
}

TEST_F(FailingDevice, AStepWithoutMemoryMayBeTriedAgain) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without BULKHEAD_FAULT_INJECTION";
  options_.gpu.memory_pool.enabled = false;  // each step allocates its scratch buffer
  const auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  const auto right = run_step(**executor, columns, {{0}});
  ASSERT_TRUE(right.ok());
  fault::arm(1, fault::Call::kAllocate);
  const auto failed = run_step(**executor, columns, {{0}});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kResourceExhausted);
  const auto again = run_step(**executor, columns, {{0}});
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(*again, *right);
}

// The host allocates rows of logits before the steps that need them, or returns an error.
TEST_F(FailingDevice, RowsOfLogitsAreThereBeforeTheirStep) {
  options_.engine.max_batch = 20;
  const auto executor = load();
  ASSERT_TRUE(executor.ok()) << executor.error().message();
  const auto allocations = [&] {
    for (const auto& each : (*executor)->counters()) {
      if (each.name == "device_allocations") return each.value;
    }
    return -1.0;
  };
  std::vector<Column> columns;
  std::vector<std::vector<PageIndex>> pages;
  for (std::uint32_t i = 0; i < 20; ++i) {
    columns.push_back({3 + i, 0, i, Output::kLogits});
    pages.push_back({i});
  }
  ASSERT_GE((*executor)->limits().total_pages, 20U);
  const std::vector<Column> few(columns.begin(), columns.begin() + 16);
  const std::vector<std::vector<PageIndex>> few_pages(pages.begin(), pages.begin() + 16);
  const auto right = run_step(**executor, few, few_pages);
  ASSERT_TRUE(right.ok()) << right.error().message();
  if (fault::kCompiledIn) {
    fault::arm(1, fault::Call::kAllocate);
    const Status refused = (*executor)->reserve_logits(20);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    const auto again = run_step(**executor, few, few_pages);
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(*again, *right);
  }
  const double before = allocations();
  const Status reserved = (*executor)->reserve_logits(20);
  ASSERT_TRUE(reserved.ok()) << reserved.error().message();
  const double after = allocations();
  EXPECT_GT(after, before);
  for (int step = 0; step < 3; ++step) {
    const auto rows = run_step(**executor, columns, pages);
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    ASSERT_EQ(rows->size(), 20U);
    EXPECT_TRUE(std::equal(right->begin(), right->end(), rows->begin()));
  }
  EXPECT_EQ(allocations(), after);
}

// Without the pool each step's memory is new. A driver reuses the memory that was freed last. If
// another allocation takes that memory, recorded addresses become invalid.
TEST_F(FailingDevice, AStepsMemoryMayLieElsewhereThanTheLastOnes) {
  options_.gpu.memory_pool.enabled = false;
  const std::vector<Column> columns{{5, 0, 0, Output::kLogits}};
  for (const bool ring : {false, true}) {
    options_.gpu.command_buffer_ring.enabled = ring;
    const auto executor = load();
    ASSERT_TRUE(executor.ok()) << executor.error().message();
    const auto planned = [&] {
      for (const auto& each : (*executor)->counters()) {
        if (each.name == "plan_seconds") return each.value;
      }
      return -1.0;
    };
    const auto right = run_step(**executor, columns, {{0}});
    ASSERT_TRUE(right.ok());
    const double before = planned();
    EXPECT_GT(before, 0);
    std::vector<gpu::Buffer> taken;
    for (int i = 0; i < 64; ++i) {
      auto buffer = device_->allocate(std::uint64_t{4096} << (i % 10), gpu::Memory::kDeviceLocal,
                                      "somebody else's");
      ASSERT_TRUE(buffer.ok()) << buffer.error().message();
      taken.push_back(*std::move(buffer));
      const auto again = run_step(**executor, columns, {{0}});
      ASSERT_TRUE(again.ok()) << again.error().message();
      EXPECT_EQ(*again, *right);
    }
    EXPECT_GT(planned(), before) << "it never lay elsewhere: nothing was tried";
  }
}

}  // namespace
}  // namespace bulkhead::forward

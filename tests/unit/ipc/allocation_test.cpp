// The way of a token allocates nothing: the test counts calls of malloc itself.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "tests/unit/ipc/harness.hpp"
#include "tests/unit/ipc/samples.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BULKHEAD_COUNTS_MALLOC 0  // the sanitizer's malloc must not be replaced
#else
#define BULKHEAD_COUNTS_MALLOC 1
#endif

namespace {
thread_local std::uint64_t allocations = 0;
}

#if BULKHEAD_COUNTS_MALLOC
// operator new calls these functions, too.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  ++allocations;
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
}
#endif

namespace bulkhead::ipc {
namespace {

using namespace test;

class AllocationTest : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Transport, AllocationTest, testing::Values(kMemfd, kPosix, kStdio),
                         [](const auto& test) { return test.param.name; });

TEST_P(AllocationTest, TokensCostNone) {
#if !BULKHEAD_COUNTS_MALLOC
  GTEST_SKIP() << "a sanitizer owns malloc in this build";
#endif
  const auto settings = settings_for(GetParam(), 64);
  ChannelPair pair = make_pair(settings);
  const auto worker = open_here(pair, settings);
  Channel& daemon = *pair.daemon;
  const TokenBatch batch = sample_batch(16, 1, false);
  const ToWorker ping = Ping{1};
  std::uint64_t tokens = 0;

  const std::uint64_t before = allocations;
  for (int i = 0; i < 10000; ++i) {
    if (i % 3 == 0) {  // asleep on some turns
      if (!*daemon.prepare_sleep()) std::abort();
    }
    if (!*try_send(*worker, batch)) std::abort();
    if (i % 3 == 0) daemon.finish_sleep();
    const auto record = daemon.try_receive();
    const auto visited = visit_tokens(
        *record, [&](const SequenceTokensView& view) { tokens += view.tokens.size(); });
    if (!visited.ok() || !*visited) std::abort();
    daemon.release();
    if (!*try_send(daemon, ping)) std::abort();
    if (worker->try_receive()->empty()) std::abort();
    worker->release();
  }
  const std::uint64_t during = allocations - before;

  EXPECT_EQ(during, 0U);
  EXPECT_EQ(tokens, 160000U);
}

TEST_P(AllocationTest, CounterCounts) {
#if !BULKHEAD_COUNTS_MALLOC
  GTEST_SKIP() << "a sanitizer owns malloc in this build";
#endif
  const std::uint64_t before = allocations;
  auto* volatile leaked = new int(1);
  delete leaked;
  EXPECT_EQ(allocations - before, 1U);
}

}  // namespace
}  // namespace bulkhead::ipc

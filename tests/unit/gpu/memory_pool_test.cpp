// The memory pool compared with a model: leases never overlap, and nothing is allocated while the heaps have room.
#include "gpu/memory_pool.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/buddy_heap.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

TEST(BuddyHeap, RandomUseKeepsBlocksApartAndLosesNone) {
  std::mt19937 random(7);
  constexpr std::uint64_t kBytes = 3 * kMib + 256;  // not a power of two
  BuddyHeap heap(kBytes);
  std::map<std::uint64_t, std::uint64_t> live;  // offset -> block
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const std::uint64_t block =
          BuddyHeap::block_bytes(1 + random() % (1u << (8 + random() % 12)));
      const auto offset = heap.take(block);
      if (!offset) continue;
      ASSERT_EQ(*offset % block, 0u);
      ASSERT_LE(*offset + block, kBytes);
      const auto next = live.lower_bound(*offset);
      ASSERT_TRUE(next == live.end() || *offset + block <= next->first);
      ASSERT_TRUE(next == live.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= *offset);
      live.emplace(*offset, block);
    } else {
      const auto victim =
          std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      heap.give_back(victim->first, victim->second);
      live.erase(victim);
    }
  }
  for (const auto& [offset, block] : live)
    heap.give_back(offset, block);
  // All blocks are joined again to 2 MiB, 1 MiB and 256 bytes, and nothing more.
  EXPECT_TRUE(heap.take(2 * kMib) && heap.take(kMib) && heap.take(256));
  EXPECT_FALSE(heap.take(256));
}

// Compared with a map of every 256 bytes: a request is refused only if each place where it could be is taken, at
// least in part. That is the bound on fragmentation in buddy_heap.hpp.
TEST(BuddyHeap, RefusesOnlyWhatHasNoFreePlaceAtAll) {
  std::mt19937 random(5);
  constexpr std::uint64_t kUnits = 1024;
  BuddyHeap heap(kUnits * 256);
  std::vector<bool> taken(kUnits);
  struct Live {
    std::uint64_t offset, block;
  };
  std::vector<Live> live;
  double worst = 0;
  int refused = 0;
  for (int step = 0; step < 30000; ++step) {
    // Fills for long and empties for long, so that the heap becomes full and empty.
    const bool fill = (step / 400) % 2 == 0 ? random() % 4 != 0 : random() % 4 == 0;
    if (fill || live.empty()) {
      const std::uint64_t block = std::uint64_t{256} << (random() % 8);
      const auto offset = heap.take(block);
      const std::uint64_t units = block / 256;
      std::uint64_t free_places = 0, occupants = 0;
      for (std::uint64_t place = 0; place < kUnits; place += units) {
        const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(place);
        free_places += std::none_of(begin, begin + static_cast<std::ptrdiff_t>(units),
                                    [](bool unit) { return unit; });
      }
      for (const Live& one : live)
        occupants += std::max<std::uint64_t>(one.block / block, 1);
      ASSERT_EQ(offset.has_value(), free_places > 0) << "block " << block;
      if (occupants < kUnits / units) {
        ASSERT_TRUE(offset.has_value());
      }
      if (!offset) {
        ++refused;
        continue;
      }
      for (std::uint64_t unit = 0; unit < units; ++unit)
        taken[*offset / 256 + unit] = true;
      live.push_back({*offset, block});
    } else {
      std::swap(live[random() % live.size()], live.back());
      const Live victim = live.back();
      live.pop_back();
      heap.give_back(victim.offset, victim.block);
      for (std::uint64_t unit = 0; unit < victim.block / 256; ++unit)
        taken[victim.offset / 256 + unit] = false;
    }
    const auto free = static_cast<std::uint64_t>(std::count(taken.begin(), taken.end(), false));
    ASSERT_EQ(heap.free_bytes(), free * 256);
    if (free > 0) {
      worst = std::max(worst, 1 - static_cast<double>(heap.largest_free()) /
                                      static_cast<double>(heap.free_bytes()));
    }
  }
  EXPECT_GT(refused, 100);
  std::printf("peak external fragmentation %.1f %%, %d requests refused\n", 100 * worst, refused);
}

config::MemoryPoolSettings small_pool() {
  config::MemoryPoolSettings settings;
  settings.heap_size_mb = 4;
  settings.num_heaps = 2;
  settings.warmup_sizes = {2, 1};
  return settings;
}

class Pool : public GpuTest {};

TEST_F(Pool, RandomLeasesDoNotOverlapAndAllocateNothing) {
  const auto pool = *MemoryPool::create(device(), small_pool(), true);
  const std::uint64_t allocations = device().allocation_count();
  std::mt19937 random(11);
  std::vector<MemoryPool::Lease> leases;
  std::uint64_t in_use = 0;
  for (int step = 0; step < 3000; ++step) {
    // At most a quarter of the heaps is in use, at 64 KiB for each block, so there is always room.
    if (leases.size() < 32 && random() % 2 == 0) {
      const std::uint64_t bytes = 1 + random() % 65536;
      auto lease = pool->acquire(bytes, "step");
      ASSERT_TRUE(lease.ok()) << lease.error().message();
      const BufferSlice& got = lease->slice();
      ASSERT_GE(got.bytes, bytes);
      ASSERT_EQ(got.bytes % 256, 0u);
      ASSERT_EQ(got.offset % 256, 0u);
      for (const MemoryPool::Lease& other : leases) {
        const BufferSlice& taken = other.slice();
        ASSERT_TRUE(got.address + got.bytes <= taken.address ||
                    taken.address + taken.bytes <= got.address);
      }
      in_use += BuddyHeap::block_bytes(bytes);
      leases.push_back(*std::move(lease));
    } else if (!leases.empty()) {
      std::swap(leases[random() % leases.size()], leases.back());
      in_use -= BuddyHeap::block_bytes(leases.back().slice().bytes);
      leases.pop_back();
    }
    ASSERT_EQ(pool->stats().bytes_in_use, in_use);
  }
  EXPECT_EQ(device().allocation_count(), allocations);
  EXPECT_EQ(pool->stats().fallback_allocations, 0u);
  EXPECT_EQ(pool->stats().bytes_reserved, 8 * kMib);
  leases.clear();
  EXPECT_EQ(pool->stats().acquires, pool->stats().releases);
  EXPECT_EQ(pool->stats().bytes_in_use, 0u);
}

// Sizes over five orders of magnitude; the heaps become full again and again.
TEST_F(Pool, StressKeepsFragmentationWithinTheBuddyBound) {
  config::MemoryPoolSettings settings = small_pool();
  settings.log_exhaustion = false;
  const auto pool = *MemoryPool::create(device(), settings, true);
  std::mt19937 random(23);
  std::vector<MemoryPool::Lease> leases;
  std::map<std::uint64_t, std::uint64_t> blocks_alive;  // in the heaps: block size and how many such blocks
  double worst_internal = 0, worst_external = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool fill = (step / 500) % 2 == 0 ? random() % 4 != 0 : random() % 4 == 0;
    if (fill || leases.empty()) {
      const std::uint64_t bytes = 1 + random() % (std::uint64_t{256} << (random() % 12));
      const std::uint64_t block = BuddyHeap::block_bytes(bytes);
      const std::uint64_t before = pool->stats().fallback_allocations;
      auto lease = pool->acquire(bytes, "stress");
      ASSERT_TRUE(lease.ok()) << lease.error().message();
      if (pool->stats().fallback_allocations == before) {
        ++blocks_alive[block];
      } else {
        // There is no room, so there must be as many blocks as places for this one.
        std::uint64_t occupants = 0;
        for (const auto& [other, count] : blocks_alive)
          occupants += count * std::max<std::uint64_t>(other / block, 1);
        ASSERT_GE(occupants, 8 * kMib / block);
      }
      leases.push_back(*std::move(lease));
    } else {
      std::swap(leases[random() % leases.size()], leases.back());
      const std::uint64_t before = pool->stats().heap_bytes_in_use;
      leases.pop_back();
      const std::uint64_t block = before - pool->stats().heap_bytes_in_use;
      if (block > 0) --blocks_alive[block];  // otherwise it was a fallback allocation
    }
    const MemoryPoolStats stats = pool->stats();
    // Blocks are powers of two and leases multiples of 256 bytes: less than half is waste.
    ASSERT_LT(stats.internal_fragmentation(), 0.5);
    ASSERT_LE(stats.heap_bytes_in_use, stats.heap_bytes);
    ASSERT_EQ(stats.acquires, stats.hits + stats.fallback_allocations);
    worst_internal = std::max(worst_internal, stats.internal_fragmentation());
    worst_external = std::max(worst_external, stats.external_fragmentation());
  }
  const MemoryPoolStats stats = pool->stats();
  EXPECT_GT(stats.fallback_allocations, 10u);
  EXPECT_EQ(stats.heaps, 2u);
  EXPECT_LE(stats.largest_allocation, kMib / 2);
  EXPECT_GT(stats.nanoseconds, 0u);
  std::printf(
      "peak fragmentation: internal %.1f %%, external %.1f %%; hit rate %.2f %%, %.2f us an "
      "acquire\n",
      100 * worst_internal, 100 * worst_external, 100 * stats.hit_rate(),
      stats.average_acquire_us());
  leases.clear();
  EXPECT_EQ(pool->stats().active_heaps, 0u);
  EXPECT_EQ(pool->stats().bytes_requested, 0u);
  EXPECT_EQ(pool->stats().utilisation(), 0);
}

TEST_F(Pool, ManyThreadsShareItWithoutSharingALease) {
  config::MemoryPoolSettings settings = small_pool();
  settings.log_exhaustion = false;
  for (const bool enabled : {true, false}) {
    const auto pool = *MemoryPool::create(device(), settings, enabled);
    std::mutex mutex;
    std::map<std::uint64_t, std::uint64_t> alive;  // address -> end
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      std::vector<MemoryPool::Lease> mine;
      for (int step = 0; step < (enabled ? 3000 : 100); ++step) {
        if (mine.size() < 16 && random() % 2 == 0) {
          auto lease = pool->acquire(1 + random() % 100000, "thread");
          ASSERT_TRUE(lease.ok());
          const BufferSlice& slice = lease->slice();
          const std::lock_guard lock(mutex);
          const auto next = alive.lower_bound(slice.address);
          ASSERT_TRUE(next == alive.end() || slice.address + slice.bytes <= next->first);
          ASSERT_TRUE(next == alive.begin() || std::prev(next)->second <= slice.address);
          alive.emplace(slice.address, slice.address + slice.bytes);
          mine.push_back(*std::move(lease));
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          const std::lock_guard lock(mutex);
          alive.erase(mine.back().slice().address);
          mine.pop_back();
        }
      }
      const std::lock_guard lock(mutex);
      for (const MemoryPool::Lease& lease : mine)
        alive.erase(lease.slice().address);
    };
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < 4; ++i)
        threads.emplace_back(work, i + 1);
    }
    const MemoryPoolStats stats = pool->stats();
    EXPECT_EQ(stats.acquires, stats.releases);
    EXPECT_EQ(stats.bytes_in_use, 0u);
    EXPECT_EQ(stats.acquires, stats.hits + stats.fallback_allocations);
  }
}

TEST_F(Pool, SaysWhichPartsOfItAreInUse) {
  const auto pool = *MemoryPool::create(device(), small_pool(), true);
  EXPECT_EQ(pool->stats().hit_rate(), 1);  // nothing was requested, so nothing was missed
  EXPECT_EQ(pool->stats().active_heaps, 0u);
  const auto first = *pool->acquire(3 * kMib, "a whole heap");
  EXPECT_EQ(pool->stats().active_heaps, 1u);
  EXPECT_EQ(pool->stats().utilisation(), 0.5);
  EXPECT_EQ(pool->stats().internal_fragmentation(), 0.25);
  const auto second = *pool->acquire(3 * kMib, "another");
  EXPECT_EQ(pool->stats().active_heaps, 2u);
  EXPECT_EQ(pool->stats().largest_free_block, 0u);
  EXPECT_EQ(pool->stats().largest_allocation, 3 * kMib);
  EXPECT_EQ(pool->stats().hit_rate(), 1);
}

TEST_F(Pool, CountsNothingButFallbacksWhereItShallNot) {
  config::MemoryPoolSettings settings = small_pool();
  settings.track_statistics = false;
  settings.log_exhaustion = false;
  const auto pool = *MemoryPool::create(device(), settings, true);
  const auto lease = *pool->acquire(5 * kMib, "larger than a heap");
  const MemoryPoolStats stats = pool->stats();
  EXPECT_EQ(stats.fallback_allocations, 1u);
  EXPECT_EQ(stats.acquires, 0u);
  EXPECT_EQ(stats.bytes_in_use, 0u);
  EXPECT_EQ(stats.heaps, 0u);
}

TEST_F(Pool, LogsEachExhaustionWhereItShall) {
  for (const bool wanted : {true, false}) {
    config::MemoryPoolSettings settings = small_pool();
    settings.log_exhaustion = wanted;
    const auto pool = *MemoryPool::create(device(), settings, true);
    const LogCapture log;
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(pool->acquire(5 * kMib, "a large one").ok());
    EXPECT_EQ(log.count("no room for a large one"), wanted ? 3 : 0);
    EXPECT_EQ(log.count("memory_pool.heap_size_mb=8 would hold it"), wanted ? 3 : 0);
  }
}

TEST_F(Pool, SaysHowManyHeapsWouldSuffice) {
  const config::MemoryPoolSettings settings = small_pool();
  const auto pool = *MemoryPool::create(device(), settings, true);
  const LogCapture log;
  std::vector<MemoryPool::Lease> leases;
  for (std::uint32_t i = 0; i < settings.num_heaps + 2; ++i)
    leases.push_back(*pool->acquire(settings.heap_size_mb * kMib, "one more"));
  for (std::uint32_t more = 1; more <= 2; ++more) {
    const std::string words =
        "memory_pool.num_heaps=" + std::to_string(settings.num_heaps + more) + " would hold it";
    EXPECT_EQ(log.count(words), 1) << words;
  }
}

TEST_F(Pool, LeasesHoldWhatTheDeviceWritesThere) {
  const auto pool = *MemoryPool::create(device(), small_pool(), true);
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const auto first = *pool->acquire(1000, "first");
  const auto second = *pool->acquire(1000, "second");
  const Buffer back = floats(std::vector<float>(500, 0));
  const auto id = ring->record([&](Recorder& recorder) {
    recorder.fill(first.slice(), 0x3f800000);   // 1.0f
    recorder.fill(second.slice(), 0x40000000);  // 2.0f
    recorder.barrier();
    BufferSlice from = first.slice();
    from.bytes = 1000;
    recorder.copy(from, slice(back, 0, 1000));
    from = second.slice();
    from.bytes = 1000;
    recorder.copy(from, slice(back, 1000, 1000));
  });
  ASSERT_TRUE(ring->wait(*ring->submit(*id)).ok());
  const std::vector<float> values = read_floats(slice(back));
  EXPECT_EQ(values.front(), 1.0f);
  EXPECT_EQ(values[249], 1.0f);
  EXPECT_EQ(values[250], 2.0f);
  EXPECT_EQ(values.back(), 2.0f);
}

TEST_F(Pool, PastTheHeapsItFallsBackAndCounts) {
  config::MemoryPoolSettings settings = small_pool();
  settings.log_exhaustion = false;
  const auto pool = *MemoryPool::create(device(), settings, true);
  const std::uint64_t allocations = device().allocation_count();
  std::vector<MemoryPool::Lease> leases;
  // These take both heaps entirely, because warm blocks make room for others.
  for (int i = 0; i < 8; ++i)
    leases.push_back(*pool->acquire(kMib, "whole"));
  EXPECT_EQ(pool->stats().fallback_allocations, 0u);
  EXPECT_EQ(device().allocation_count(), allocations);
  leases.push_back(*pool->acquire(kMib, "past"));
  leases.push_back(*pool->acquire(5 * kMib, "larger than a heap"));
  EXPECT_EQ(pool->stats().fallback_allocations, 2u);
  EXPECT_EQ(device().allocation_count(), allocations + 2);
  EXPECT_EQ(pool->stats().bytes_reserved, 14 * kMib);
  leases.clear();
  EXPECT_EQ(pool->stats().bytes_reserved, 8 * kMib);
  EXPECT_TRUE(pool->acquire(4 * kMib, "whole heap").ok());
  EXPECT_EQ(pool->stats().fallback_allocations, 2u);
}

TEST_F(Pool, SwitchedOffEveryLeaseIsAnAllocation) {
  const auto pool = *MemoryPool::create(device(), small_pool(), false);
  const std::uint64_t allocations = device().allocation_count();
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(pool->acquire(1000, "step").ok());
  EXPECT_EQ(device().allocation_count(), allocations + 5);
  EXPECT_EQ(pool->stats().fallback_allocations, 5u);
  EXPECT_EQ(pool->stats().bytes_reserved, 0u);
  EXPECT_FALSE(pool->enabled());
  EXPECT_EQ(pool->acquire(0, "nothing").error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace bulkhead::gpu

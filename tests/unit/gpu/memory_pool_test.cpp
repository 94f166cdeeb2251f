// The memory pool against a model: leases never overlap, nothing is allocated while the heaps have
// room.
#include "gpu/memory_pool.hpp"

#include <map>
#include <optional>
#include <random>
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
  constexpr std::uint64_t kBytes = 3 * kMib + 256;  // no power of two
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
  // All of it joined again: 2 MiB, 1 MiB, 256 bytes, and not one more.
  EXPECT_TRUE(heap.take(2 * kMib) && heap.take(kMib) && heap.take(256));
  EXPECT_FALSE(heap.take(256));
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
    // At most a quarter of the heaps in use at 64 KiB a block: there is always room.
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
  // Both heaps entirely: warm blocks do not keep room from those who need it.
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

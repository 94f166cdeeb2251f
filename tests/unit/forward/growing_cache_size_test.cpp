// With how many pages and slabs a KV cache begins, and how far it may grow.
#include <cstdint>

#include <gtest/gtest.h>

#include "config/settings.hpp"
#include "gpu/device.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {
namespace {

// The device has 140 GiB, of which 130 are free, and the model's context takes 3 GiB.
struct Planned {
  CacheRoom room{std::uint64_t{130} << 30, gpu::DeviceKind::kDiscrete, "large",
                 std::uint64_t{140} << 30, std::uint64_t{4} << 30};
  model::ModelGraph graph;
  config::EngineSettings engine;
  Planned() {
    graph.context = 131072;
    graph.makes_logits = true;
    graph.kv.resize(6);
    for (model::KvStore& store : graph.kv)
      store = {.heads = 8, .head_size = 128};
    engine.max_batch = 256;
  }
  static constexpr std::uint64_t kPage = 6 * 2 * 8 * 32 * 128 * 2;  // bytes
  std::uint64_t states = 0;
  // Layer `store` attends to its own store.
  void attend(std::uint32_t store, std::uint32_t window) {
    model::Attend attend;
    attend.kv = store;
    attend.rules.window = window;
    graph.layers.emplace_back().operations.emplace_back(attend);
  }
  CacheSize size() const {
    MemoryNeed need;
    need.kv = kv_need(graph, kv_format(engine.kv_type));
    need.states = states;
    const auto size = plan_cache(room, graph, engine, 0, 2048, need);
    EXPECT_TRUE(size.ok()) << size.error().message();
    return size.ok() ? *size : CacheSize{};
  }
};

TEST(GrowingCacheSize, OnAGpuBeginsWithAContextAndGrowsToWhatIsFree) {
  const CacheSize size = Planned().size();
  ASSERT_TRUE(size.grows());
  EXPECT_EQ(size.context, 131072U);
  EXPECT_GE(size.first_pages, 4096U) << "a whole context";
  EXPECT_LE(size.first_pages * Planned::kPage, std::uint64_t{4} << 30);
  EXPECT_EQ(size.eager_pages, 16384U) << "four contexts, as a cache that does not grow";
  EXPECT_GT((size.pages + 1) * Planned::kPage, std::uint64_t{120} << 30);
  EXPECT_LE((size.pages + 1) * Planned::kPage, std::uint64_t{123} << 30);
  EXPECT_EQ((size.pages + 1) % size.slab_pages, 0U);
  EXPECT_EQ((size.first_pages + 1) % size.slab_pages, 0U);
  EXPECT_LE((size.pages + 1) / size.slab_pages, 128U);
  EXPECT_GE(size.slab_pages * Planned::kPage, std::uint64_t{512} << 20);
  EXPECT_EQ(size.fixed().pages, 16384U);
}

TEST(GrowingCacheSize, BeginsWithAContextHoweverLargePagesAre) {
  Planned planned;
  planned.room.free_bytes = std::uint64_t{60} << 30;
  planned.graph.context = 16384;
  planned.graph.kv.assign(40, {.heads = 64, .head_size = 128});
  const CacheSize size = planned.size();
  ASSERT_TRUE(size.grows());
  EXPECT_GE(size.first_pages, 512U) << "a whole context";
}

TEST(GrowingCacheSize, BesideOthersGrowsToTheSizeOfAFixedCache) {
  Planned planned;
  const CacheSize alone = planned.size();
  planned.room.beside_others = true;
  const CacheSize size = planned.size();
  ASSERT_TRUE(size.grows());
  EXPECT_GE(size.first_pages, 4096U) << "a whole context";
  EXPECT_LE(size.pages, alone.eager_pages);
  EXPECT_GT(size.pages, alone.eager_pages - size.slab_pages);
  planned.engine.kv_cache_max_mb = 65536;
  EXPECT_GT(planned.size().pages, alone.eager_pages) << "as the setting says";
}

// Two thirds of the layers have a window of 1,024 positions: 37 pages.
TEST(GrowingCacheSize, OfAModelWithWindowsBeginsWithThoseOfOneSequence) {
  Planned planned;
  for (std::uint32_t i = 0; i < planned.graph.kv.size(); ++i)
    planned.attend(i, i % 3 == 0 ? 0 : 1024);
  const CacheSize size = planned.size();
  ASSERT_TRUE(size.grows());
  EXPECT_TRUE(size.slabs_fit());
  constexpr std::uint64_t kFull = Planned::kPage / 3, kWindow = Planned::kPage / 3 * 2;
  EXPECT_GE(size.first_pages, 4096U) << "a whole context";
  EXPECT_GE(size.window_first_pages, 37U + 2048 / 32);
  EXPECT_LT(size.window_first_pages * kWindow, std::uint64_t{3} << 30);
  EXPECT_GT(size.window_eager_pages, size.window_first_pages);
  const std::uint64_t first =
      (size.first_pages + 1) * kFull + (size.window_first_pages + 1) * kWindow;
  const std::uint64_t slab = std::max(size.slab_pages * kFull, size.window_slab_pages * kWindow);
  EXPECT_LE(first + size.slabs() * slab, std::uint64_t{123} << 30);
  EXPECT_GT(first + size.slabs() * slab, std::uint64_t{120} << 30);
  EXPECT_LE(size.window_slabs(), size.slabs());
  EXPECT_GE(size.window_pages, 256 * 37U) << "all sequences can go on";
  EXPECT_LE(size.slabs(), 128U);
}

TEST(GrowingCacheSize, OfAModelWithStatesLeavesThemTheirMemory) {
  Planned planned;
  const CacheSize without = planned.size();
  planned.graph.states.resize(1);
  planned.states = std::uint64_t{9} << 30;
  const CacheSize size = planned.size();
  ASSERT_TRUE(size.grows());
  EXPECT_NEAR((without.pages - size.pages) * Planned::kPage, std::uint64_t{9} << 30,
              std::uint64_t{1} << 30);
}

TEST(GrowingCacheSize, BeginsAndEndsWhereSettingsSay) {
  Planned planned;
  planned.engine.kv_cache_mb = 2048;
  EXPECT_FALSE(planned.size().grows());
  planned.engine.kv_cache_max_mb = 1024;
  EXPECT_FALSE(planned.size().grows());
  planned.engine.kv_cache_max_mb = 8192;
  const CacheSize size = planned.size();
  ASSERT_TRUE(size.grows());
  constexpr double kMib = 1 << 20;
  EXPECT_NEAR(size.slab_pages * Planned::kPage / kMib, 512, 1);
  EXPECT_NEAR((size.first_pages + 1) * Planned::kPage / kMib, 2048, 4);
  EXPECT_LE((size.pages + 1) * Planned::kPage, std::uint64_t{8192} << 20);
  EXPECT_LE(size.context, size.first_pages * 32);
}

TEST(GrowingCacheSize, StaysFixedWhereNoNumberCouldLeadToAPage) {
  Planned planned;
  planned.graph.kv.back().heads = 4;
  EXPECT_FALSE(planned.size().grows()) << "pages of different sizes";
  planned.graph.kv.back().heads = 8;
  planned.graph.makes_logits = false;
  EXPECT_FALSE(planned.size().grows()) << "a stage of a split model grows with the others";
  planned.graph.makes_logits = true;
  planned.room.kind = gpu::DeviceKind::kCpu;
  EXPECT_FALSE(planned.size().grows());
  planned.engine.kv_cache_max_mb = 16384;
  EXPECT_TRUE(planned.size().grows());
  planned.room.kind = gpu::DeviceKind::kDiscrete;
  planned.engine.kv_cache_max_mb = 0;
  EXPECT_TRUE(planned.size().grows());
}

// Slabs lie at whole strides from each other, whatever a page's size is, so a context may lie in several of them.
TEST(GrowingCacheSize, OfPagesOfAnySizeBeginsWithSeveralSlabs) {
  Planned planned;
  planned.room.max_allocation_bytes = std::uint64_t{1} << 30;
  for (const std::uint32_t heads : {3U, 5U, 16U}) {
    for (model::KvStore& store : planned.graph.kv)
      store.heads = heads;
    const CacheSize size = planned.size();
    ASSERT_TRUE(size.grows()) << heads;
    EXPECT_GE(size.first_pages, 4096U) << "a whole context";
    EXPECT_GT(size.first_slabs(), 1U) << heads;
  }
}

}  // namespace
}  // namespace bulkhead::forward

// How much memory saved states get on devices of different sizes, and that they take none from KV pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/forward/cache_size.hpp"
#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

struct StatefulModel {
  std::uint64_t weights = 20 * kGibibyte;
  model::ModelGraph graph;
  config::EngineSettings engine;

  // 30 layers with a state of 2.1 MiB each, and 10 layers with 20 KiB of keys and values for each token.
  StatefulModel() {
    graph.context = 262144;
    graph.makes_logits = true;
    graph.kv.resize(10);
    for (model::KvStore& store : graph.kv)
      store = {.heads = 2, .head_size = 256};
    graph.states.resize(30, model::StateStore{(2 * 1024 + 96) * 256});
    engine.max_batch = 65;
  }
  void make_states_small() {
    graph.states.assign(10, model::StateStore{4096});
    engine.max_batch = 256;
  }

  std::uint64_t state() const { return graph.states.size() * state_bytes(graph.states.front()); }
  std::uint32_t slots(const DeviceSize& device) const {
    config::EngineSettings sized = engine;
    sized.state_cache_mb = usual_state_cache_mb(engine, weights, graph, device);
    return state_slots(graph, sized);
  }
  // Returns the slots that neither running sequences nor drafts have.
  std::uint32_t saved(const DeviceSize& device) const {
    return slots(device) - engine.max_batch - most_drafts(graph, engine);
  }
  std::uint32_t saved(std::uint64_t gibibytes) const {
    return saved({.memory_bytes = gibibytes * kGibibyte, .alone = true});
  }
  std::uint32_t anywhere() const { return static_cast<std::uint32_t>(2 * kGibibyte / state()); }
};

TEST(SavedStates, TakeMoreThanTwoGibibytesOfALargeGpu) {
  StatefulModel model;
  EXPECT_EQ(model.anywhere(), 32U);
  EXPECT_EQ(model.saved(140), 130U) << "two for each sequence";
  EXPECT_EQ(model.saved(80), 5 * kGibibyte / model.state()) << "a sixteenth of the memory";
  EXPECT_EQ(model.saved(24), 32U);
  EXPECT_EQ(model.saved(8), 32U);
}

TEST(SavedStates, SmallOnesHaveRoomForTwoOfEachSequenceEverywhere) {
  StatefulModel model;
  model.make_states_small();
  for (const std::uint64_t gibibytes : {8, 24, 80, 140}) {
    EXPECT_EQ(model.saved(gibibytes), 512U);
    const DeviceSize device{.memory_bytes = gibibytes * kGibibyte, .alone = true};
    EXPECT_EQ(usual_state_cache_mb(model.engine, model.weights, model.graph, device), 0U);
  }
}

TEST(SavedStates, TakeNoMoreWhereOthersNeedTheMemory) {
  StatefulModel model;
  EXPECT_EQ(model.saved({}), 32U) << "an unknown device";
  EXPECT_EQ(model.saved({.memory_bytes = 140 * kGibibyte}), 32U) << "beside others";
  gpu::DeviceInfo info;
  info.device_memory_bytes = 140 * kGibibyte;
  info.kind = gpu::DeviceKind::kCpu;
  EXPECT_EQ(model.saved(size_of(info)), 32U) << "the host's memory";
  EXPECT_TRUE(size_of(info).cpu);
  info.kind = gpu::DeviceKind::kIntegrated;
  EXPECT_EQ(model.saved(size_of(info)), 32U) << "the host's memory";
  info.kind = gpu::DeviceKind::kDiscrete;
  EXPECT_EQ(model.saved(size_of(info)), 130U);
}

TEST(SavedStates, FollowSettings) {
  StatefulModel model;
  model.engine.state_cache_mb = 512;
  EXPECT_EQ(model.saved(140), 512 * (kGibibyte / 1024) / model.state());
  model.engine.state_cache_mb = 0;
  model.engine.prefix_cache = false;
  EXPECT_EQ(model.saved(140), 0U);
  model.engine.prefix_cache = true;
  model.engine.kv_cache_mb = 110 * 1024;
  EXPECT_EQ(model.saved(140), 32U) << "the pages that were asked for leave no more";
}

// Other programs may have taken memory since, of which the sizes know nothing.
TEST(SavedStates, AreNamedWhereAModelDoesNotFit) {
  const StatefulModel model;
  CacheRoom room;
  room.memory_bytes = 140 * kGibibyte;
  room.free_bytes = 8 * kGibibyte;
  MemoryNeed need;
  need.kv = kv_need(model.graph, kv_format(model.engine.kv_type));
  need.states = 9 * kGibibyte;
  const auto refused = plan_cache(room, model.graph, model.engine, 0, 2048, need);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("set engine.state_cache_mb or"));
}

TEST(SavedStates, InspectSaysTheMost) {
  StatefulModel model;
  EXPECT_EQ(most_states_need(model.graph, model.engine), (65 + 8 + 130 + 1) * model.state());
  model.make_states_small();
  EXPECT_EQ(most_states_need(model.graph, model.engine), (256 + 15 + 512 + 1) * model.state());
  model.graph.states.clear();
  EXPECT_EQ(most_states_need(model.graph, model.engine), 0U);
}

// What a device is planned to hold before the cache grows: nothing if the model does not fit.
struct PlannedCache {
  std::uint32_t pages = 0, context = 0;
  bool operator==(const PlannedCache&) const = default;
};
PlannedCache planned(const StatefulModel& model, std::uint64_t gibibytes, const DeviceSize& size,
                     std::uint32_t asked_context) {
  constexpr std::uint32_t kColumnsAhead = 2 * 2048;
  CacheRoom room;
  room.memory_bytes = gibibytes * kGibibyte;
  room.free_bytes = room.memory_bytes / 64 * 63;
  MemoryNeed need;
  need.weights = model.weights / 16 * 17;  // as matrix units need them
  need.transient = kGibibyte / 2 * 3;
  need.kv = kv_need(model.graph, kv_format(model.engine.kv_type));
  need.states = (std::uint64_t{model.slots(size)} + 1) * model.state();
  const auto cache =
      plan_cache(room, model.graph, model.engine, asked_context, kColumnsAhead, need);
  return cache.ok() ? PlannedCache{cache->fixed().pages, cache->context} : PlannedCache{};
}

TEST(SavedStates, NeverTakePagesOrRoomForTheModel) {
  for (const std::uint32_t kv_cache_mb : {0, 1024, 30 * 1024}) {
    for (const std::uint64_t gibibytes : {8, 16, 24, 32, 36, 40, 48, 64, 80, 96, 140, 192}) {
      for (std::uint64_t weights = 1; weights < gibibytes; ++weights) {
        StatefulModel model;
        model.engine.kv_cache_mb = kv_cache_mb;
        model.weights = weights * kGibibyte;
        const DeviceSize alone{.memory_bytes = gibibytes * kGibibyte, .alone = true};
        for (const std::uint32_t context : {0U, model.graph.context}) {
          EXPECT_EQ(planned(model, gibibytes, alone, context),
                    planned(model, gibibytes, {}, context))
              << gibibytes << " GiB, weights of " << weights << ", KV cache of " << kv_cache_mb
              << " MiB, context " << context;
        }
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward

// The memory that keys and values of models with sliding windows take.
#include "worker/forward/kv_windows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transformer_harness.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

struct Row {
  const char* model;
  std::uint64_t per_token, per_window_token;  // bytes, of halves
  std::uint32_t window;
};

TEST(KvWindows, FullLayersKeepEveryPositionAndTheOthersAWindow) {
  constexpr std::uint64_t kHeads = 2, kBoth = 2, kHalf = 2;
  constexpr std::uint64_t kOfLayer = kHeads * 64 * kBoth * kHalf;
  const Row rows[] = {
      {"tiny-qwen2-Q8_0", 2 * kOfLayer, 0, 0},
      {"tiny-gemma3-Q4_K_M", 1 * kOfLayer, 6 * kOfLayer, 64},
      {"tiny-gemma2-Q5_K_M", 2 * kOfLayer, 2 * kOfLayer, 48},
      {"tiny-gpt-oss-MXFP4", 2 * kOfLayer, 2 * kOfLayer, 32},
      // The model has one full layer of one head, and two windowed layers whose heads are half as
      // large.
      {"tiny-gemma4-Q4_K_M", kOfLayer / 2, 2 * kOfLayer / 2, 64},
  };
  for (const Row& row : rows) {
    if (!std::filesystem::exists(model_file(row.model))) continue;
    SCOPED_TRACE(row.model);
    const auto file = model::GgufFile::open(model_file(row.model).string());
    ASSERT_TRUE(file.ok()) << file.error().message();
    auto graph = model::read_model(**file);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    const KvNeed need = kv_need(*graph, gpu::kernels::KvFormat::kF16);
    EXPECT_EQ(need.per_token, row.per_token);
    EXPECT_EQ(need.per_window_token, row.per_window_token);
    EXPECT_EQ(need.window, row.window);
    EXPECT_EQ(need.bytes(128), 128 * (row.per_token + row.per_window_token)) << "all are seen";
    const std::uint64_t kept = row.window == 0 ? 0 : engine::window_reserve(row.window, 32) * 32;
    EXPECT_EQ(need.bytes(131072), 131072 * row.per_token + kept * row.per_window_token);
    // If the model's context is no longer than the window, no page would ever be released.
    graph->context = row.window;
    EXPECT_FALSE(kv_windows(*graph).exist());
  }
}

// A worker whose cache held no window page could not serve any request.
TEST_F(TransformerTest, ACacheThatHoldsNoWindowPageIsRefused) {
  model::ModelGraph graph;
  graph.context = 4096;
  config::EngineSettings engine;
  engine.max_batch = 4;
  engine.kv_cache_mb = 1;
  MemoryNeed need;
  need.kv = {.per_token = 64, .per_window_token = 20000, .window = 64};
  const auto refused = plan_cache(room_on(device()), graph, engine, 0, 64, need);
  ASSERT_FALSE(refused.ok()) << refused->pages << " pages, and " << refused->window_pages
                             << " window pages";
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("engine.kv_cache_mb"));
  engine.kv_cache_mb = 4;
  const auto size = plan_cache(room_on(device()), graph, engine, 0, 64, need);
  ASSERT_TRUE(size.ok()) << size.error().message();
  EXPECT_GT(size->pages, 0U);
  EXPECT_GT(size->window_pages, 0U);
}

}  // namespace
}  // namespace bulkhead::forward

// A worker whose KV cache has grown is killed. Its streams must be those of a worker with a large cache, and so must
// those that come after its cache has grown anew.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <ostream>
#include <string>
#include <vector>

#include "tests/integration/crash/streams.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {
namespace {

constexpr int kAnswerTokens = 40;
// Each takes about nine pages. A cache of 2 MiB has twenty for the built-in model, and one of 1 MiB has 41 for the
// fixture.
constexpr std::uint32_t kStreams = 4, kStreamsOfFixture = 6;

json request_for(std::uint32_t which) {
  std::vector<std::uint32_t> prompt(220 + which * 7);
  std::uint32_t state = 99 + which;
  for (std::uint32_t& id : prompt) {
    state = state * 1664525 + 1013904223;
    id = 300 + (state >> 8) % 1200;
  }
  json request = request_of(which % 2 == 1, kAnswerTokens, "", static_cast<int>(which));
  request["prompt"] = prompt;
  return request;
}

Serving serve_with(const std::vector<std::string>& cache, const std::string& model = "") {
  std::vector<std::string> settings = cache;
  settings.emplace_back("engine.max_batch=8");
  return serve_model(model, settings);
}

// Streams all requests at once; `then` is called after some pieces of the last one.
std::vector<Heard> stream_all(
    const Serving& serving, std::uint32_t count, int pieces = 0,
    const std::function<void()>& then = [] {}) {
  std::vector<std::future<Timed>> streams;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    streams.push_back(std::async(std::launch::async, [&serving, i, last, pieces, then] {
      return last ? stream(serving.port, request_for(i), pieces, then)
                  : stream(serving.port, request_for(i));
    }));
  }
  std::vector<Heard> heard;
  for (auto& each : streams)
    heard.push_back(each.get().heard);
  return heard;
}

bool has_grown(const Serving& serving) {
  return Serving::eventually([&] { return serving.metric("bulkhead_worker_kv_slabs{") >= 1; });
}

TEST(GrowingCache, AKilledWorkerThatHasGrownCostsItsStreamsOnlyAPause) {
  std::vector<Heard> expected;
  {
    const Serving roomy = serve_with({"engine.kv_cache_mb=64"});
    expected = stream_all(roomy, kStreams);
    for (const Heard& heard : expected)
      ASSERT_EQ(heard.ids.size(), static_cast<std::size_t>(kAnswerTokens));
  }
  const Serving serving = serve_with({"engine.kv_cache_mb=2", "engine.kv_cache_max_mb=32"});
  EXPECT_EQ(stream_all(serving, kStreams), expected);
  ASSERT_TRUE(has_grown(serving));
  const pid_t victim = serving_worker(serving);
  EXPECT_EQ(stream_all(serving, kStreams, kAnswerTokens / 2, [&] { send_signal(victim, SIGKILL); }),
            expected);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
  EXPECT_TRUE(has_grown(serving)) << serving.daemon->log();
  EXPECT_EQ(stream_all(serving, kStreams), expected);
  EXPECT_EQ(serving.worker()["restarts"], 1);
}

TEST(GrowingCache, ASuccessorAdoptsPagesOfSlabs) {
  const auto model = fixtures() / "models" / "tiny-llama-Q8_0.gguf";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "no " << model;
  std::vector<Heard> expected;
  {
    const Serving roomy = serve_with({"engine.kv_cache_mb=64"}, model.string());
    expected = stream_all(roomy, kStreamsOfFixture);
  }
  const Serving serving =
      serve_with({"engine.kv_cache_mb=1", "engine.kv_cache_max_mb=32"}, model.string());
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture), expected);
  ASSERT_TRUE(has_grown(serving));
  const pid_t victim = serving_worker(serving);
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture, kAnswerTokens / 2,
                       [&] { send_signal(victim, SIGKILL); }),
            expected);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
  const json vault = serving.worker()["vault"];
  EXPECT_GT(vault["pages_adopted"], 41) << "as many as lie in no slab; " << vault;
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture), expected);
  EXPECT_EQ(serving.metric("bulkhead_worker_kv_pages_damaged_total{"), 0);
}

// Models with several stores of keys and values, or with states beside them, and a split one.
struct GrowingModel {
  const char* name;
  const char* fixture;  // empty: the built-in model
  std::vector<std::string> settings;
  std::vector<std::string> first;  // how much memory the cache has at first
};
void PrintTo(const GrowingModel& model, std::ostream* out) {
  *out << model.name;
}

class GrowingModels : public ::testing::TestWithParam<GrowingModel> {};

INSTANTIATE_TEST_SUITE_P(
    Models, GrowingModels,
    ::testing::Values(GrowingModel{"states",
                                   "tiny-qwen35-Q4_K_M",
                                   {"engine.kv_type=f32"},
                                   {"engine.kv_cache_mb=1"}},
                      GrowingModel{"windows", "tiny-gpt-oss-MXFP4", {}, {"engine.kv_cache_mb=1"}},
                      GrowingModel{"split",
                                   "",
                                   {"models.0.devices=[0, 0]", "models.0.split=layers"},
                                   {"engine.kv_cache_mb=2"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(GrowingModels, GrowShrinkAndDieAtTheCostOfAPause) {
  std::string model;
  if (*GetParam().fixture != 0) {
    const auto path = fixtures() / "models" / (std::string(GetParam().fixture) + ".gguf");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
    model = path.string();
  }
  std::vector<std::string> settings = GetParam().settings;
  settings.emplace_back("engine.kv_cache_mb=64");
  std::vector<Heard> expected;
  {
    const Serving roomy = serve_with(settings, model);
    expected = stream_all(roomy, kStreamsOfFixture);
    for (const Heard& heard : expected)
      ASSERT_EQ(heard.ids.size(), static_cast<std::size_t>(kAnswerTokens));
  }
  settings.pop_back();
  settings.insert(settings.end(), GetParam().first.begin(), GetParam().first.end());
  settings.insert(settings.end(), {"engine.kv_cache_max_mb=32", "engine.kv_keep_s=1"});
  const Serving serving = serve_with(settings, model);
  const auto metric = [&](const std::string& name) {
    return serving.metric("bulkhead_worker_" + name + "{");
  };
  const auto is_small = [&] {
    return metric("kv_slabs") == 0 && metric("kv_bytes") == metric("kv_bytes_at_first");
  };
  ASSERT_TRUE(Serving::eventually(is_small));
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture), expected);
  EXPECT_TRUE(Serving::eventually([&] { return metric("kv_slabs_added_total") >= 1; }));
  EXPECT_EQ(metric("preemptions_total"), 0);
  EXPECT_TRUE(Serving::eventually(is_small)) << serving.daemon->log();
  EXPECT_GE(metric("kv_slabs_returned_total"), 1);

  const pid_t victim = serving_worker(serving);
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture, kAnswerTokens / 2,
                       [&] { send_signal(victim, SIGKILL); }),
            expected);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
  EXPECT_EQ(serving.worker()["vault"]["state"], "imported") << serving.worker()["vault"];
  EXPECT_EQ(stream_all(serving, kStreamsOfFixture), expected);
  EXPECT_EQ(metric("kv_pages_damaged_total"), 0);
  EXPECT_TRUE(Serving::eventually(is_small)) << serving.daemon->log();
}

TEST(GrowingCache, ShrinksWhenItIsIdle) {
  const Serving serving =
      serve_with({"engine.kv_cache_mb=2", "engine.kv_cache_max_mb=32", "engine.kv_keep_s=1"});
  const std::vector<Heard> first = stream_all(serving, kStreams);
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.metric("bulkhead_worker_kv_slabs_returned_total{") >= 1 &&
           serving.metric("bulkhead_worker_kv_slabs{") == 0;
  })) << serving.daemon->log();
  EXPECT_EQ(stream_all(serving, kStreams), first);
}

}  // namespace
}  // namespace bulkhead::test

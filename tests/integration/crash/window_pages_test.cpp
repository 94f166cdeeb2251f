// Models with sliding windows, in a cache that holds their sequences only because they release pages that no window
// sees. Every token and log-probability must be that of a large cache: for a request alone, among others, with a
// cached prompt and after kill -9.
#include <filesystem>
#include <future>

#include "tests/integration/crash/streams.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {
namespace {

constexpr std::size_t kPromptTokens = 600;
constexpr int kAnswerTokens = 24;

json request_for(std::uint32_t which, bool sampled) {
  std::vector<std::uint32_t> prompt(kPromptTokens);
  std::uint32_t state = 777 + which;
  for (std::uint32_t& id : prompt) {
    state = state * 1664525 + 1013904223;
    id = 300 + (state >> 8) % 1200;
  }
  json request = request_of(sampled, kAnswerTokens, "", 5);
  request["prompt"] = prompt;
  return request;
}

class WindowedModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = fixtures() / "models" / (std::string(GetParam()) + ".gguf");
    if (!std::filesystem::exists(model_)) GTEST_SKIP() << "no " << model_;
  }
  Serving serve(int kv_cache_mb) const {
    return serve_model(model_.string(), {"models.0.context=1500", "engine.speculation=off",
                                         "engine.kv_cache_mb=" + std::to_string(kv_cache_mb)});
  }
  std::filesystem::path model_;
};

INSTANTIATE_TEST_SUITE_P(Windows, WindowedModel,
                         testing::Values("tiny-gemma3-Q4_K_M", "tiny-gpt-oss-MXFP4"),
                         [](const auto& test) {
                           return std::string(test.param) == "tiny-gpt-oss-MXFP4" ? "gpt_oss"
                                                                                  : "gemma3";
                         });

TEST_P(WindowedModel, AnswersAreTheSameInFewPages) {
  std::vector<json> requests;
  std::vector<Heard> expected;
  for (std::uint32_t i = 0; i < 2; ++i)
    requests.push_back(request_for(i, i == 1));
  {
    const Serving roomy = serve(64);
    for (const json& request : requests) {
      expected.push_back(stream(roomy.port, request).heard);
      ASSERT_EQ(expected.back().ids.size(), static_cast<std::size_t>(kAnswerTokens));
    }
  }

  const Serving serving = serve(2);
  double windows = 0;
  // A worker reports its figures some time after it is ready.
  ASSERT_TRUE(Serving::eventually(
      [&] { return (windows = serving.metric("bulkhead_worker_window_pages")) > 0; }));
  EXPECT_LT(windows * 32, kPromptTokens) << "no sequence fits without letting go of pages";
  EXPECT_EQ(stream(serving.port, requests[0]).heard, expected[0]);
  // Most of the prompt is found in the cache the second time.
  json again = requests[0];
  again["stream"] = false;
  const Answer cached = complete(serving, again);
  EXPECT_EQ(cached.usage.at("prompt_tokens_details").at("cached_tokens"),
            (kPromptTokens - 1) / 32 * 32);
  EXPECT_EQ(std::vector<int>(cached.ids.begin(), cached.ids.end()), expected[0].ids);

  std::vector<std::future<Timed>> together;
  for (const json& request : requests)
    together.push_back(
        std::async(std::launch::async, [&] { return stream(serving.port, request); }));
  for (std::size_t i = 0; i < together.size(); ++i)
    EXPECT_EQ(together[i].get().heard, expected[i]) << i;

  // The worker dies while it reads the prompt, and after some tokens.
  int restarts = 0;
  for (const int pieces : {0, 10}) {
    const pid_t victim = serving_worker(serving);
    const Timed killed = stream(serving.port, requests[1], pieces, [&] {
      std::this_thread::sleep_for(milliseconds(pieces == 0 ? 60 : 0));
      send_signal(victim, SIGKILL);
    });
    EXPECT_EQ(killed.heard, expected[1]) << "killed after " << pieces;
    ++restarts;
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == restarts; }));
  }
}

}  // namespace
}  // namespace bulkhead::test

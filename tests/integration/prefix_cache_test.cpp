// What clients notice of the prefix cache: less is computed, and nothing else changes.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/model_serving.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {
namespace {

// Token ids of the built-in model, after some of its vocabulary's special ones.
std::vector<std::uint32_t> long_prompt(std::size_t count, std::uint32_t which = 0) {
  std::vector<std::uint32_t> ids(count);
  std::uint32_t state = 12345 + which;
  for (std::uint32_t& id : ids) {
    state = state * 1664525 + 1013904223;
    id = 300 + (state >> 8) % 1500;
  }
  return ids;
}

// Returns the counter once the worker has reported its last work: its figures come after its answers.
double settled(const Serving& serving, const std::string& name, double at_least) {
  double value = 0;
  Serving::eventually([&] {
    value = serving.metric("bulkhead_worker_" + name);
    return value >= at_least;
  });
  return value;
}

// Tests for each kind of pages' content.
class PrefixPages : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    PrefixCache, PrefixPages, ::testing::Values("engine.kv_type=f16", "engine.kv_type=q8_0"),
    [](const auto& each) {
      return std::string(each.param).substr(std::string(each.param).find('=') + 1);
    });

TEST_P(PrefixPages, ARepeatedPromptIsNotComputedAgain) {
  const Serving serving = serve_model("", {GetParam()});
  const std::vector<std::uint32_t> prompt = long_prompt(400);
  constexpr std::uint64_t kShared = 399 / kPageTokens * kPageTokens;  // the last token is computed
  const double before =
      std::max(0.0, serving.metric("bulkhead_worker_prefix_cache_miss_tokens_total"));
  const Answer first = complete(serving, greedy_request(prompt, 8));
  EXPECT_EQ(cached_tokens(first), 0U);
  EXPECT_EQ(settled(serving, "prefix_cache_miss_tokens_total", before + 400), before + 400);

  for (const bool stream : {false, true}) {
    json asked = greedy_request(prompt, 8);
    asked["stream"] = stream;
    const Answer again = complete(serving, asked);
    EXPECT_EQ(cached_tokens(again), kShared);
    EXPECT_EQ(again.usage.at("prompt_tokens"), 400);
    EXPECT_EQ(again.ids, first.ids);
    EXPECT_EQ(again.logprobs, first.logprobs);
  }
  EXPECT_EQ(settled(serving, "prefix_cache_hit_tokens_total", 2 * kShared), 2 * kShared);
  const double computed = before + 400 + 2 * (400 - kShared);
  EXPECT_EQ(settled(serving, "prefix_cache_miss_tokens_total", computed), computed);
  EXPECT_EQ(serving.metric("bulkhead_worker_prefix_cache_hit_pages_total"),
            2 * kShared / kPageTokens);
  const json figures = serving.worker().at("prefix_cache");
  EXPECT_EQ(figures.at("hit_tokens"), 2 * kShared);
  EXPECT_GE(figures.at("pages"), kShared / kPageTokens);
  EXPECT_EQ(figures.at("evictions"), 0);
  EXPECT_GT(figures.at("hit_ratio"), 0.6);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker().at("kv_pages_used") == 0; }))
      << "what nobody uses is free";
  const json worker = serving.worker();
  EXPECT_EQ("engine.kv_type=" + worker.at("kv_type").get<std::string>(), GetParam());
  EXPECT_GT(worker.at("kv_bytes_per_token"), 0);
  EXPECT_EQ(worker.at("numerics"), "exact");
}

TEST(PrefixCache, OffItDoesNothing) {
  const Serving serving = serve_model("", {"engine.prefix_cache=false"});
  const Answer first = complete(serving, greedy_request(long_prompt(100), 4));
  const Answer again = complete(serving, greedy_request(long_prompt(100), 4));
  EXPECT_EQ(again, first);
  EXPECT_EQ(cached_tokens(again), 0U);
}

TEST(PrefixCache, AnswersOfOnePromptShareIt) {
  const Serving serving = serve_model("");
  json asked = greedy_request(long_prompt(320), 4);
  asked["n"] = 4;
  asked["temperature"] = 1;
  asked["seed"] = 1;
  const HttpReply reply = serving.complete(asked);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body).at("choices").size(), 4U);
  EXPECT_EQ(settled(serving, "prefix_cache_hit_tokens_total", 3 * 288), 3 * 288)
      << "9 pages, computed for one of them";
}

// Pages alone are not enough for layers that carry a state from token to token.
TEST(PrefixCache, ModelsWithStatesGoOnFromASavedOne) {
  const std::string model = (fixtures() / "models" / "tiny-qwen35moe-Q8_0.gguf").string();
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "no " << model;
  const Serving serving = serve_model(model);
  std::vector<std::uint32_t> prompt = long_prompt(100);
  for (std::uint32_t& id : prompt)
    id = id % 1590;
  const Answer first = expect_to_go_on_from_a_saved_state(serving, prompt);
  std::vector<std::uint32_t> next = prompt;
  next.insert(next.end(), first.ids.begin(), first.ids.end());
  next.insert(next.end(), {7, 8, 9});
  EXPECT_EQ(cached_tokens(complete(serving, greedy_request(next, 1))), 4 * kPageTokens)
      << "of 139 tokens that were computed";
}

TEST(PrefixCache, AChatsNextTurnFindsTheTurnsBefore) {
  const Serving serving = serve_model("");
  json messages = {{{"role", "user"}, {"content", "Tell me a story about a robot and a dog."}}};
  std::uint64_t before = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const HttpReply reply =
        serving.post("/v1/chat/completions",
                     json{{"messages", messages}, {"temperature", 0}, {"max_tokens", 60}}.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = json::parse(reply.body);
    const json& usage = body.at("usage");
    const std::uint64_t found = usage.at("prompt_tokens_details").at("cached_tokens");
    // Its prompt and its answer, except the page that was not full.
    EXPECT_GE(found + kPageTokens, before) << "turn " << turn;
    EXPECT_LT(found, usage.at("prompt_tokens").get<std::uint64_t>());
    before = usage.at("total_tokens").get<std::uint64_t>();
    messages.push_back(body.at("choices").at(0).at("message"));
    messages.push_back({{"role", "user"}, {"content", "And then?"}});
  }
}

// A stream whose prompt came from the cache survives its worker; the successor, whose cache is
// empty, computes what it needs.
TEST_P(PrefixPages, AStreamThatBeganInTheCacheSurvivesItsWorker) {
  const Serving serving = serve_model("", {GetParam()});
  const std::vector<std::uint32_t> prompt = long_prompt(200);
  json asked = greedy_request(prompt, 100);
  asked["stream"] = true;
  asked["temperature"] = 0.8;
  asked["seed"] = 3;
  const Answer undisturbed = complete(serving, asked);
  const Answer carried_over = complete_over_a_kill(serving, asked, 10);
  EXPECT_EQ(carried_over.ids, undisturbed.ids);
  EXPECT_EQ(carried_over.logprobs, undisturbed.logprobs);
  EXPECT_EQ(serving.worker().at("restarts"), 1);
  EXPECT_LE(cached_tokens(carried_over), 199U);
  const Answer after = complete(serving, greedy_request(prompt, 8));
  EXPECT_EQ(cached_tokens(after), 192U) << "what the successor computed serves others";
}

TEST(WorkerFigures, HaveTypesUnitsAndHelp) {
  const Serving serving = serve_model("");
  complete(serving, greedy_request(long_prompt(8), 2));
  settled(serving, "generated_tokens_total", 2);
  const std::string text = serving.get("/metrics").body;
  EXPECT_NE(text.find("# HELP bulkhead_worker_generated_tokens_total Tokens generated (tokens)\n"
                      "# TYPE bulkhead_worker_generated_tokens_total counter\n"),
            std::string::npos);
  EXPECT_NE(text.find("# TYPE bulkhead_worker_pool_bytes_in_use gauge\n"), std::string::npos);
  // Every figure of a worker has a row, except those of kernels, which have the kernels' names. The compiler checks
  // that; the daemon must find each row.
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# HELP") || !line.ends_with("Reported by the worker")) continue;
    EXPECT_TRUE(line.starts_with("# HELP bulkhead_worker_kernel_")) << line;
  }
}

}  // namespace
}  // namespace bulkhead::test

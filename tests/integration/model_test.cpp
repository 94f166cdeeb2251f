// The product as its users run it: a daemon, a worker, a model, HTTP. Every token is compared with the exactly
// computed one (float64, expanded quantised weights), over each transport, with each optimisation on and off.
#include <algorithm>
#include <cmath>
#include <future>

#include <gtest/gtest.h>

#include "tests/integration/model_serving.hpp"
#include "tests/support/expected.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

constexpr double kLogprobTolerance = 2e-2;

void expect_case(const Serving& serving, const ExpectedCase& expected, bool stream) {
  const Answer answer = complete(serving, {{"prompt", expected.prompt},
                                           {"temperature", 0},
                                           {"max_tokens", expected.steps.size()},
                                           {"ignore_eos", true},
                                           {"logprobs", 1},
                                           {"stream", stream}});
  EXPECT_EQ(answer.prompt_ids, expected.prompt_tokens);
  ASSERT_EQ(answer.ids.size(), expected.steps.size());
  ASSERT_EQ(answer.logprobs.size(), expected.steps.size());
  EXPECT_EQ(answer.finish_reason, "length");
  EXPECT_EQ(answer.usage.at("prompt_tokens"), expected.prompt_tokens.size());
  EXPECT_EQ(answer.usage.at("completion_tokens"), expected.steps.size());
  for (std::size_t i = 0; i < expected.steps.size() && !expected.steps[i].tie; ++i) {
    ASSERT_EQ(answer.ids[i], expected.steps[i].token) << "step " << i;
    ASSERT_NEAR(answer.logprobs[i], expected.steps[i].logprob, kLogprobTolerance) << "step " << i;
  }
}

std::string builtin_expectation() {
  return std::string(BULKHEAD_SOURCE_DIR) + "/worker/builtin/builtin.expected.json";
}

class Fixture : public ::testing::TestWithParam<const char*> {};

TEST_P(Fixture, GivesTheExpectedTokensOverHttp) {
  const std::string name = GetParam();
  const bool builtin = name == "builtin";
  const auto model = fixtures() / "models" / (name + ".gguf");
  if (!builtin && !std::filesystem::exists(model))
    GTEST_SKIP() << model << " is not here; set BULKHEAD_FIXTURES to its folder";
  const Serving serving = serve_model(builtin ? "" : model.string());
  bool stream = false;
  for (const ExpectedCase& expected :
       builtin ? read_expectation(builtin_expectation()) : expectation_of(model)) {
    SCOPED_TRACE(expected.prompt.substr(0, 40));
    expect_case(serving, expected, stream = !stream);
  }
}

template <typename Param>
std::string test_name(const ::testing::TestParamInfo<Param>& info) {
  std::string name;
  for (char c : std::string(info.param))
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// worker_integration_test has all fixtures: each token, log-probability and text is the worker's. What the daemon
// adds does not depend on the model, so a model of each way to make text of tokens and one with states do.
INSTANTIATE_TEST_SUITE_P(Models, Fixture,
                         ::testing::Values("builtin", "tiny-llama-Q8_0", "tiny-qwen3-Q4_K_M",
                                           "tiny-qwen35-Q4_K_M"),
                         test_name<const char*>);

// Settings that must not change a token.
class Setting : public ::testing::TestWithParam<std::string> {
 protected:
  // Several settings are separated by blanks.
  static std::vector<std::string> settings() {
    std::vector<std::string> list(1);
    for (char c : GetParam()) {
      if (c == ' ')
        list.emplace_back();
      else
        list.back() += c;
    }
    return list;
  }
};

// The fixture has a prompt of 732 tokens: more than a chunk, and more than a record of the channel's.
TEST_P(Setting, ChangesNoToken) {
  const auto fixture = fixtures() / "models" / "tiny-qwen2-Q4_0.gguf";
  const bool there = std::filesystem::exists(fixture);
  const Serving serving = serve_model(there ? fixture.string() : "", settings());
  bool stream = false;
  for (const ExpectedCase& expected :
       there ? expectation_of(fixture) : read_expectation(builtin_expectation())) {
    SCOPED_TRACE(expected.prompt.substr(0, 40));
    expect_case(serving, expected, stream = !stream);
  }
}

// A row has one setting of the channel and one of the device, which no code reads together.
INSTANTIATE_TEST_SUITE_P(
    Settings, Setting,
    ::testing::Values("ipc.region=memfd gpu_optimizations.memory_pool.enabled=false",
                      "ipc.region=posix gpu_optimizations.blit_queue.enabled=false",
                      "ipc.transport=stdio gpu_optimizations.enabled=false",
                      "ipc.spin_us=0 gpu_optimizations.blit_queue.use_shared_events=false",
                      "ipc.flush_tokens=4 gpu_optimizations.command_buffer_ring.enabled=false",
                      "engine.kv_type=f32", "engine.prefill_chunk=64 engine.prefix_cache=false"),
    test_name<std::string>);

// Greedy and sampled, with log-probabilities, stop strings and both ends of a stream.
std::vector<json> varied_requests() {
  return {{{"prompt", "Once upon a time"}, {"max_tokens", 24}, {"temperature", 0}, {"logprobs", 3}},
          {{"prompt", "The little robot"},
           {"max_tokens", 24},
           {"temperature", 0.9},
           {"seed", 7},
           {"top_p", 0.95}},
          {{"prompt", "A cat and a dog"},
           {"max_tokens", 64},
           {"temperature", 1.2},
           {"seed", 11},
           {"top_k", 40},
           {"min_p", 0.02},
           {"logprobs", 0},
           {"repetition_penalty", 1.1},
           {"presence_penalty", 0.3},
           {"stop", {". The", "!"}}},
          {{"prompt", "In the garden"},
           {"max_tokens", 48},
           {"temperature", 0},
           {"presence_penalty", 1.5},
           {"logit_bias", {{"40", 5}, {"41", -5}}}},
          {{"prompt", "One day"}, {"temperature", 0}, {"max_tokens", 100}}};
}

TEST(Transports, AgreeOnTokensTextLogprobsAndFinishReasons) {
  std::vector<std::vector<Answer>> answers;
  for (const char* setting : {"ipc.region=memfd", "ipc.region=posix", "ipc.transport=stdio"}) {
    const Serving serving = serve_model("", {setting});
    answers.emplace_back();
    for (json request : varied_requests()) {
      request["stream"] = true;
      answers.back().push_back(complete(serving, request));
      if (answers.size() > 1) continue;  // this does not depend on the transport
      request["stream"] = false;
      EXPECT_EQ(complete(serving, request), answers.back().back()) << "streamed or not";
    }
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

TEST(Batch, SixteenStreamsGiveEachTheTokensItGivesAlone) {
  const Serving serving = serve_model("");
  const auto request = [](int i) {
    return json{{"prompt", std::string("Story number ") + std::to_string(i) + ": once there was a"},
                {"max_tokens", 8 + i},
                {"temperature", i % 2 == 0 ? 0.0 : 0.8},
                {"seed", i},
                {"stream", true},
                {"logprobs", i % 3 == 0 ? json(1) : json(nullptr)}};
  };
  std::vector<Answer> alone;
  for (int i = 0; i < 16; ++i)
    alone.push_back(complete(serving, request(i)));
  std::vector<std::future<Answer>> together;
  for (int i = 0; i < 16; ++i) {
    together.push_back(
        std::async(std::launch::async, [&, i] { return complete(serving, request(i)); }));
  }
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(together[static_cast<std::size_t>(i)].get(), alone[static_cast<std::size_t>(i)]) << i;
}

// The cache holds 288 tokens, and these answers have twice as many. So the youngest sequence gives its pages
// back, again and again, and continues with the same tokens.
TEST(Batch, NoRequestFailsForWantOfMemory) {
  const auto request = [](int i) {
    json body{{"prompt", "Tale " + std::to_string(i) + ": there was a"},
              {"max_tokens", 60 + i},
              {"temperature", i % 2 == 0 ? 0.0 : 0.9},
              {"seed", i},
              {"ignore_eos", true},
              {"stream", i % 3 != 0}};
    if (i % 4 == 1) body["frequency_penalty"] = 0.4;
    if (i % 4 == 2) body["logprobs"] = 1;
    return body;
  };
  constexpr int kRequests = 8;
  std::vector<Answer> alone;
  {
    const Serving serving = serve_model("");
    for (int i = 0; i < kRequests; ++i)
      alone.push_back(complete(serving, request(i)));
  }
  const Serving serving = serve_model("", {"engine.kv_cache_mb=1"});
  std::vector<std::future<Answer>> together;
  for (int i = 0; i < kRequests; ++i) {
    together.push_back(
        std::async(std::launch::async, [&, i] { return complete(serving, request(i)); }));
  }
  for (int i = 0; i < kRequests; ++i)
    EXPECT_EQ(together[static_cast<std::size_t>(i)].get(), alone[static_cast<std::size_t>(i)]) << i;
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.metric("bulkhead_worker_preemptions_total") > 0; }));
  EXPECT_EQ(serving.worker()["kv_cache_tokens"], 288);
}

TEST(Context, APromptThatIsTooLongIsRefusedBeforeAnythingRuns) {
  const Serving serving = serve_model("", {"models.0.path=builtin", "models.0.context=128"});
  std::string prompt;
  for (int i = 0; i < 200; ++i)
    prompt += "the cat sat on the mat. ";
  const HttpReply reply = serving.complete({{"prompt", prompt}, {"max_tokens", 4}});
  EXPECT_EQ(reply.status, 400);
  const json error = json::parse(reply.body).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded") << error;
}

TEST(Context, FillingItEndsWithLength) {
  const Serving serving = serve_model("", {"models.0.path=builtin", "models.0.context=128"});
  const Answer answer =
      complete(serving, {{"prompt", "Once upon a time"}, {"temperature", 0}, {"ignore_eos", true}});
  EXPECT_EQ(answer.finish_reason, "length");
  EXPECT_EQ(answer.usage.at("total_tokens"), 128);
}

TEST(Echo, ScoresWhatTheModelSaidAsItDidThen) {
  const Serving serving = serve_model("");
  const Answer said = complete(
      serving,
      {{"prompt", "The fox saw a "}, {"temperature", 0}, {"max_tokens", 8}, {"logprobs", 1}});
  std::vector<std::uint32_t> all = said.prompt_ids;
  all.insert(all.end(), said.ids.begin(), said.ids.end());
  const HttpReply reply =
      serving.complete({{"prompt", all}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 1}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json logprobs = json::parse(reply.body)["choices"][0]["logprobs"]["token_logprobs"];
  ASSERT_EQ(logprobs.size(), all.size());
  for (std::size_t i = 0; i < said.ids.size(); ++i)
    EXPECT_NEAR(logprobs[said.prompt_ids.size() + i].get<double>(), said.logprobs[i], 1e-3) << i;
}

TEST(Embeddings, AreTheSameInAnyCompany) {
  for (const char* pooling : {"last", "mean"}) {
    const Serving serving = serve_model("", {"engine.pooling="s + pooling});
    const auto embed = [&serving](const json& input) {
      const HttpReply reply = serving.post("/v1/embeddings", json{{"input", input}}.dump());
      EXPECT_EQ(reply.status, 200) << reply.body;
      return json::parse(reply.body)["data"];
    };
    const json alone = embed("The fox ran home.");
    const json together = embed({"Once upon a time", "The fox ran home.", "The fox ran away."});
    EXPECT_EQ(together[1]["embedding"], alone[0]["embedding"]) << pooling;
    EXPECT_NE(together[2]["embedding"], alone[0]["embedding"]);
    double length = 0;
    for (const json& value : alone[0]["embedding"])
      length += value.get<double>() * value.get<double>();
    EXPECT_NEAR(length, 1, 1e-5);
  }
}

TEST(Chat, UsesTheModelsTemplateAndStreamsWholeCharacters) {
  const Serving serving = serve_model("");
  const json request = {{"messages", {{{"role", "user"}, {"content", "What is your name?"}}}},
                        {"temperature", 0},
                        {"max_tokens", 60},
                        {"stream", true}};
  const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Events events = events_of(reply.body);
  ASSERT_TRUE(events.done);
  EXPECT_EQ(events.chunks.front().at("choices").at(0).at("delta").at("role"), "assistant");
  std::string text;
  std::string reason;
  for (const json& chunk : events.chunks) {
    const json& choice = chunk.at("choices").at(0);
    if (choice.at("delta").contains("content"))
      text += choice.at("delta").at("content").get<std::string>();
    if (choice.at("finish_reason").is_string()) reason = choice.at("finish_reason");
  }
  EXPECT_NE(text.find("Bulkhead"), std::string::npos) << text;
  EXPECT_EQ(text.find("<|im_end|>"), std::string::npos) << text;
  EXPECT_EQ(reason, "stop");
}

TEST(Chat, AFileWithoutATemplateIsRefusedWithAdvice) {
  const auto model = fixtures() / "models" / "tiny-llama-Q4_0.gguf";
  if (!std::filesystem::exists(model))
    GTEST_SKIP() << model << " is not here; set BULKHEAD_FIXTURES to its folder";
  const Serving serving = serve_model(model);
  const HttpReply reply =
      serving.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hello"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("/v1/completions"), std::string::npos) << reply.body;
}

TEST(KilledWorker, WhileIdleIsSucceededAndTheDaemonLivesOn) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    const Serving serving = serve_model("", {transport});
    const json request = {{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 16}};
    const Answer before = complete(serving, request);
    const pid_t worker = serving.worker().at("pid");
    ASSERT_EQ(send_signal(worker, SIGKILL), 0);
    ASSERT_TRUE(Serving::eventually([&] {
      const json now = serving.worker();
      return now.at("pid") != worker && now.at("state") == "ready";
    }));
    EXPECT_EQ(complete(serving, request), before);
    EXPECT_EQ(serving.worker().at("restarts"), 1);
    EXPECT_EQ(send_signal(serving.daemon->pid(), 0), 0);
  }
}

TEST(KilledWorker, StreamContinuesWithTheSameTokens) {
  const Serving serving = serve_model("");
  const json request = {{"prompt", "Once upon a time"},
                        {"temperature", 0.8},
                        {"seed", 3},
                        {"max_tokens", 100},
                        {"stream", true},
                        {"ignore_eos", true}};
  const Answer undisturbed = complete(serving, request);
  EXPECT_EQ(complete_over_a_kill(serving, request, 20), undisturbed);
  EXPECT_EQ(serving.worker().at("restarts"), 1);
}

}  // namespace
}  // namespace bulkhead::test

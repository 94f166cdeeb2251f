// The worker program as the daemon sees it: a real process, a real channel, real models.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/worker_serving.hpp"
#include "tests/support/fixture_models.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;
using ipc::TokenId;
using testing::HasSubstr;

constexpr double kLogprobTolerance = 2e-2;

struct Transport {
  const char* name;
  config::Transport transport;
  config::RegionKind region;
};
constexpr Transport kTransports[] = {
    {"shm", config::Transport::kShm, config::RegionKind::kMemfd},
    {"posix", config::Transport::kShm, config::RegionKind::kPosix},
    {"stdio", config::Transport::kStdio, config::RegionKind::kMemfd},
};

config::IpcSettings over(const Transport& transport) {
  config::IpcSettings settings;
  settings.transport = transport.transport;
  settings.region = transport.region;
  return settings;
}

nlohmann::json expected_of(const std::string& model) {
  std::ifstream file(fixtures() / "models" / (model + ".expected.json"));
  return nlohmann::json::parse(file);
}

class FixtureModel : public testing::TestWithParam<const char*> {};

TEST_P(FixtureModel, GreedyTokensAndLogprobsAreTheExpectedOnes) {
  const std::string name = GetParam();
  NEEDS_MODEL(name);
  const nlohmann::json expected = expected_of(name);
  WorkerProcess worker(kProgram, serving(name), {});
  ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
  // The device chooses tokens, or the host does for requests with log-probabilities. The second case tests the host
  // only, because the choice does not depend on the prompt.
  struct Asked {
    const nlohmann::json& test;
    bool logprobs;
  };
  std::vector<Asked> asked;
  const nlohmann::json& cases = expected["cases"];
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (i != 1) asked.push_back({cases[i], false});
    asked.push_back({cases[i], true});
  }
  std::uint64_t id = 0;
  for (const auto& [test, logprobs] : asked) {
    ipc::Submit submit =
        greedy(++id, test["prompt"], static_cast<std::uint32_t>(test["greedy"].size()));
    if (logprobs) submit.logprobs = 5;
    worker.send(submit);
    // The second request finds a long prompt in the cache. FamilyPrefix shows that this changes no bit.
    if (!logprobs && test["prompt_tokens"].size() > 64) {
      ASSERT_TRUE(worker.receive_until([&] { return worker.answer(id).ended(); }));
    }
  }
  ASSERT_TRUE(worker.receive_until([&] {
    return std::count_if(worker.answers.begin(), worker.answers.end(), [](const auto& entry) {
             return entry.second.ended();
           }) == static_cast<std::ptrdiff_t>(id);
  }));
  id = 0;
  for (const auto& [test, logprobs] : asked) {
    SCOPED_TRACE(name + ", request " + std::to_string(++id));
    const WorkerAnswer& answer = worker.answer(id);
    ASSERT_TRUE(answer.finished.has_value()) << answer.failed->message;
    EXPECT_EQ(answer.accepted->prompt_tokens, test["prompt_tokens"].get<std::vector<TokenId>>());
    const auto& steps = test["greedy"];
    ASSERT_EQ(answer.tokens.size(), steps.size());
    bool tie = false;
    for (std::size_t i = 0; i < steps.size() && !tie; ++i) {
      tie = steps[i].value("tie", false) && answer.tokens[i] != steps[i]["token"];
      if (tie) break;
      ASSERT_EQ(answer.tokens[i], steps[i]["token"].get<TokenId>()) << "step " << i;
      if (!logprobs) continue;
      const ipc::TokenLogprob& logprob = answer.logprobs[i];
      EXPECT_NEAR(logprob.logprob, steps[i]["logprob"].get<double>(), kLogprobTolerance)
          << "step " << i;
      ASSERT_EQ(logprob.top.size(), 5U);
      EXPECT_EQ(logprob.top[0].token, answer.tokens[i]);
      std::string hex;
      for (const char byte : logprob.bytes)
        hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      EXPECT_EQ(hex, steps[i]["bytes"].get<std::string>());
    }
    if (!tie) {
      EXPECT_EQ(answer.text, test["continuation"].get<std::string>());
    }
  }
}

std::string readable(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, FixtureModel, testing::ValuesIn(kFixtureModels), readable);

TEST(Worker, AllTransportsGiveTheSameAnswers) {
  NEEDS_MODEL("tiny-qwen2-Q8_0");
  std::vector<WorkerAnswer> answers;
  for (const Transport& transport : kTransports) {
    SCOPED_TRACE(transport.name);
    std::vector<std::string> arguments = serving("tiny-qwen2-Q8_0");
    WorkerProcess worker(kProgram, arguments, over(transport));
    ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
    ASSERT_TRUE(worker.hello.has_value());
    EXPECT_EQ(worker.hello->protocol, ipc::protocol_version());
    EXPECT_EQ(static_cast<pid_t>(worker.hello->pid), worker.pid());
    EXPECT_FALSE(worker.progress.empty());
    ipc::Submit sampled = greedy(1, "Once upon a time", 24);
    sampled.sampling.temperature = 0.8F;
    sampled.sampling.top_p = 0.9F;
    sampled.sampling.seed = 7;
    sampled.logprobs = 2;
    worker.send(sampled);
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(1).ended(); }));
    answers.push_back(worker.answer(1));
    worker.send(ipc::Shutdown{});
    EXPECT_EQ(worker.wait_exit(), 0);
  }
  for (const WorkerAnswer& answer : answers) {
    ASSERT_TRUE(answer.finished.has_value());
    EXPECT_EQ(answer.tokens.size(), 24U);
    EXPECT_EQ(answer.tokens, answers[0].tokens);
    EXPECT_EQ(answer.text, answers[0].text);
    for (std::size_t i = 0; i < answer.logprobs.size(); ++i) {
      EXPECT_EQ(answer.logprobs[i].logprob, answers[0].logprobs[i].logprob);
    }
  }
}

TEST(Worker, SixteenStreamsGetTheTokensThatEachGetsAlone) {
  NEEDS_MODEL("tiny-qwen2-Q4_0");
  WorkerProcess worker(kProgram, serving("tiny-qwen2-Q4_0"), {});
  ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
  const auto request = [](std::uint64_t id, std::uint64_t which) {
    std::string prompt = "Story " + std::to_string(which) + ":";
    for (std::uint64_t i = 0; i < which * 3; ++i)
      prompt += " word" + std::to_string(i * which);
    ipc::Submit submit = greedy(id, prompt, 12);
    if (which % 2 == 1) {
      submit.sampling.temperature = 1;
      submit.sampling.top_k = 100;
      submit.sampling.seed = which;
    }
    return submit;
  };
  for (std::uint64_t i = 1; i <= 16; ++i) {
    worker.send(request(i, i));
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(i).ended(); }));
  }
  for (std::uint64_t i = 1; i <= 16; ++i)
    worker.send(request(100 + i, i));
  for (std::uint64_t i = 1; i <= 16; ++i) {
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(100 + i).ended(); }));
    EXPECT_EQ(worker.answer(100 + i).tokens, worker.answer(i).tokens) << "stream " << i;
    EXPECT_EQ(worker.answer(100 + i).text, worker.answer(i).text) << "stream " << i;
  }
}

// Each of these requests finds more of itself in the cache than the one before: nothing, the system prompt, an
// earlier question and its answer, itself, itself and a part of its answer.
TEST(Worker, CachedPrefixesChangeNoBit) {
  const auto story = [](std::uint32_t which, std::size_t count) {
    std::vector<TokenId> ids(count);
    for (std::size_t i = 0; i < count; ++i)
      ids[i] = static_cast<TokenId>(300 + (i * 7919 + which * 104729 + i * i * 31) % 1500);
    return ids;
  };
  std::vector<ipc::Submit> asked;
  const auto ask = [&](std::vector<TokenId> prompt, float temperature, std::uint32_t given) {
    ipc::Submit submit = greedy(asked.size() + 1, "", 20);
    submit.prompt = std::move(prompt);
    submit.sampling.temperature = temperature;
    submit.sampling.seed = 5;
    submit.logprobs = 3;
    for (std::uint32_t i = 0; i < given; ++i)
      submit.accepted_tokens.push_back(400 + i);
    asked.push_back(submit);
  };
  const std::vector<TokenId> system = story(1, 69);
  for (const std::uint32_t question : {2U, 3U, 2U}) {
    std::vector<TokenId> prompt = system;
    for (const TokenId token : story(question, 10 * question))
      prompt.push_back(token);
    ask(prompt, 0, 0);
    ask(prompt, 0.9F, 0);
    ask(prompt, 0, 17);
  }
  ask(story(4, 32), 0, 0);  // the prompt has exactly one page
  ask(story(4, 32), 0, 0);
  ask(story(4, 33), 0, 0);

  // The model whose columns cost a CPU least.
  const fs::path cheapest = model_path("tiny-qwen2-Q8_0");
  const std::string model = fs::exists(cheapest) ? cheapest.string() : "builtin";
  std::vector<std::map<RequestId, WorkerAnswer>> answers;
  for (const char* cache : {"engine.prefix_cache=false", "engine.prefix_cache=true"}) {
    SCOPED_TRACE(cache);
    WorkerProcess worker(kProgram,
                         {"--model", model, "--set", "log.level=warn", "--set",
                          "isolation.heartbeat_timeout_ms=100000", "--set", cache},
                         {});
    ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
    for (const ipc::Submit& submit : asked) {
      worker.send(submit);
      ASSERT_TRUE(
          worker.receive_until([&] { return worker.answer(submit.request.value).ended(); }));
    }
    answers.push_back(worker.answers);
  }
  std::uint32_t cached = 0;
  for (const ipc::Submit& submit : asked) {
    SCOPED_TRACE(submit.request.value);
    const WorkerAnswer& without = answers[0].at(submit.request);
    const WorkerAnswer& with = answers[1].at(submit.request);
    EXPECT_EQ(with.tokens, without.tokens);
    EXPECT_EQ(with.text, without.text);
    EXPECT_EQ(with.logprobs, without.logprobs);
    EXPECT_FALSE(with.logprobs.empty());
    ASSERT_TRUE(with.finished && without.finished);
    EXPECT_EQ(without.finished->cached_tokens, 0U);
    cached += with.finished->cached_tokens;
  }
  EXPECT_GT(cached, 8 * 64U - 1);
}

// Each successor is the next one to be killed.
TEST(KilledWorker, SuccessorGoesOnWithTheSameTokens) {
  NEEDS_MODEL("tiny-qwen3-Q4_K_M");
  const auto start = [settings = config::IpcSettings()] {
    return std::make_unique<WorkerProcess>(kProgram, serving("tiny-qwen3-Q4_K_M"), settings);
  };
  const auto request = [](std::uint64_t id, bool sampled) {
    ipc::Submit submit = greedy(id, "The quick brown fox", 30);
    submit.sampling.temperature = sampled ? 0.9F : 0;
    submit.sampling.seed = 3;
    return submit;
  };
  auto worker = start();
  ASSERT_TRUE(worker->wait_ready());
  worker->send(request(1, false));
  worker->send(request(2, true));
  ASSERT_TRUE(worker->receive_until(
      [&] { return worker->answer(1).ended() && worker->answer(2).ended(); }));
  const WorkerAnswer wholes[] = {worker->answer(1), worker->answer(2)};
  for (const std::uint64_t id : {3U, 4U}) {
    ipc::Submit submit = request(id, id == 4);
    worker->send(submit);
    ASSERT_TRUE(worker->receive_until([&] { return worker->answer(id).tokens.size() >= 8; }));
    send_signal(worker->pid(), SIGKILL);
    EXPECT_EQ(worker->wait_exit(), -SIGKILL);
    WorkerAnswer all = worker->answer(id);
    worker = start();
    ASSERT_TRUE(worker->wait_ready());
    if (all.ended()) continue;  // it was faster than the signal
    submit.accepted_tokens = all.tokens;
    worker->send(submit);
    const WorkerAnswer& rest = worker->answer(id);
    ASSERT_TRUE(worker->receive_until([&] { return rest.ended(); }));
    all.tokens.insert(all.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(all.tokens, wholes[id - 3].tokens);
    EXPECT_EQ(all.text + rest.text, wholes[id - 3].text);
  }
}

TEST(Worker, AnswersEverythingElseThatTheDaemonMaySay) {
  NEEDS_MODEL("tiny-qwen2-Q4_K_M");
  WorkerProcess worker(kProgram, serving("tiny-qwen2-Q4_K_M"), {});
  ASSERT_TRUE(worker.wait_ready());
  EXPECT_EQ(worker.ready->architecture, "qwen2");
  EXPECT_TRUE(worker.ready->has_chat_template);
  EXPECT_EQ(worker.ready->context_limit, 2048U);

  worker.send(ipc::Ping{77});
  worker.send(ipc::Tokenize{RequestId{1}, "def", true, true});
  worker.send(ipc::Detokenize{RequestId{2}, {1 << 30}});
  ipc::Submit chat = greedy(3, "", 4);
  chat.prompt = ipc::ChatPrompt{R"({"messages":[{"role":"user","content":"Hello"}]})"};
  worker.send(chat);
  worker.send(greedy(4, "cancel me", 0));
  ipc::Submit too_long = greedy(5, "", 1);
  too_long.prompt = std::vector<TokenId>(5000, 1);
  worker.send(too_long);
  ASSERT_TRUE(worker.receive_until([&] { return worker.answer(4).tokens.size() >= 2; }));
  worker.send(ipc::Cancel{RequestId{4}});
  ASSERT_TRUE(worker.receive_until([&] {
    return worker.answer(2).ended() && worker.answer(3).ended() && worker.answer(4).ended() &&
           worker.answer(5).ended() && worker.others.size() >= 2;
  }));
  EXPECT_EQ(worker.answer(2).failed->code, ipc::FailureCode::kInvalidRequest);
  EXPECT_EQ(worker.answer(3).tokens.size(), 4U);
  EXPECT_EQ(worker.answer(4).finished->reason, ipc::FinishReason::kCancelled);
  EXPECT_EQ(worker.answer(5).failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_EQ(std::count_if(worker.others.begin(), worker.others.end(),
                          [](const auto& m) { return std::holds_alternative<ipc::Pong>(m); }),
            1);

  worker.stats.reset();
  ASSERT_TRUE(worker.receive_until([&] { return worker.stats.has_value(); })) << "idle statistics";
  EXPECT_EQ(worker.stats->kv_pages_used, 0U);
  worker.send(ipc::Drain{});
  ASSERT_TRUE(worker.receive_until(
      [&] { return std::holds_alternative<ipc::Drained>(worker.others.back()); }));
  worker.send(ipc::Shutdown{});
  EXPECT_EQ(worker.wait_exit(), 0);
}

// Checks of memory are off, because they use the device now and then.
TEST(Worker, ReportsWhatItsGpuDidAndAStepsKernelsOnRequest) {
  WorkerProcess worker(kProgram,
                       {"--model", "builtin", "--device", "cpu", "--set", "log.level=warn", "--set",
                        "isolation.check_memory_s=0"},
                       {});
  ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
  const auto figure = [&](const std::string& name) -> std::optional<double> {
    if (!worker.stats) return std::nullopt;
    for (const ipc::Counter& counter : worker.stats->counters)
      if (counter.name == name) return counter.value;
    return std::nullopt;
  };
  worker.send(greedy(1, "def", 4));
  worker.send(ipc::Profile{});  // while a sequence is decoded
  ASSERT_TRUE(worker.receive_until(
      [&] { return worker.answer(1).ended() && figure("kernel_profiles") == 1; }));
  EXPECT_GT(figure("kernel_norm_calls").value_or(0), 0);
  EXPECT_EQ(figure("pool_fallback_allocations"), 0);
  EXPECT_EQ(figure("pool_hit_rate"), 1);
  EXPECT_GT(figure("blit_uploads").value_or(0), 0);
  EXPECT_GT(figure("ring_submissions").value_or(0), 0);
  EXPECT_GT(figure("gpu_busy_seconds").value_or(0), 0);
  ASSERT_TRUE(worker.receive_until([&] { return figure("gpu_busy_share") == 0; }))
      << "a worker that does nothing leaves its device at rest";
  EXPECT_GT(figure("load_seconds").value_or(0), figure("load_weights_seconds").value_or(1));

  worker.send(ipc::Profile{});  // while it is idle
  ASSERT_TRUE(worker.receive_until([&] { return figure("kernel_profiles") == 2; }));
  worker.send(greedy(2, "def", 4));
  ASSERT_TRUE(worker.receive_until([&] { return worker.answer(2).ended(); }));
  EXPECT_EQ(worker.answer(2).tokens, worker.answer(1).tokens);
  worker.send(ipc::Shutdown{});
  EXPECT_EQ(worker.wait_exit(), 0);
}

TEST(Worker, EndsWhenTheDaemonIsGone) {
  NEEDS_MODEL("tiny-qwen2-Q4_K_M");
  for (const Transport& transport : kTransports) {
    SCOPED_TRACE(transport.name);
    WorkerProcess worker(kProgram, serving("tiny-qwen2-Q4_K_M"), over(transport));
    ASSERT_TRUE(worker.wait_ready());
    worker.send(greedy(1, "and so on", 0));
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(1).tokens.size() >= 2; }));
    worker.close_channel();
    EXPECT_EQ(worker.wait_exit(), 0);
  }
}

TEST(Worker, SlowDaemonLosesNothing) {
  NEEDS_MODEL("tiny-qwen2-Q4_K_M");
  config::IpcSettings settings;
  settings.ring_kib = 16;
  std::vector<std::string> arguments = serving("tiny-qwen2-Q4_K_M");
  arguments.insert(arguments.end(), {"--set", "ipc.ring_kib=16"});
  WorkerProcess worker(kProgram, arguments, settings);
  ASSERT_TRUE(worker.wait_ready());
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ipc::Submit submit = greedy(id, "a long answer with all its probabilities", 60);
    submit.logprobs = 20;
    worker.send(submit);
  }
  ::usleep(1500000);  // the ring fills up many times over meanwhile
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(id).ended(); }));
    EXPECT_EQ(worker.answer(id).tokens.size(), 60U);
    EXPECT_EQ(worker.answer(id).logprobs.size(), 60U);
    EXPECT_EQ(worker.answer(id).tokens, worker.answer(1).tokens);
  }
}

TEST(Worker, ModelThatCannotBeLoadedIsReportedWithItsReason) {
  WorkerProcess worker(kProgram, {"--model", "/nonexistent/model.gguf", "--set", "log.level=off"},
                       {});
  EXPECT_FALSE(worker.wait_ready());
  ASSERT_TRUE(worker.fatal.has_value());
  EXPECT_THAT(worker.fatal->message, HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(worker.wait_exit(), 3);
}

TEST(Worker, StartedByHandExplainsItself) {
  const std::string quiet = kProgram + " 2>&1";
  FILE* output = ::popen(quiet.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), output));
  const int status = ::pclose(output);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(text, HasSubstr("bulkheadd --model FILE"));
}

}  // namespace
}  // namespace bulkhead::test

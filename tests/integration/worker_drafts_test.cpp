// The worker program with a second model that guesses the first one's tokens.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/worker_serving.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

// A coarser form of the same model guesses, and is often right.
TEST(Worker, ADraftModelChangesNoToken) {
  NEEDS_MODEL("tiny-llama-Q8_0");
  NEEDS_MODEL("tiny-llama-Q4_0");
  std::vector<WorkerAnswer> answers;
  for (const bool drafts : {false, true}) {
    std::vector<std::string> arguments = serving("tiny-llama-Q8_0");
    arguments.insert(arguments.end(),
                     {"--set", std::string("engine.speculation=") + (drafts ? "always" : "off")});
    if (drafts)
      arguments.insert(arguments.end(), {"--draft", model_path("tiny-llama-Q4_0").string()});
    WorkerProcess worker(kProgram, arguments, {});
    ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
    worker.send(greedy(1, "Once upon a time there was a", 30));
    ipc::Submit sampled = greedy(2, "Once upon a time there was a", 30);
    sampled.sampling.temperature = 1;
    sampled.sampling.seed = 11;
    worker.send(sampled);
    ASSERT_TRUE(
        worker.receive_until([&] { return worker.answer(1).ended() && worker.answer(2).ended(); }));
    for (const std::uint64_t id : {1U, 2U})
      answers.push_back(worker.answer(id));
    if (!drafts) continue;
    const auto accepted = [&] {
      if (!worker.stats.has_value()) return 0.0;
      const auto& counters = worker.stats->counters;
      const auto found =
          std::ranges::find(counters, "draft_model_accepted_tokens_total", &ipc::Counter::name);
      return found == counters.end() ? 0.0 : found->value;
    };
    EXPECT_TRUE(worker.receive_until([&] { return accepted() > 0; }));
  }
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_TRUE(answers[i].finished.has_value() && answers[i + 2].finished.has_value());
    EXPECT_EQ(answers[i].tokens.size(), 30U);
    EXPECT_EQ(answers[i].tokens, answers[i + 2].tokens);
    EXPECT_EQ(answers[i].text, answers[i + 2].text);
  }
}

TEST(Worker, ADraftModelOfAnotherVocabularyIsRefused) {
  NEEDS_MODEL("tiny-llama-F16");
  NEEDS_MODEL("tiny-qwen2-Q8_0");
  std::vector<std::string> arguments = serving("tiny-llama-F16");
  arguments.insert(arguments.end(), {"--draft", model_path("tiny-qwen2-Q8_0").string()});
  WorkerProcess worker(kProgram, arguments, {});
  EXPECT_FALSE(worker.wait_ready());
  ASSERT_TRUE(worker.fatal.has_value());
  EXPECT_THAT(worker.fatal->message, HasSubstr("tiny-llama-F16"));
  EXPECT_THAT(worker.fatal->message, HasSubstr("tiny-qwen2-Q8_0"));
  EXPECT_THAT(worker.fatal->message, HasSubstr("vocabulary"));
}

}  // namespace
}  // namespace bulkhead::test

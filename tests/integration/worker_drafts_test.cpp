// The worker program with a second model that guesses the first one's tokens.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/drafting_model.hpp"
#include "tests/integration/made_model.hpp"
#include "tests/integration/worker_serving.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

// Both requests' answers from a worker that serves the model of the file; `draft` is the file of a draft model, "mtp"
// or empty. With one, some of its guesses must be right.
std::vector<WorkerAnswer> answers_of(const std::string& model, const std::string& draft) {
  std::vector<std::string> arguments = serving("");
  arguments[1] = model;
  arguments.insert(arguments.end(), {"--set", std::string("engine.speculation=") +
                                                  (draft.empty() ? "off" : "always")});
  if (!draft.empty()) arguments.insert(arguments.end(), {"--draft", draft});
  WorkerProcess worker(kProgram, arguments, {});
  if (!worker.wait_ready()) {
    ADD_FAILURE() << worker.why_not_ready();
    return {};
  }
  worker.send(greedy(1, "Once upon a time there was a", 30));
  ipc::Submit sampled = greedy(2, "Once upon a time there was a", 30);
  sampled.sampling.temperature = 1;
  sampled.sampling.seed = 11;
  sampled.sampling.frequency_penalty = 0.3F;
  sampled.logprobs = 3;
  worker.send(sampled);
  EXPECT_TRUE(
      worker.receive_until([&] { return worker.answer(1).ended() && worker.answer(2).ended(); }));
  const auto accepted = [&] {
    if (!worker.stats.has_value()) return 0.0;
    const auto& counters = worker.stats->counters;
    const auto found =
        std::ranges::find(counters, "draft_model_accepted_tokens_total", &ipc::Counter::name);
    return found == counters.end() ? 0.0 : found->value;
  };
  EXPECT_TRUE(draft.empty() || worker.receive_until([&] { return accepted() > 0; }));
  return {worker.answer(1), worker.answer(2)};
}

void expect_same_answers(const std::vector<WorkerAnswer>& plain,
                         const std::vector<WorkerAnswer>& drafted) {
  ASSERT_EQ(plain.size(), 2U);
  ASSERT_EQ(drafted.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(plain[i].finished.has_value() && drafted[i].finished.has_value());
    EXPECT_EQ(plain[i].tokens.size(), 30U);
    EXPECT_EQ(plain[i].tokens, drafted[i].tokens);
    EXPECT_EQ(plain[i].text, drafted[i].text);
    EXPECT_EQ(plain[i].logprobs, drafted[i].logprobs);
  }
}

// A coarser form of the same model guesses, and is often right.
TEST(Worker, ADraftModelChangesNoToken) {
  NEEDS_MODEL("tiny-llama-Q8_0");
  NEEDS_MODEL("tiny-llama-Q4_0");
  const std::string model = model_path("tiny-llama-Q8_0"), draft = model_path("tiny-llama-Q4_0");
  expect_same_answers(answers_of(model, ""), answers_of(model, draft));
}

// The layers of both models carry states: gated delta nets, Mamba-2, short convolutions.
TEST(Worker, ADraftModelWithStatesChangesNoToken) {
  for (const char* preset : {"tiny-delta", "tiny-mamba", "tiny-convolutions"}) {
    SCOPED_TRACE(preset);
    const TemporaryFolder folder("drafts");
    const std::string model = folder.path() / "model.gguf";
    make_model(*model_maker::preset(preset), model);
    expect_same_answers(answers_of(model, ""), answers_of(model, model));
  }
}

// Two models that differ only in the padding of their vocabularies guess for each other. Their weights are random, so
// padding comes in answers and guesses, too.
TEST(Worker, ADraftModelWithOtherPaddingChangesNoToken) {
  const TemporaryFolder folder("drafts");
  const std::string shorter = folder.path() / "shorter.gguf";
  const std::string longer = folder.path() / "longer.gguf";
  model_maker::Shape shape = *model_maker::preset("tiny-qwen2");
  make_model(shape, shorter);
  shape.padding = 24;
  shape.vocabulary += shape.padding;
  make_model(shape, longer);
  expect_same_answers(answers_of(shorter, ""), answers_of(shorter, longer));
  expect_same_answers(answers_of(longer, ""), answers_of(longer, shorter));
}

// All layers of tiny-glm attend; some layers of tiny-delta carry states.
TEST(Worker, TheModelsOwnBlockChangesNoToken) {
  for (const char* preset : {"tiny-glm", "tiny-delta"}) {
    SCOPED_TRACE(preset);
    const TemporaryFolder folder("drafts");
    const std::string model = folder.path() / "model.gguf";
    ASSERT_NO_FATAL_FAILURE(make_drafting_model(preset, model));
    expect_same_answers(answers_of(model, ""), answers_of(model, "mtp"));
  }
}

TEST(Worker, AModelWithoutABlockThatDraftsIsRefused) {
  const TemporaryFolder folder("drafts");
  const std::string model = folder.path() / "model.gguf";
  make_model(*model_maker::preset("tiny-glm"), model);
  std::vector<std::string> arguments = serving("");
  arguments[1] = model;
  arguments.insert(arguments.end(), {"--draft", "mtp"});
  WorkerProcess worker(kProgram, arguments, {});
  EXPECT_FALSE(worker.wait_ready());
  ASSERT_TRUE(worker.fatal.has_value());
  EXPECT_THAT(worker.fatal->message, HasSubstr("models[].draft: mtp"));
  EXPECT_THAT(worker.fatal->message, HasSubstr(model));
  EXPECT_THAT(worker.fatal->message, HasSubstr("no block that drafts tokens"));
  EXPECT_THAT(worker.fatal->message, HasSubstr("leave out models[].draft"));
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

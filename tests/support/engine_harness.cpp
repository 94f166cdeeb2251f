#include "tests/support/engine_harness.hpp"

#include <poll.h>

#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "ipc/utf8.hpp"

namespace bulkhead::test {
namespace {

constexpr int kMostTurns = 100000;

engine::EngineOptions with_clock(engine::EngineOptions options, engine::Clock::time_point& now) {
  options.now = [&now] { return now; };
  return options;
}

FakeExecutor without_steps(FakeExecutor executor) {
  executor.forget_steps();
  return executor;
}

}  // namespace

EngineHarness::EngineHarness(const engine::ExecutorLimits& limits, engine::EngineOptions options,
                             std::vector<std::string> words)
    : executor(limits),
      tokenizer(std::move(words), limits.vocabulary),
      language{&tokenizer, jinja::Chat()},
      engine(executor, language, with_clock(std::move(options), now),
             [this](const ipc::FromWorker& message) { take(message); }) {}

EngineHarness::EngineHarness(const FakeExecutor& memory, engine::EngineOptions options)
    : executor(without_steps(memory)),
      tokenizer({}, memory.limits().vocabulary),
      language{&tokenizer, jinja::Chat()},
      engine(executor, language, with_clock(std::move(options), now),
             [this](const ipc::FromWorker& message) { take(message); }) {}

bool EngineHarness::turn() {
  const auto ran = engine.turn(meanwhile);
  if (!ran.ok()) {
    ADD_FAILURE() << ran.error().message();
    return false;
  }
  return *ran;
}

void EngineHarness::run() {
  for (int i = 0; engine.outstanding() > 0; ++i) {
    ASSERT_LT(i, kMostTurns) << "the engine is stuck";
    // A turn that refuses the last request computes nothing, and nothing wakes the engine after it.
    if (turn() || engine.outstanding() == 0) continue;
    pollfd waiting{engine.wake_fd(), POLLIN, 0};
    ::poll(&waiting, 1, 1000);
  }
}

void EngineHarness::run_until_tokens(std::uint64_t request, std::size_t tokens) {
  for (int i = 0; answer(request).tokens.size() < tokens && !answer(request).ended(); ++i) {
    ASSERT_LT(i, kMostTurns) << "the engine is stuck";
    if (turn()) continue;
    pollfd waiting{engine.wake_fd(), POLLIN, 0};  // a prompt is being prepared
    ::poll(&waiting, 1, 1000);
  }
}

void EngineHarness::cancel_during_a_step(std::uint64_t request) {
  meanwhile = [this, request] { engine.cancel(RequestId{request}); };
  turn();
  meanwhile = [] {};
}

void EngineHarness::take(const ipc::FromWorker& message) {
  if (const auto* accepted = std::get_if<ipc::Accepted>(&message)) {
    Answer& answer = answers[accepted->request];
    EXPECT_FALSE(answer.accepted.has_value()) << "accepted twice";
    answer.accepted = *accepted;
  } else if (const auto* batch = std::get_if<ipc::TokenBatch>(&message)) {
    ++records;
    EXPECT_FALSE(batch->sequences.empty());
    for (const ipc::SequenceTokens& sequence : batch->sequences) {
      Answer& answer = answers[sequence.request];
      EXPECT_TRUE(answer.accepted.has_value()) << "tokens before accepted";
      EXPECT_FALSE(answer.ended()) << "tokens after the end";
      EXPECT_FALSE(sequence.tokens.empty());
      EXPECT_TRUE(ipc::is_utf8(sequence.text)) << "half a character was sent";
      if (answer.tokens.empty()) answer.first_index = sequence.first_index;
      EXPECT_EQ(sequence.first_index, answer.first_index + answer.tokens.size());
      answer.tokens.insert(answer.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      answer.text += sequence.text;
      add(answer, sequence.parts);
      answer.logprobs.insert(answer.logprobs.end(), sequence.logprobs.begin(),
                             sequence.logprobs.end());
      answer.lots.push_back(sequence.tokens.size());
      answer.lot_steps.push_back(batch->step);
    }
  } else if (const auto* told = std::get_if<ipc::PromptTokens>(&message)) {
    Answer& answer = answers[told->request];
    EXPECT_TRUE(answer.accepted.has_value()) << "a prompt before accepted";
    EXPECT_TRUE(answer.tokens.empty()) << "a prompt after its answer";
    EXPECT_EQ(told->first_index, answer.prompt.size());
    answer.prompt.insert(answer.prompt.end(), told->tokens.begin(), told->tokens.end());
  } else if (const auto* finished = std::get_if<ipc::Finished>(&message)) {
    Answer& answer = answers[finished->request];
    EXPECT_FALSE(answer.ended()) << "ended twice";
    EXPECT_TRUE(ipc::is_utf8(finished->text));
    answer.text += finished->text;
    add(answer, finished->parts);
    answer.finished = *finished;
  } else if (const auto* failed = std::get_if<ipc::Failed>(&message)) {
    Answer& answer = answers[failed->request];
    EXPECT_FALSE(answer.ended()) << "ended twice";
    answer.failed = *failed;
  } else {
    others.push_back(message);
  }
}

void EngineHarness::add(Answer& answer, const std::vector<ipc::AnswerPart>& parts) {
  for (const ipc::AnswerPart& part : parts) {
    const bool begins = part.kind == ipc::PartKind::kCall || answer.parts.empty() ||
                        answer.parts.back().kind != part.kind;
    if (begins)
      answer.parts.push_back(part);
    else
      answer.parts.back().text += part.text;
  }
}

ipc::Submit greedy_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                           std::uint32_t max_tokens) {
  ipc::Submit submit;
  submit.request = RequestId{id};
  submit.prompt = std::move(prompt);
  submit.sampling.temperature = 0;
  submit.max_tokens = max_tokens;
  submit.ignore_eos = true;
  return submit;
}

ipc::Submit sampled_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                            std::uint32_t max_tokens, std::uint64_t seed) {
  ipc::Submit submit = greedy_request(id, std::move(prompt), max_tokens);
  submit.sampling.temperature = 0.9F;
  submit.sampling.top_k = 40;
  submit.sampling.top_p = 0.95F;
  submit.sampling.repetition_penalty = 1.1F;
  submit.sampling.frequency_penalty = 0.2F;
  submit.sampling.seed = seed;
  return submit;
}

std::vector<ipc::TokenId> some_tokens(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<ipc::TokenId> tokens(count);
  for (ipc::TokenId& token : tokens)
    token = static_cast<ipc::TokenId>(random() % 256);
  return tokens;
}

}  // namespace bulkhead::test

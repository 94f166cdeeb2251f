// How requests begin and end: refusals, limits, stop conditions, cancellation, draining, a lost
// device.
#include <poll.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"

namespace bulkhead::test {
namespace {

using engine::ExecutorLimits;
using ipc::TokenId;
using testing::HasSubstr;

TEST(EngineRequests, TextIsTokenisedBesideTheSteps) {
  EngineHarness harness(small_limits(), {}, {"hello", " world"});
  ipc::Submit request = greedy_request(1, {}, 3);
  request.prompt = std::string("hello world!<eos>");
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).accepted->prompt_tokens,
            (std::vector<TokenId>{258, 259, '!', FakeTokenizer::kEos}));
  EXPECT_EQ(harness.answer(1).tokens.size(), 3U);
  EXPECT_EQ(harness.answer(1).finished->prompt_tokens, 4U);
}

TEST(EngineRequests, ChatWithoutTemplateIsRefusedWithTheReason) {
  EngineHarness harness;
  harness.language.chat = Error(ErrorCode::kUnsupported, "no template; use /v1/completions");
  ipc::Submit request = greedy_request(1, {}, 3);
  request.prompt = ipc::ChatPrompt{R"({"messages":[{"role":"user","content":"hi"}]})"};
  harness.engine.submit(request);
  harness.run();
  ASSERT_TRUE(harness.answer(1).failed.has_value());
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kUnsupported);
  EXPECT_EQ(harness.answer(1).failed->parameter, "messages");
  EXPECT_THAT(harness.answer(1).failed->message, HasSubstr("/v1/completions"));
}

TEST(EngineRequests, PromptLongerThanTheContextIsRefusedBeforeAnythingRuns) {
  EngineHarness harness;  // context 128
  harness.engine.submit(greedy_request(1, some_tokens(1, 128), 1));
  ASSERT_TRUE(harness.answer(1).failed.has_value());
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_THAT(harness.answer(1).failed->message,
              HasSubstr("this model's maximum context length is 128 tokens, and the prompt is too "
                        "long: it has 128"));
  EXPECT_FALSE(harness.answer(1).accepted.has_value());
  harness.engine.submit(greedy_request(2, some_tokens(1, 127), 1));
  harness.run();
  EXPECT_EQ(harness.answer(2).tokens.size(), 1U);
  EXPECT_EQ(harness.executor.steps.size(), 2U);
}

// The host chooses the tokens of such requests by rows of logits. If it has no memory for another row, the engine
// refuses a further request, and the running ones don't notice.
TEST(EngineRequests, TooLittleMemoryForRowsOfLogitsRefusesARequestAndNoMore) {
  EngineHarness harness;
  harness.executor.rows_there = 2;
  for (const std::uint64_t id : {1U, 2U, 3U})
    harness.engine.submit(sampled_request(id, some_tokens(id, 5), 20, id));
  harness.engine.submit(greedy_request(4, some_tokens(4, 5), 20));
  ipc::Submit scored = greedy_request(5, some_tokens(5, 5), 20);
  scored.tell_prompt = true;
  scored.logprobs = 1;
  harness.engine.submit(scored);
  for (const std::uint64_t id : {3U, 5U}) {
    ASSERT_TRUE(harness.answer(id).failed.has_value()) << id;
    EXPECT_EQ(harness.answer(id).failed->code, ipc::FailureCode::kResourceExhausted);
    EXPECT_FALSE(harness.answer(id).accepted.has_value());
  }
  harness.run();
  for (const std::uint64_t id : {1U, 2U, 4U})
    EXPECT_EQ(harness.answer(id).tokens.size(), 20U) << id;
  harness.engine.submit(sampled_request(6, some_tokens(6, 5), 20, 6));
  harness.run();
  EXPECT_EQ(harness.answer(6).tokens.size(), 20U) << "the others have ended";
}

// Biases and penalties take memory for each token that may get one. Without a repetition penalty the prompt's tokens
// get none.
TEST(EngineRequests, TooLittleMemoryForEditsRefusesARequestAndNoMore) {
  ExecutorLimits limits = small_limits();
  limits.sampled_top_k = 64;
  EngineHarness harness(limits);
  harness.executor.edits_there = 70;
  harness.engine.submit(sampled_request(1, some_tokens(1, 30), 20, 1));
  ipc::Submit present = greedy_request(2, some_tokens(2, 50), 18);
  present.sampling.presence_penalty = 1.5F;
  harness.engine.submit(present);
  ipc::Submit biased = greedy_request(3, some_tokens(3, 50), 20);
  biased.logit_bias = {{1, 1}, {2, 2}, {3, 3}};
  harness.engine.submit(biased);
  ASSERT_TRUE(harness.answer(3).failed.has_value());
  EXPECT_EQ(harness.answer(3).failed->code, ipc::FailureCode::kResourceExhausted);
  harness.run();
  for (const std::uint64_t id : {1U, 2U})
    EXPECT_TRUE(harness.answer(id).finished.has_value()) << id;
  biased.request.value = 4;
  harness.engine.submit(biased);
  harness.run();
  EXPECT_EQ(harness.answer(4).tokens.size(), 20U) << "the others have ended";
}

// The engine uses the values that the model's file recommends only for samplers that the request leaves open.
TEST(EngineRequests, OpenSamplersAreThoseThatTheFileRecommends) {
  const auto tokens_of = [](std::vector<ipc::SamplingAdvice> advice, float temperature,
                            std::uint32_t open) {
    engine::EngineOptions options;
    options.sampler_advice = std::move(advice);
    EngineHarness harness(small_limits(), options);
    ipc::Submit request = sampled_request(1, {5, 6, 7}, 20, 77);
    request.sampling.temperature = temperature;
    request.open_samplers = open;
    harness.engine.submit(std::move(request));
    harness.run();
    return harness.answer(1).tokens;
  };
  const auto greedy = tokens_of({}, 0, 0), drawn = tokens_of({}, 1.5F, 0);
  ASSERT_NE(greedy, drawn);
  EXPECT_EQ(tokens_of({{"temperature", 0}}, 1.5F, 31), greedy);
  EXPECT_EQ(tokens_of({{"top_k", 1}}, 1.5F, 31), greedy);
  EXPECT_EQ(tokens_of({{"temperature", 0}, {"top_k", 1}}, 1.5F, 2 + 8 + 16), drawn);
  EXPECT_EQ(tokens_of({}, 1.5F, 31), drawn);
}

// The model's file forbids tokens. A request whose biases favour one of them does not get it.
TEST(EngineRequests, ForbiddenTokensAreNeverChosen) {
  const auto run = [](std::vector<TokenId> forbidden, ipc::Submit request) {
    EngineHarness harness;
    harness.tokenizer.never = std::move(forbidden);
    harness.engine.submit(request);
    harness.run();
    EXPECT_EQ(harness.answer(1).tokens.size(), 20U);
    return harness.answer(1).tokens;
  };
  ipc::Submit request = greedy_request(1, some_tokens(1, 9), 20);
  const std::vector<TokenId> free = run({}, request);
  const std::vector<TokenId> forbidden{free.front(), 'x'};
  request.logit_bias = {{'x', 100}};
  for (const TokenId token : run(forbidden, request))
    EXPECT_THAT(forbidden, testing::Not(testing::Contains(token)));
  EXPECT_EQ(run({}, request), std::vector<TokenId>(20, 'x'));
}

TEST(EngineRequests, PromptLargerThanTheWholeCacheIsRefused) {
  ExecutorLimits limits = small_limits();
  limits.total_pages = 10;
  EngineHarness harness(limits);
  harness.engine.submit(greedy_request(1, some_tokens(1, 40), 1));
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kContextExceeded);
  EXPECT_THAT(harness.answer(1).failed->message, HasSubstr("engine.kv_cache_mb"));
}

// The advice depends on where the limit comes from.
TEST(EngineRequests, ATooLongPromptsErrorSaysWhatWouldTakeIt) {
  const auto refusal = [](std::uint32_t asked, std::uint32_t of_the_model) {
    ExecutorLimits limits = small_limits();  // context 128
    limits.asked_context = asked;
    limits.model_context = of_the_model;
    EngineHarness harness(limits);
    harness.engine.submit(greedy_request(1, some_tokens(1, 200), 1));
    return harness.answer(1).failed->message;
  };
  EXPECT_THAT(refusal(128, 128), HasSubstr("shorten the prompt: the model allows no more"));
  EXPECT_THAT(refusal(128, 4096), HasSubstr("or raise the model's `context`"));
  EXPECT_THAT(refusal(4096, 4096), HasSubstr("128 tokens (the KV cache holds no more)"));
  EXPECT_THAT(refusal(4096, 4096), HasSubstr("engine.kv_cache_mb"));
}

TEST(EngineRequests, RefusesWhatMakesNoSense) {
  EngineHarness harness;
  harness.engine.submit(greedy_request(1, {}, 1));
  harness.engine.submit(greedy_request(2, {5, 300}, 1));
  ipc::Submit bad_accepted = greedy_request(3, {5}, 1);
  bad_accepted.accepted_tokens = {4000000000};
  harness.engine.submit(bad_accepted);
  ipc::Submit bad_sampling = greedy_request(4, {5}, 1);
  bad_sampling.sampling.top_p = 7;
  harness.engine.submit(bad_sampling);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(harness.answer(id).failed.has_value()) << id;
    EXPECT_EQ(harness.answer(id).failed->code, ipc::FailureCode::kInvalidRequest) << id;
  }
  EXPECT_THAT(harness.answer(2).failed->message, HasSubstr("300 at index 1"));
  EXPECT_EQ(harness.answer(4).failed->parameter, "top_p");
  EXPECT_EQ(harness.engine.outstanding(), 0U);
}

TEST(EngineRequests, MaxTokensZeroGoesOnUntilTheContextIsFull) {
  EngineHarness harness;
  harness.engine.submit(greedy_request(1, some_tokens(3, 100), 0));
  harness.engine.submit(greedy_request(2, some_tokens(4, 120), 5000));
  harness.engine.submit(greedy_request(3, some_tokens(5, 100), 7));
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens.size(), 28U);
  EXPECT_EQ(harness.answer(1).accepted->max_tokens, 28U);
  EXPECT_EQ(harness.answer(2).tokens.size(), 8U);
  EXPECT_EQ(harness.answer(3).tokens.size(), 7U);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(harness.answer(id).finished->reason, ipc::FinishReason::kLength);
  }
}

TEST(EngineRequests, EndTokenStopsAndIsNotSent) {
  EngineHarness harness;
  harness.executor.script = [](std::span<const TokenId> history) -> std::optional<TokenId> {
    return history.size() < 5 ? TokenId{'a'} : FakeTokenizer::kEos;
  };
  ipc::Submit request = greedy_request(1, {1, 2}, 10);
  request.ignore_eos = false;
  harness.engine.submit(request);
  request = greedy_request(2, {3, 4}, 10);
  harness.engine.submit(request);
  request = greedy_request(3, {5, 6, 7, 8, 9}, 10);
  request.ignore_eos = false;
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).text, "aaa");
  EXPECT_EQ(harness.answer(1).tokens, (std::vector<TokenId>{'a', 'a', 'a'}));
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kStop);
  EXPECT_EQ(harness.answer(1).finished->completion_tokens, 3U);
  EXPECT_EQ(harness.answer(2).tokens.size(), 10U) << "ignore_eos";
  EXPECT_EQ(harness.answer(2).text, "aaa") << "control tokens have no text";
  EXPECT_TRUE(harness.answer(3).tokens.empty());
  EXPECT_EQ(harness.answer(3).finished->reason, ipc::FinishReason::kStop);
}

TEST(EngineRequests, HeldTextComesWithTheEnd) {
  EngineHarness harness;
  harness.executor.script = [](std::span<const TokenId> history) -> std::optional<TokenId> {
    return TokenId(static_cast<unsigned char>("..ab"[history.size()]));
  };
  ipc::Submit request = greedy_request(1, {1, 2}, 2);
  request.stop = {"abc"};
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).finished->text, "ab");
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kLength);
}

TEST(EngineRequests, CancellationAtEveryStepFreesThePages) {
  for (int when = 0; when < 12; ++when) {
    SCOPED_TRACE(when);
    engine::EngineOptions options;
    options.scheduler.prefill_chunk = 8;
    EngineHarness harness(small_limits(), options);
    harness.engine.submit(greedy_request(1, some_tokens(1, 40), 5));
    harness.engine.submit(greedy_request(2, some_tokens(2, 9), 12));
    for (int i = 0; i < when; ++i)
      harness.turn();
    // One time between steps, one time while a step is in flight.
    if (when % 2 == 0)
      harness.engine.cancel(RequestId{1});
    else
      harness.cancel_during_a_step(1);
    ASSERT_TRUE(harness.answer(1).finished.has_value());
    if (harness.answer(1).finished->reason == ipc::FinishReason::kCancelled) {
      EXPECT_EQ(harness.answer(1).finished->completion_tokens, harness.answer(1).tokens.size());
    }
    harness.run();
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
    EngineHarness alone;
    alone.engine.submit(greedy_request(2, some_tokens(2, 9), 12));
    alone.run();
    EXPECT_EQ(harness.answer(2).tokens, alone.answer(2).tokens) << "a neighbour was touched";
  }
}

TEST(EngineRequests, CancelWhileTokenisingAndOfNobody) {
  EngineHarness harness;
  ipc::Submit request = greedy_request(1, {}, 3);
  request.prompt = std::string(100, 'x');
  harness.engine.submit(request);
  harness.engine.cancel(RequestId{1});
  harness.engine.cancel(RequestId{99});
  EXPECT_EQ(harness.answer(1).finished->reason, ipc::FinishReason::kCancelled);
  EXPECT_EQ(figure(harness, "cancelled_requests_total"), 1);
  EXPECT_EQ(harness.engine.outstanding(), 0U);
  // The same number may be used again; the first request's tokens must not count as the second one's.
  request.prompt = std::string("yz");
  harness.answers.clear();
  harness.engine.submit(request);
  harness.run();
  EXPECT_EQ(harness.answer(1).accepted->prompt_tokens, (std::vector<TokenId>{'y', 'z'}));
}

TEST(EngineRequests, TokenizeAndDetokenize) {
  EngineHarness harness(small_limits(), {}, {"hello"});
  harness.engine.answer(ipc::Tokenize{RequestId{1}, "hello<eos>", true, true});
  harness.engine.answer(ipc::Tokenize{RequestId{2}, "<eos>", true, false});
  harness.engine.answer(ipc::Detokenize{RequestId{3}, {258, '!'}});
  harness.engine.answer(ipc::Detokenize{RequestId{4}, {258, 300}});
  harness.run();
  ASSERT_EQ(harness.others.size(), 3U);
  EXPECT_EQ(std::get<ipc::Tokenized>(harness.others[0]).tokens,
            (std::vector<TokenId>{258, FakeTokenizer::kEos}));
  EXPECT_EQ(std::get<ipc::Tokenized>(harness.others[1]).tokens.size(), 5U);
  EXPECT_EQ(std::get<ipc::Detokenized>(harness.others[2]).text, "hello!");
  EXPECT_EQ(harness.answer(4).failed->code, ipc::FailureCode::kInvalidRequest);
  EXPECT_THAT(harness.answer(4).failed->message, HasSubstr("300 at index 1"));
  EXPECT_EQ(harness.answer(4).failed->parameter, "tokens");
}

TEST(EngineRequests, TokenizeGivesTheTextsThatAreAskedFor) {
  EngineHarness harness(small_limits(), {}, {"hello"});
  for (const ipc::TokenTexts form :
       {ipc::TokenTexts::kNone, ipc::TokenTexts::kPieces, ipc::TokenTexts::kVocabulary})
    harness.engine.answer(ipc::Tokenize{RequestId{1}, "hello!\xC3<eos>", false, true, form});
  harness.run();
  ASSERT_EQ(harness.others.size(), 3U);
  using Texts = std::vector<ipc::TokenText>;
  EXPECT_EQ(std::get<ipc::Tokenized>(harness.others[0]).texts, Texts());
  const auto& pieces = std::get<ipc::Tokenized>(harness.others[1]);
  EXPECT_EQ(pieces.form, ipc::TokenTexts::kPieces);
  // A token that stands for no text is shown as the vocabulary writes it.
  EXPECT_EQ(pieces.texts, (Texts{{"hello"}, {"!"}, {"\xC3"}, {"<eos>"}}));
  const auto& vocabulary = std::get<ipc::Tokenized>(harness.others[2]);
  EXPECT_EQ(vocabulary.form, ipc::TokenTexts::kVocabulary);
  EXPECT_EQ(vocabulary.texts.size(), 4U);
  EXPECT_EQ(vocabulary.texts.back().bytes, "<eos>");
}

TEST(EngineRequests, DrainingLetsWhatIsThereFinishAndSaysSoOnce) {
  EngineHarness harness;
  harness.engine.submit(greedy_request(1, {1, 2}, 5));
  harness.turn();
  harness.engine.drain();
  EXPECT_TRUE(harness.others.empty());
  harness.engine.submit(greedy_request(2, {1, 2}, 5));
  EXPECT_EQ(harness.answer(2).failed->code, ipc::FailureCode::kResourceExhausted);
  harness.run();
  EXPECT_EQ(harness.answer(1).tokens.size(), 5U);
  harness.engine.drain();
  ASSERT_EQ(harness.others.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<ipc::Drained>(harness.others[0]));
}

TEST(EngineRequests, LostDeviceIsReportedAndEndsTheTurn) {
  EngineHarness harness;
  harness.engine.submit(greedy_request(1, {1, 2}, 5));
  harness.executor.lose_device_in = 2;
  ASSERT_TRUE(harness.turn());
  ASSERT_TRUE(harness.turn());
  const auto lost = harness.engine.turn([] {});
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), ErrorCode::kDeviceLost);
  EXPECT_EQ(harness.answer(1).tokens.size(), 2U) << "what was computed had been sent";
}

TEST(EngineRequests, LogitsThatAreNoNumbersFailTheRequestOnly) {
  for (const float temperature : {0.0F, 1.0F}) {
    EngineHarness harness;
    ipc::Submit request = greedy_request(1, {1, 2}, 8);
    request.sampling.temperature = temperature;
    harness.engine.submit(request);
    harness.engine.submit(greedy_request(2, {3, 4}, 8));
    harness.turn();
    // Outputs of both, and of both when they are computed again.
    harness.executor.poisoned_outputs = 4;
    harness.run();
    for (const std::uint64_t id : {1, 2}) {
      ASSERT_TRUE(harness.answer(id).failed.has_value());
      EXPECT_EQ(harness.answer(id).failed->code, ipc::FailureCode::kInternal);
    }
    harness.engine.submit(greedy_request(3, {3, 4}, 8));
    harness.run();
    EXPECT_EQ(harness.answer(3).tokens.size(), 8U);
    EXPECT_EQ(harness.engine.scheduler().pool().used_pages(), 0U);
  }
}

TEST(EngineRequests, AnswersThatNoRecordCanHoldAreRefused) {
  engine::EngineOptions options;
  options.max_message_bytes = 1024;
  ExecutorLimits limits = small_limits();
  limits.context = 2000;
  limits.total_pages = 1000;
  EngineHarness harness(limits, options);
  harness.engine.answer(ipc::Tokenize{RequestId{1}, std::string(1000, 'x'), true, true});
  harness.engine.submit(greedy_request(2, some_tokens(1, 1000), 5));
  harness.run();
  EXPECT_EQ(harness.answer(1).failed->code, ipc::FailureCode::kResourceExhausted);
  EXPECT_THAT(harness.answer(1).failed->message, HasSubstr("ipc.ring_kib"));
  EXPECT_EQ(harness.answer(2).failed->code, ipc::FailureCode::kResourceExhausted);
  EXPECT_TRUE(harness.executor.steps.empty());
}

TEST(EngineRequests, StatsCountWhatIsThere) {
  EngineHarness harness;
  for (std::uint64_t id = 1; id <= 20; ++id)
    harness.engine.submit(greedy_request(id, {1, 2}, 5));
  harness.turn();
  const ipc::Stats stats = harness.engine.stats();
  EXPECT_EQ(stats.steps, 1U);
  EXPECT_EQ(stats.active_sequences, 16U);
  EXPECT_EQ(stats.waiting_sequences, 4U);
  EXPECT_EQ(stats.kv_pages_used, 16U);
  EXPECT_EQ(stats.kv_pages_total, 256U);
}

}  // namespace
}  // namespace bulkhead::test

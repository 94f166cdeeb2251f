// An engine on a FakeExecutor. It sorts the engine's messages by request and checks that they come in a valid order.
// Time stands still unless a test advances it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.hpp"
#include "tests/support/fake_executor.hpp"
#include "tests/support/fake_tokenizer.hpp"
#include "worker/engine/engine.hpp"

namespace bulkhead::test {

// What a client would get for one request.
struct Answer {
  std::optional<ipc::Accepted> accepted;
  std::vector<ipc::TokenLogprob> prompt;  // if the request asks for it
  std::uint32_t first_index = 0;  // the index of the first token (not 0 for a resumed request)
  std::vector<ipc::TokenId> tokens;
  std::string text;                    // including the rest that came at the end
  std::vector<ipc::AnswerPart> parts;  // neighbouring pieces of one kind are joined
  std::vector<ipc::TokenLogprob> logprobs;
  std::optional<ipc::Finished> finished;
  std::optional<ipc::Failed> failed;
  std::vector<std::size_t> lots;         // tokens in each record
  std::vector<std::uint64_t> lot_steps;  // the step after which each record came
  bool ended() const { return finished.has_value() || failed.has_value(); }
};

class EngineHarness {
 public:
  explicit EngineHarness(const engine::ExecutorLimits& limits = small_limits(),
                         engine::EngineOptions options = {}, std::vector<std::string> words = {});
  // A successor's engine, with the memory of a dead one. The steps in flight have written nothing.
  EngineHarness(const FakeExecutor& memory, engine::EngineOptions options);

  // Runs one turn; a failure of the executor fails the test.
  bool turn();
  // Runs until every request has ended and every job is answered.
  void run();
  // Runs until `request` has at least this many tokens or has ended.
  void run_until_tokens(std::uint64_t request, std::size_t tokens);
  // Runs one turn, and cancels `request` while the turn's step is in flight.
  void cancel_during_a_step(std::uint64_t request);

  Answer& answer(std::uint64_t request) { return answers[RequestId{request}]; }

  engine::Clock::time_point now{};
  FakeExecutor executor;
  FakeTokenizer tokenizer;
  engine::Language language;
  std::map<RequestId, Answer> answers;
  std::vector<ipc::FromWorker> others;      // Tokenized, Detokenized, Drained
  std::uint64_t records = 0;                // number of TokenBatches
  std::function<void()> meanwhile = [] {};  // turn() calls it while a step is in flight
  engine::Engine engine;

 private:
  void take(const ipc::FromWorker& message);
  static void add(Answer& answer, const std::vector<ipc::AnswerPart>& parts);
};

ipc::Submit greedy_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                           std::uint32_t max_tokens);
ipc::Submit sampled_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                            std::uint32_t max_tokens, std::uint64_t seed);
// Returns `count` tokens that depend on `seed`; all of them are bytes.
std::vector<ipc::TokenId> some_tokens(std::uint64_t seed, std::size_t count);

}  // namespace bulkhead::test

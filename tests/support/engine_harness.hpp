// An engine on a FakeExecutor, with what it said sorted by request and checked against the order
// that messages must have. Time stands still unless a test moves it.
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

// What a client would have of one request.
struct Answer {
  std::optional<ipc::Accepted> accepted;
  std::vector<ipc::TokenLogprob> prompt;  // where it is told
  std::uint32_t first_index = 0;          // of the first token (a resumed request's is not 0)
  std::vector<ipc::TokenId> tokens;
  std::string text;                    // with the rest that came at the end
  std::vector<ipc::AnswerPart> parts;  // pieces of one kind together
  std::vector<ipc::TokenLogprob> logprobs;
  std::optional<ipc::Finished> finished;
  std::optional<ipc::Failed> failed;
  std::vector<std::size_t> lots;         // tokens in each record
  std::vector<std::uint64_t> lot_steps;  // and the step that it came after
  bool ended() const { return finished.has_value() || failed.has_value(); }
};

class EngineHarness {
 public:
  explicit EngineHarness(const engine::ExecutorLimits& limits = small_limits(),
                         engine::EngineOptions options = {}, std::vector<std::string> words = {});

  // One turn; a failure of the executor fails the test.
  bool turn();
  // Until every request has ended and every job is answered.
  void run();
  // Until `request` has at least this many tokens or has ended.
  void run_until_tokens(std::uint64_t request, std::size_t tokens);

  Answer& answer(std::uint64_t request) { return answers[RequestId{request}]; }

  engine::Clock::time_point now{};
  FakeExecutor executor;
  FakeTokenizer tokenizer;
  engine::Language language;
  std::map<RequestId, Answer> answers;
  std::vector<ipc::FromWorker> others;  // Tokenized, Detokenized, Drained
  std::uint64_t records = 0;            // TokenBatches
  std::function<void()> meanwhile = [] {};
  engine::Engine engine;

 private:
  void take(const ipc::FromWorker& message);
  static void add(Answer& answer, const std::vector<ipc::AnswerPart>& parts);
};

ipc::Submit greedy_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                           std::uint32_t max_tokens);
ipc::Submit sampled_request(std::uint64_t id, std::vector<ipc::TokenId> prompt,
                            std::uint32_t max_tokens, std::uint64_t seed);
// `count` tokens that depend on `seed`, all of them bytes.
std::vector<ipc::TokenId> some_tokens(std::uint64_t seed, std::size_t count);

}  // namespace bulkhead::test

// Chooses a token from a row of logits.
//
// The steps, in order (those of Hugging Face's generate() and, except for the place of min-p, of vLLM):
//   0. add the bias of each token that the request names;
//   1. repetition penalty r, for the distinct tokens of prompt and answer (CTRL, Keskar et al. 2019, as Hugging Face
//      defines it): divide a positive logit by r (multiply it by the float nearest to 1 / r), multiply any other by r;
//   2. frequency and presence penalties for the tokens of the answer, as OpenAI defines them:
//      logit -= frequency * count + presence * (count > 0);
//      then remove the tokens outside the constraint's mask;
//   3. at temperature 0 choose the best token, of equal ones the lowest id, and stop; otherwise divide logits by the
//      temperature;
//   4. top-k: keep the k best (of equal ones the lowest ids);
//   5. top-p: keep the fewest best of these whose probabilities, relative to what top-k left, sum to p or more;
//   6. min-p: keep those of these with at least p times the probability of the best one;
//   7. draw once from what is left, with renormalised probabilities; the tokens are in the order of their ids, or,
//      if there is a top-k below the vocabulary's size, the best first.
// The draw of the n-th generated token is a pure function of (seed, n): see philox.hpp. The result is a pure function
// of logits, parameters, token counts and n; sums are added in a fixed order.
//
// Steps 0 to 2 are the same for each token: logit + bias, times r or 1 / r if it repeats, minus a number, and the
// result is kept within kMostEdited. Each operation is rounded on its own, so the device computes the same bits
// (edit_logits.comp), except for numbers below 2^-126, which a GPU may take for 0.
//
// Log-probabilities refer to the raw row: log-softmax at temperature 1, before penalties and truncation, as vLLM and
// OpenAI report them.
//
// The sampler does not sort the whole vocabulary of some 150,000 tokens: selection keeps a buffer of the best so far,
// and a loop that compilers vectorise exponentiates the row. Nothing allocates after construction. Use it from one
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

// The error if a mask allows no token.
inline constexpr const char* kNothingGoesOn =
    "no token of the model's vocabulary can continue the answer in its required form";

// kInvalidArgument names the parameter that is invalid (a negative temperature, NaN, ...).
Status check_sampling(const ipc::Sampling& sampling);

inline bool has_penalties(const ipc::Sampling& s) {
  return s.repetition_penalty != 1.0F || s.frequency_penalty != 0.0F || s.presence_penalty != 0.0F;
}

// Changed logits lie within this. Lower ones stand for excluded tokens on the device (excluded.glsl).
constexpr float kMostEdited = 1e37F;

// Changes the row as the edits say. Their tokens must be below its size.
void apply(const LogitEdits& edits, std::span<float> row);

// What a request changes in each row of logits, apart from masks: biases, and penalties for the tokens so far. Without
// either it stores nothing. Tokens must be below the vocabulary's size.
class TokenHistory {
 public:
  TokenHistory() = default;
  // `most_edits` is the number that most_edits() returns. Biases of the same token add up.
  TokenHistory(const ipc::Sampling& sampling, std::span<const ipc::TokenBias> bias,
               std::uint32_t vocabulary, std::uint32_t most_edits);

  void add_prompt(std::span<const TokenId> tokens);
  void add_generated(TokenId token);

  // The edits of the next row; valid until the next add_*().
  LogitEdits edits() const { return {edits_, {}, sampling_.repetition_penalty}; }
  // Writes the edits of the row after `tokens`, which may be generated next, to `ahead`: those that then differ from
  // edits().
  void look_ahead(std::span<const TokenId> tokens, std::vector<LogitEdit>& ahead) const;

  // Returns the most edits that a request with this many tokens may need. Without a repetition penalty the prompt needs
  // none.
  static std::uint32_t most_edits(const ipc::Sampling& sampling,
                                  std::span<const ipc::TokenBias> bias, std::uint32_t vocabulary,
                                  std::uint32_t prompt_tokens, std::uint32_t answer_tokens);

 private:
  bool penalises() const { return !place_.empty(); }
  std::uint32_t repeats() const { return sampling_.repetition_penalty != 1.0F ? 1 : 0; }
  LogitEdit& see(TokenId token);
  float subtrahend(std::uint32_t count) const;

  ipc::Sampling sampling_;
  std::vector<LogitEdit> edits_;  // those of biases, then others by their token's first occurrence
  std::vector<std::uint32_t> count_;  // for each of the edits: how often its token was generated
  std::vector<std::uint32_t>
      place_;  // by token: 1 + its edit's index; 0: none. Empty: no penalties
};

class Sampler {
 public:
  explicit Sampler(std::uint32_t vocabulary);

  // Returns the token of draw `n`. Biases and penalties are those of `adjustment`; those of `sampling` are not read.
  // kInternal if the row contains an infinity or NaN, because no token would be right, or if the mask contains no token
  // of the row.
  Result<TokenId> sample(std::span<const float> logits, const ipc::Sampling& sampling,
                         std::uint64_t n, const Adjustment& adjustment = {});

  struct Logprobs {
    float chosen = 0;
    std::span<const RankedToken> best;
  };
  // Returns the log-probability of `token`, and the `count` best tokens with theirs, best first (valid until the next
  // call).
  Logprobs logprobs(std::span<const float> logits, TokenId token, std::uint32_t count);

 private:
  std::span<const float> edited(std::span<const float> logits, const LogitEdits& edits);
  // Returns the logits of the mask's tokens; their ids are then in allowed_ids_.
  std::span<const float> allowed(std::span<const float> logits,
                                 std::span<const std::uint32_t> mask);
  // Returns the index of the draw's choice; steps 3 to 7.
  TokenId choose(std::span<const float> logits, const ipc::Sampling& sampling, std::uint64_t n);
  TokenId draw_from_all(std::span<const float> logits, const ipc::Sampling& sampling, double u);
  TokenId draw_from_best(std::span<const float> logits, const ipc::Sampling& sampling, double u);
  double exponentials(std::span<const float> logits, float best, float scale);
  double sum_blocks(std::size_t size);
  RankedToken last_of_mass(std::span<const float> logits, float best, float scale, double mass);
  // Writes the `count` best of the row to candidates_, best first.
  void select_best(std::span<const float> logits, std::size_t count);

  std::vector<float> adjusted_;
  std::vector<float> allowed_;
  std::vector<TokenId> allowed_ids_;
  std::vector<float> weights_;       // exp((logit - best) / temperature), by token
  std::vector<double> block_sums_;   // sums of blocks of weights_
  std::vector<double> bucket_sums_;  // sums of weights_ by exponent
  std::vector<RankedToken> candidates_;
};

}  // namespace bulkhead::engine

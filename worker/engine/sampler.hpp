// Chooses a token from a row of logits.
//
// The steps, in order (those of Hugging Face's generate() and, except for the place of min-p, of vLLM):
//   0. add the bias of each token that the request names;
//   1. repetition penalty r, for the distinct tokens of prompt and answer (CTRL, Keskar et al. 2019, as Hugging Face
//      defines it): divide a positive logit by r, multiply any other by r;
//   2. frequency and presence penalties for the tokens of the answer, as OpenAI defines them:
//      logit -= frequency * count + presence * (count > 0);
//      then remove the tokens outside the constraint's mask;
//   3. at temperature 0 choose the best token, of equal ones the lowest id, and stop; otherwise divide logits by the
//      temperature;
//   4. top-k: keep the k best (of equal ones the lowest ids);
//   5. top-p: keep the fewest best of these whose probabilities, relative to what top-k left, sum to p or more;
//   6. min-p: keep those of these with at least p times the probability of the best one;
//   7. draw once from what is left, with renormalised probabilities.
// The draw of the n-th generated token is a pure function of (seed, n): see philox.hpp. The result is a pure function
// of logits, parameters, token counts and n; sums are added in a fixed order.
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
    "no token of the model's vocabulary can go on with what the answer must be";

// kInvalidArgument names the parameter that is invalid (a negative temperature, NaN, ...).
Status check_sampling(const ipc::Sampling& sampling);

inline bool has_penalties(const ipc::Sampling& s) {
  return s.repetition_penalty != 1.0F || s.frequency_penalty != 0.0F || s.presence_penalty != 0.0F;
}

// What a sequence's sampling depends on besides the logits: how often each token occurred. Without penalties it
// stores nothing. Tokens must be below the vocabulary's size.
class TokenHistory {
 public:
  TokenHistory() = default;
  // `most_tokens` is the limit of prompt and answer together.
  TokenHistory(const ipc::Sampling& sampling, std::uint32_t vocabulary, std::uint32_t most_tokens);

  void add_prompt(std::span<const TokenId> tokens);
  void add_generated(TokenId token);

  bool active() const { return !count_.empty(); }
  std::span<const TokenId> distinct() const { return distinct_; }
  std::uint32_t generated(TokenId token) const { return count_[token] & ~kSeen; }

 private:
  static constexpr std::uint32_t kSeen = 1U << 31;
  void see(TokenId token);
  std::vector<std::uint32_t> count_;  // by token: kSeen | times generated
  std::vector<TokenId> distinct_;     // in prompt or answer, by first occurrence
};

// The changes that a request makes to a row of logits, apart from penalties.
struct Adjustments {
  std::span<const ipc::TokenBias> bias;  // tokens below the vocabulary's size
  // The tokens that may be chosen (token_constraint.hpp); empty: all.
  std::span<const std::uint32_t> mask;
};

class Sampler {
 public:
  explicit Sampler(std::uint32_t vocabulary);

  // Returns the token of draw `n`. kInternal if the row contains an infinity or NaN, because no token would be right,
  // or if the mask contains no token of the row.
  Result<TokenId> sample(std::span<const float> logits, const ipc::Sampling& sampling,
                         const TokenHistory& history, std::uint64_t n,
                         const Adjustments& adjustments = {});

  // Returns the log-probability of `token`, and the `count` best tokens with theirs, best first (valid until the next
  // call).
  struct Logprobs {
    float chosen = 0;
    std::span<const RankedToken> best;
  };
  Logprobs logprobs(std::span<const float> logits, TokenId token, std::uint32_t count);

 private:
  std::span<const float> adjusted(std::span<const float> logits, const ipc::Sampling& sampling,
                                  const TokenHistory& history, const Adjustments& adjustments);
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

// From a row of logits to a token.
//
// The steps, in order (those of Hugging Face's generate() and, but for the place of min-p, of
// vLLM):
//   0. a bias for each of the tokens that the request names is added;
//   1. repetition penalty r, over the distinct tokens of prompt and answer (CTRL, Keskar et al.
//   2019, as Hugging Face
//      defines it): a positive logit is divided by r, another multiplied by r;
//   2. frequency and presence penalties over the answer alone, as OpenAI defines them:
//      logit -= frequency * count + presence * (count > 0);
//      after that, tokens outside the constraint's mask are left out;
//   3. temperature 0: the best token, ties to the lower id. Else logits are divided by the
//   temperature;
//   4. top-k: the k best (ties at the border: lower ids);
//   5. top-p: of these the fewest best whose probabilities, over what top-k left, sum to p or more;
//   6. min-p: of these the ones with at least p times the best one's probability;
//   7. one draw from what is left, renormalised.
// The draw of the n-th generated token is a pure function of (seed, n): see philox.hpp. The result
// is a pure function of logits, parameters, token counts and n; sums run in a fixed order.
//
// Log-probabilities are of the raw row: log-softmax at temperature 1, before penalties and
// truncation, as vLLM and OpenAI report them.
//
// Full sorts of a 150,000-token vocabulary are avoided: selection keeps a buffer of the best so
// far, and a row is exponentiated by a loop that compilers vectorise. Nothing allocates after
// construction. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

// kInvalidArgument naming the parameter that makes no sense (a negative temperature, NaN, ...).
Status check_sampling(const ipc::Sampling& sampling);

inline bool has_penalties(const ipc::Sampling& s) {
  return s.repetition_penalty != 1.0F || s.frequency_penalty != 0.0F || s.presence_penalty != 0.0F;
}

// What one sequence's sampling depends on besides the logits: how often each token occurred.
// Without penalties it keeps nothing. Tokens must be below the vocabulary's size.
class TokenHistory {
 public:
  TokenHistory() = default;
  // `most_tokens`: prompt and answer at most.
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

// What a request changes in a row of logits besides penalties.
struct Adjustments {
  std::span<const ipc::TokenBias> bias;  // tokens below the vocabulary's size
  // Tokens that may be chosen (token_constraint.hpp); empty: all.
  std::span<const std::uint32_t> mask;
};

class Sampler {
 public:
  explicit Sampler(std::uint32_t vocabulary);

  // The token of draw `n`. kInternal when the row has an infinity or NaN in it: then no token would
  // be right; or when the mask has no token of the row.
  Result<TokenId> sample(std::span<const float> logits, const ipc::Sampling& sampling,
                         const TokenHistory& history, std::uint64_t n,
                         const Adjustments& adjustments = {});

  // Log-probability of `token`, and the `count` best with theirs, best first (valid until the next
  // call).
  struct Logprobs {
    float chosen = 0;
    std::span<const RankedToken> best;
  };
  Logprobs logprobs(std::span<const float> logits, TokenId token, std::uint32_t count);

 private:
  std::span<const float> adjusted(std::span<const float> logits, const ipc::Sampling& sampling,
                                  const TokenHistory& history, const Adjustments& adjustments);
  // The logits of the mask's tokens, whose ids are then in allowed_ids_.
  std::span<const float> allowed(std::span<const float> logits,
                                 std::span<const std::uint32_t> mask);
  // Index of the draw's choice; steps 3 to 7.
  TokenId choose(std::span<const float> logits, const ipc::Sampling& sampling, std::uint64_t n);
  TokenId draw_from_all(std::span<const float> logits, const ipc::Sampling& sampling, double u);
  TokenId draw_from_best(std::span<const float> logits, const ipc::Sampling& sampling, double u);
  double exponentials(std::span<const float> logits, float best, float scale);
  double sum_blocks(std::size_t size);
  RankedToken last_of_mass(std::span<const float> logits, float best, float scale, double mass);
  // The `count` best of the row, best first, in candidates_.
  void select_best(std::span<const float> logits, std::size_t count);

  std::vector<float> adjusted_;
  std::vector<float> allowed_;
  std::vector<TokenId> allowed_ids_;
  std::vector<float> weights_;       // exp((logit - best) / temperature), by token
  std::vector<double> block_sums_;   // of weights_, by blocks
  std::vector<double> bucket_sums_;  // of weights_, by their exponents
  std::vector<RankedToken> candidates_;
};

}  // namespace bulkhead::engine

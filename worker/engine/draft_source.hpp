// Guesses of what a sequence goes on with. A guess costs nothing if nobody takes it, and is never
// trusted: the scheduler has it computed beside the sequence's own next token, and only tokens that
// come out the same are kept. So a source may be wrong as often as it likes; no result depends on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // `tokens`: prompt and answer as they are now; what was there at the last call is unchanged.
  virtual void advance(std::span<const TokenId> tokens) = 0;
  // The tokens that it expects after `tokens` (those of the last advance()), nearest first. Returns
  // how many of `guesses` it has filled. Any number of calls give the same.
  virtual std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const = 0;
};

// Expects what followed when the last tokens occurred before, in the prompt or in the answer (prompt
// lookup decoding, A. Saxena 2023). It goes on along an earlier place for as long as that is right,
// else looks up the last three tokens in a table of fixed size, where a newer place pushes out an
// older one. Tokens are compared, so a collision only hides a place. Nothing allocates after
// construction.
class NgramSource final : public DraftSource {
 public:
  static constexpr std::size_t kTokens = 3;  // of a key

  // `most_tokens`: prompt and answer at most. At most 256 KiB of host memory.
  explicit NgramSource(std::size_t most_tokens);
  void advance(std::span<const TokenId> tokens) override;
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::uint32_t& place_after(std::span<const TokenId> key);

  std::vector<std::uint32_t> places_;  // index after an occurrence of a key; 0: none
  std::uint32_t seen_ = 0;             // tokens
  std::uint32_t follows_ = 0;          // index of the token that is expected next; 0: none
};

// Expects a recorded sequence, and is wrong about as many tokens as it is told to be: what it can gain
// is the same with any weights. For tests and benchmarks.
class RecordedSource final : public DraftSource {
 public:
  // `accuracy`: 0 to 1. Which guesses are wrong depends on their place alone.
  RecordedSource(std::vector<TokenId> recorded, double accuracy, std::uint32_t vocabulary);
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::vector<TokenId> guesses_;  // by index
};

}  // namespace bulkhead::engine

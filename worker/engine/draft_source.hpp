// A source guesses the tokens that a sequence goes on with. The engine trusts no guess: a step computes the guess
// beside the sequence's own next token, and the engine keeps only the guesses that come out the same.
// So no result depends on how often a source is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // `tokens`: prompt and answer as they are now. They begin with the tokens of the last call.
  virtual void advance(std::span<const TokenId> tokens) = 0;
  // Writes the tokens that it expects after those of the last advance() into `guesses`, nearest first, and
  // returns how many it wrote. Repeated calls give the same.
  virtual std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const = 0;
};

// Expects the tokens that followed when the last tokens occurred before, in the prompt or in the answer
// (prompt lookup decoding, A. Saxena 2023). While an earlier place predicts the tokens rightly, the source
// goes on along that place. Otherwise the source looks up the last three tokens in a table of fixed size, where
// a newer place replaces an older one. The source compares the tokens, so a collision only hides a place. It
// allocates nothing after construction.
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

// Expects a recorded sequence, and is wrong about a chosen share of its tokens, so that what speculation
// gains does not depend on the weights. Tests and benchmarks use it.
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

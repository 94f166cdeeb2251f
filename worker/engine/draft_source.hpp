// A source guesses the next tokens of a sequence. The engine does not trust guesses: a step computes the guesses
// beside the sequence's own next token, and the engine keeps only those that come out the same. So no result depends
// on how often a source is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // `tokens` are the prompt and the answer as they are now. They must begin with the tokens of the last call.
  virtual void advance(std::span<const TokenId> tokens) = 0;
  // Writes the tokens that it expects after those of the last advance() into `guesses`, nearest first, and returns
  // how many it wrote. Repeated calls return the same guesses.
  virtual std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const = 0;
};

// Expects the tokens that followed when the last tokens occurred before, in the prompt or in the answer (prompt
// lookup decoding, A. Saxena 2023). As long as an earlier place predicts the tokens correctly, the source stays with
// that place. Otherwise it looks up the last three tokens in a table of fixed size, where a newer place replaces an
// older one. It compares the tokens, so a collision can only hide a place. It allocates nothing after construction.
class NgramSource final : public DraftSource {
 public:
  static constexpr std::size_t kTokens = 3;  // tokens of a key

  // `most_tokens` is the limit of prompt and answer together. Uses at most 256 KiB of host memory.
  explicit NgramSource(std::size_t most_tokens);
  void advance(std::span<const TokenId> tokens) override;
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::uint32_t& place_after(std::span<const TokenId> key);

  std::vector<std::uint32_t> places_;  // index after an occurrence of a key; 0: none
  std::uint32_t seen_ = 0;             // tokens seen so far
  std::uint32_t follows_ = 0;          // index of the token that is expected next; 0: none
};

// Expects a recorded sequence, and guesses a chosen share of its tokens wrong, so that the gain from speculation does
// not depend on the weights. For tests and benchmarks.
class RecordedSource final : public DraftSource {
 public:
  // `accuracy` is 0 to 1. Only a guess's place decides whether it is wrong.
  RecordedSource(std::vector<TokenId> recorded, double accuracy, std::uint32_t vocabulary);
  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::vector<TokenId> guesses_;  // by index
};

}  // namespace bulkhead::engine

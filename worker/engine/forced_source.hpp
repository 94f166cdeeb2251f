// Guesses the text for which a constraint leaves no choice, such as a grammar's literals. (A schema leaves a choice
// for the spelling of most names, because JSON has escapes.) As with every source, a guess changes no token: the step
// computes and draws each token of that text as it would without the guess, with its own log-probability and draw
// number, but several at once. So the model still decides which tokens spell the text, and a wrong spelling costs a
// column.
#pragma once

#include <vector>

#include "worker/engine/draft_source.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

class ForcedSource final : public DraftSource {
 public:
  // The constraint and the tokenizer must outlive this object. Before each call of guess(), the constraint must have
  // taken the tokens that the call passes.
  ForcedSource(TokenConstraint& constraint, const model::Tokenizer& tokenizer)
      : constraint_(constraint), tokenizer_(tokenizer) {}

  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::vector<TokenId> spelled() const;

  TokenConstraint& constraint_;
  const model::Tokenizer& tokenizer_;
  mutable std::vector<TokenId> known_;  // the guesses after known_for_ tokens
  mutable std::size_t known_for_ = 0;   // 0: none are known
};

}  // namespace bulkhead::engine

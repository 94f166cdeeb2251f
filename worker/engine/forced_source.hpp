// Guesses the text that a constraint leaves no choice about, such as a grammar's literals. (A schema leaves a
// choice about the spelling of most names: JSON has escapes.) As for every source, a guess changes no token: the
// step that has it computes and draws each token of that text as it would alone, with its own log-probability and
// number of draw, only several at once. So which tokens spell the text is the model's to say, and a wrong spelling
// costs a column.
#pragma once

#include <vector>

#include "worker/engine/draft_source.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

class ForcedSource final : public DraftSource {
 public:
  // Both must outlive it. The constraint stands behind the same tokens as those that guess() is asked about.
  ForcedSource(TokenConstraint& constraint, const model::Tokenizer& tokenizer)
      : constraint_(constraint), tokenizer_(tokenizer) {}

  void advance(std::span<const TokenId>) override {}
  std::size_t guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const override;

 private:
  std::vector<TokenId> spelled() const;

  TokenConstraint& constraint_;
  const model::Tokenizer& tokenizer_;
  mutable std::vector<TokenId> known_;  // the guesses behind so many tokens
  mutable std::size_t known_for_ = 0;   // 0: none are known
};

}  // namespace bulkhead::engine

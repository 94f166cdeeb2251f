// A constraint that begins behind a mark: an answer to a schema follows the reasoning that the prompt has opened. (Tool
// calls are answer_constraint.hpp's.)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/token_constraint.hpp"
#include "worker/model/answer/family.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// The mark that closes the reasoning which a prompt has opened as its last word; empty where it has opened
// none. The mark is the model's family's own, and points into `family`.
std::string_view open_reasoning(const model::Tokenizer& tokenizer, std::span<const TokenId> prompt,
                                const model::answer::Family& family);

// Until the answer's text has the mark, any token may come but those that end it; `inner` holds from the
// token after the one that completes the mark.
class DelayedConstraint : public TokenConstraint {
 public:
  // `inner` is not null, `mark` not empty; the tokenizer must outlive this. `outer`, where there is one, holds what
  // comes before the mark.
  DelayedConstraint(std::unique_ptr<TokenConstraint> inner, std::string_view mark,
                    const model::Tokenizer& tokenizer,
                    std::unique_ptr<TokenConstraint> outer = nullptr);

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  std::string forced_text(std::size_t most) override {
    return begun_ ? inner_->forced_text(most) : std::string();
  }
  bool complete() override { return begun_ && inner_->complete(); }

 private:
  std::unique_ptr<TokenConstraint> inner_, outer_;
  std::string mark_;
  const model::Tokenizer& tokenizer_;
  std::string text_;  // the end of the answer, as far as it can hold the mark's beginning
  std::vector<std::uint32_t> before_, both_;
  bool begun_ = false;
};

}  // namespace bulkhead::engine

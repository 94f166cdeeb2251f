// A constraint that begins after a mark: an answer follows a schema only after the reasoning that the prompt has
// opened. (answer_constraint.hpp does this for tool calls.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/token_constraint.hpp"
#include "worker/model/answer/family.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// Returns the mark that closes the reasoning, if the prompt ends by opening reasoning; otherwise an empty text. The
// mark is the one of the model's family, and points into `family`.
std::string_view open_reasoning(const model::Tokenizer& tokenizer, std::span<const TokenId> prompt,
                                const model::answer::Family& family);

// Until the answer contains the mark, every token is allowed except the end tokens, and tokens that go on after the
// mark with something that `inner` does not accept. `inner` applies to what follows the mark, except for blanks in the
// token that completes the mark.
class DelayedConstraint : public TokenConstraint {
 public:
  // `inner` must not be null, and `mark` must not be empty; the tokenizer must outlive this. `outer`, if it is not
  // null, applies to what comes before the mark. `continued` is the text that the answer goes on with; it may end with
  // a part of the mark.
  DelayedConstraint(std::unique_ptr<TokenConstraint> inner, std::string_view mark,
                    const model::Tokenizer& tokenizer,
                    std::unique_ptr<TokenConstraint> outer = nullptr,
                    std::string_view continued = {});

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  std::string forced_text(std::size_t most) override {
    return begun_ ? inner_->forced_text(most) : std::string();
  }
  std::unique_ptr<MasksAhead> ahead() override { return begun_ ? inner_->ahead() : nullptr; }
  bool complete() override { return begun_ && inner_->complete(); }

 private:
  // A token that completes the mark and goes on.
  struct Overhang {
    std::size_t begun = 0;  // the bytes of the mark that come before the token
    TokenId token = 0;
    std::optional<TokenId> rest;  // a token of the text that goes on, if there is one
  };
  void find_overhangs();
  bool applies(const Overhang& overhang) const;

  std::unique_ptr<TokenConstraint> inner_, outer_;
  std::string mark_;
  const model::Tokenizer& tokenizer_;
  std::string text_;  // the end of the answer, as much of it as may be the beginning of the mark
  std::vector<std::uint32_t> before_, both_;
  std::vector<Overhang> overhangs_;
  bool begun_ = false;
};

}  // namespace bulkhead::engine

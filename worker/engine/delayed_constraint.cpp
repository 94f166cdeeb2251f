#include "worker/engine/delayed_constraint.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::engine {
namespace {

// In most vocabularies marks are tokens of their own: control tokens, which have no text.
std::string_view written(const model::Tokenizer& tokenizer, TokenId token) {
  const std::string_view piece = tokenizer.piece(token);
  return piece.empty() ? tokenizer.vocabulary_text(token) : piece;
}

}  // namespace

std::string_view open_reasoning(const model::Tokenizer& tokenizer, std::span<const TokenId> prompt,
                                const model::answer::Family& family) {
  constexpr std::size_t kMostTokens = 32;  // most tokens of a mark and the line ends after it
  std::string tail;
  for (const TokenId token : prompt.last(std::min(prompt.size(), kMostTokens)))
    tail += written(tokenizer, token);
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' '))
    tail.pop_back();
  // A channel's name is not a mark: it opens nothing before its header has ended.
  if (family.calls.syntax == model::answer::CallSyntax::kChannels) return {};
  const model::answer::Reasoning& reasoning = family.reasoning;
  const bool open = !reasoning.open.empty() && tail.ends_with(reasoning.open);
  return open ? std::string_view(reasoning.close) : std::string_view();
}

DelayedConstraint::DelayedConstraint(std::unique_ptr<TokenConstraint> inner, std::string_view mark,
                                     const model::Tokenizer& tokenizer,
                                     std::unique_ptr<TokenConstraint> outer)
    : inner_(std::move(inner)), outer_(std::move(outer)), mark_(mark), tokenizer_(tokenizer) {
  before_.assign((tokenizer.size() + 31) / 32, 0xFFFFFFFF);
  for (TokenId token = 0; token < tokenizer.size(); ++token) {
    if (tokenizer.ends_generation(token)) before_[token / 32] &= ~(1U << (token % 32));
  }
}

void DelayedConstraint::advance(TokenId token) {
  if (begun_) return inner_->advance(token);
  if (outer_ != nullptr) outer_->advance(token);
  text_ += written(tokenizer_, token);
  begun_ = text_.find(mark_) != std::string::npos;
  if (text_.size() >= mark_.size()) text_.erase(0, text_.size() - mark_.size() + 1);
}

Result<std::span<const std::uint32_t>> DelayedConstraint::mask() {
  if (begun_) return inner_->mask();
  if (outer_ == nullptr) return std::span<const std::uint32_t>(before_);
  BULKHEAD_TRY(const auto outer, outer_->mask());
  both_ = before_;
  for (std::size_t word = 0; word < outer.size(); ++word)
    both_[word] &= outer[word];
  return std::span<const std::uint32_t>(both_);
}

}  // namespace bulkhead::engine

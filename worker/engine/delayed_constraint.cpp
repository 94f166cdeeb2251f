#include "worker/engine/delayed_constraint.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace bulkhead::engine {
namespace {

// In most vocabularies marks are tokens of their own: control tokens, which have no text.
std::string_view written(const model::Tokenizer& tokenizer, TokenId token) {
  const std::string_view piece = tokenizer.piece(token);
  return piece.empty() ? tokenizer.vocabulary_text(token) : piece;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == text.npos;
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
                                     std::unique_ptr<TokenConstraint> outer,
                                     std::string_view continued)
    : inner_(std::move(inner)),
      outer_(std::move(outer)),
      mark_(mark),
      tokenizer_(tokenizer),
      text_(continued.substr(continued.size() - std::min(continued.size(), mark.size() - 1))) {
  before_.assign((tokenizer.size() + 31) / 32, 0xFFFFFFFF);
  for (TokenId token = 0; token < tokenizer.size(); ++token) {
    if (tokenizer.ends_generation(token)) before_[token / 32] &= ~(1U << (token % 32));
  }
  find_overhangs();
}

void DelayedConstraint::find_overhangs() {
  std::map<std::string, std::optional<TokenId>, std::less<>> rests;
  std::vector<std::string> texts;  // by overhang
  const auto add = [&](std::size_t begun, TokenId token, std::string_view rest) {
    if (is_blank(rest)) return;
    overhangs_.push_back({begun, token, std::nullopt});
    texts.emplace_back(rest);
    rests.emplace(rest, std::nullopt);
  };
  for (TokenId token = 0; token < tokenizer_.size(); ++token) {
    const std::string_view piece = written(tokenizer_, token);
    if (const std::size_t at = piece.find(mark_); at != piece.npos)
      add(0, token, piece.substr(at + mark_.size()));
    for (std::size_t begun = 1; begun < mark_.size(); ++begun) {
      const std::string_view end = std::string_view(mark_).substr(begun);
      if (piece.starts_with(end)) add(begun, token, piece.substr(end.size()));
    }
  }
  if (rests.empty()) return;
  for (TokenId token = 0; token < tokenizer_.size(); ++token) {
    const auto rest = rests.find(tokenizer_.piece(token));
    if (rest != rests.end() && !rest->second) rest->second = token;
  }
  for (std::size_t i = 0; i < overhangs_.size(); ++i)
    overhangs_[i].rest = rests.find(texts[i])->second;
}

bool DelayedConstraint::applies(const Overhang& overhang) const {
  return overhang.begun == 0 || text_.ends_with(std::string_view(mark_).substr(0, overhang.begun));
}

void DelayedConstraint::advance(TokenId token) {
  if (begun_) return inner_->advance(token);
  if (outer_ != nullptr) outer_->advance(token);
  for (const Overhang& each : overhangs_) {
    if (each.token != token || !applies(each)) continue;
    begun_ = true;
    if (each.rest) inner_->advance(*each.rest);
    return;
  }
  text_ += written(tokenizer_, token);
  begun_ = text_.find(mark_) != std::string::npos;
  if (text_.size() >= mark_.size()) text_.erase(0, text_.size() - mark_.size() + 1);
}

Result<std::span<const std::uint32_t>> DelayedConstraint::mask() {
  if (begun_) return inner_->mask();
  const bool overhangs =
      std::ranges::any_of(overhangs_, [this](const Overhang& o) { return applies(o); });
  if (outer_ == nullptr && !overhangs) return std::span<const std::uint32_t>(before_);
  both_ = before_;
  if (outer_ != nullptr) {
    BULKHEAD_TRY(const auto outer, outer_->mask());
    for (std::size_t word = 0; word < outer.size(); ++word)
      both_[word] &= outer[word];
  }
  if (!overhangs) return std::span<const std::uint32_t>(both_);
  BULKHEAD_TRY(const auto inner, inner_->mask());
  const auto accepted = [&inner = inner](TokenId token) {
    return inner.empty() ||
           (token / 32 < inner.size() && (inner[token / 32] >> (token % 32) & 1) != 0);
  };
  for (const Overhang& each : overhangs_) {
    if (applies(each) && !(each.rest && accepted(*each.rest)))
      both_[each.token / 32] &= ~(1U << (each.token % 32));
  }
  return std::span<const std::uint32_t>(both_);
}

}  // namespace bulkhead::engine

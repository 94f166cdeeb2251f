#include "worker/engine/grammar_constraint.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "worker/constrain/constraint.hpp"

namespace bulkhead::engine {
namespace {

// A useful grammar needs a few MiB. Hostile grammars are forgotten and made again, at their own cost.
constexpr std::size_t kMostRemembered = std::size_t{48} << 20;
constexpr std::size_t kMostGrammars = 16;

Result<constrain::Compiled> compile(const ipc::Constraint& wanted) {
  switch (wanted.kind) {
    case ipc::ConstraintKind::kNone:
      break;
    case ipc::ConstraintKind::kJsonObject:
      return constrain::compile_json_object();
    case ipc::ConstraintKind::kJsonSchema:
      return constrain::compile_schema(wanted.text, constrain::Strictness::kStrict);
    case ipc::ConstraintKind::kGrammar:
      return constrain::compile_gbnf(wanted.text);
    case ipc::ConstraintKind::kRegex:
      return constrain::compile_regex(wanted.text);
  }
  return Error(ErrorCode::kInternal, "a constraint of no kind");
}

}  // namespace

Error too_ambiguous() {
  return Error(ErrorCode::kResourceExhausted,
               "the required form of the answer is too ambiguous: it can go on in too many ways");
}

Error for_good(const Error& error) {
  const bool limit = error.code() == ErrorCode::kResourceExhausted;
  return limit ? Error(ErrorCode::kUnsupported, error.message()) : error;
}

Result<constrain::Compiled> compile_constraint(const ipc::Constraint& wanted) {
  Result<constrain::Compiled> compiled = compile(wanted);
  if (!compiled.ok()) return for_good(compiled.error());
  return compiled;
}

GrammarMasks::GrammarMasks(std::shared_ptr<const constrain::Grammar> grammar,
                           std::shared_ptr<const constrain::TokenTrie> trie,
                           std::vector<TokenId> ends)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      ends_(std::move(ends)),
      masks_(std::make_unique<constrain::TokenMasks>(grammar_, trie_, ends_)) {}

void GrammarMasks::trim() {
  if (masks_->bytes() <= kMostRemembered) return;
  masks_ = std::make_unique<constrain::TokenMasks>(grammar_, trie_, ends_);
  ++epoch_;
}

const constrain::TokenMask* GrammarAhead::behind(TokenId token) {
  if (at_ == constrain::kNowhere) return nullptr;
  at_ = masks_.advance(at_, text_(token));
  if (!to_the_end_ && at_ != constrain::kNowhere && masks_.accepting(at_))
    at_ = constrain::kNowhere;  // the call ends here
  return at_ == constrain::kNowhere ? nullptr : masks_.mask(at_);
}

void GrammarConstraint::locate() {
  if (epoch_ == masks_->epoch()) return;
  at_ = masks_->get().advance(masks_->get().start(), text_);
  epoch_ = masks_->epoch();
}

void GrammarConstraint::advance(TokenId token) {
  locate();
  const std::string_view piece = tokenizer_.piece(token);
  text_ += piece;
  at_ = masks_->get().advance(at_, piece);
}

Result<std::span<const std::uint32_t>> GrammarConstraint::mask() {
  masks_->trim();
  locate();
  const constrain::TokenMask* mask = masks_->get().mask(at_);
  if (mask == nullptr) return too_ambiguous();
  return std::span<const std::uint32_t>(*mask);
}

std::string GrammarConstraint::forced_text(std::size_t most) {
  locate();
  return at_ == constrain::kNowhere ? std::string() : masks_->get().forced(at_, most);
}

std::unique_ptr<MasksAhead> GrammarConstraint::ahead() {
  locate();
  const auto text = [this](TokenId token) { return tokenizer_.piece(token); };
  return std::make_unique<GrammarAhead>(masks_->get(), at_, text, true);
}

bool GrammarConstraint::complete() {
  locate();
  return masks_->get().only_end(at_);
}

Result<std::unique_ptr<TokenConstraint>> ConstraintCompiler::compile(
    const ipc::Constraint& wanted, const model::Tokenizer& tokenizer) {
  if (wanted.kind == ipc::ConstraintKind::kNone) return std::unique_ptr<TokenConstraint>();
  Result<std::shared_ptr<GrammarMasks>> masks = masks_for(wanted, tokenizer);
  if (!masks.ok()) return for_good(masks.error());
  return std::unique_ptr<TokenConstraint>(
      std::make_unique<GrammarConstraint>(*std::move(masks), tokenizer));
}

Result<std::shared_ptr<GrammarMasks>> ConstraintCompiler::masks_for(
    const ipc::Constraint& wanted, const model::Tokenizer& tokenizer) {
  const auto known = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return kept.kind == wanted.kind && kept.text == wanted.text;
  });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return known->masks;
  }
  BULKHEAD_TRY(constrain::Compiled compiled, compile_constraint(wanted));
  if (trie_ == nullptr) {
    std::vector<std::string_view> pieces(tokenizer.size());
    for (TokenId token = 0; token < pieces.size(); ++token) {
      if (tokenizer.ends_generation(token)) {
        ends_.push_back(token);
      } else {
        pieces[token] = tokenizer.piece(token);
      }
    }
    trie_ = std::make_shared<constrain::TokenTrie>(pieces);
  }
  auto masks = std::make_shared<GrammarMasks>(std::move(compiled.grammar), trie_, ends_);
  // Once it has been handed out, only the engine's thread touches it.
  const constrain::TokenMask* first = masks->get().mask(masks->get().start());
  if (first == nullptr) return too_ambiguous();
  if (!masks->get().only_end(masks->get().start()) && !constrain::lets_any_through(*first)) {
    return Error(ErrorCode::kUnsupported,
                 "no token of this model's vocabulary can begin an answer that it allows");
  }
  kept_.push_front({wanted.kind, wanted.text, masks});
  if (kept_.size() > kMostGrammars) kept_.pop_back();
  return masks;
}

}  // namespace bulkhead::engine

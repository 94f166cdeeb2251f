#include "worker/engine/answer_constraint.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::engine {
namespace {

using constrain::TokenTrie;

constexpr char kMarkByte = '\xFF';  // a byte that no UTF-8 text contains
constexpr std::size_t kShortestMark = 6;

// Says whether the text looks like a whole mark. A token of such a text is a mark, even if it is not a control token.
bool looks_like_a_mark(std::string_view text) {
  return text.size() >= kShortestMark && (text.front() == '<' || text.front() == '[') &&
         (text.back() == '>' || text.back() == ']');
}

// Returns the node of the trie that `text` leads to from `node`, or the root's number if there is none.
std::uint32_t descend(const TokenTrie& trie, std::uint32_t node, std::string_view text) {
  const auto& nodes = trie.nodes();
  for (const char c : text) {
    const std::uint32_t end = node + nodes[node].subtree;
    std::uint32_t child = node + 1;
    while (child < end && nodes[child].byte != static_cast<unsigned char>(c))
      child += nodes[child].subtree;
    if (child >= end) return 0;
    node = child;
  }
  return node;
}

template <typename Take>
void tokens_at(const TokenTrie& trie, std::uint32_t node, Take take) {
  const TokenTrie::Node& here = trie.nodes()[node];
  for (std::uint32_t i = 0; i < here.tokens; ++i)
    take(trie.ids()[here.first_token + i]);
}

void allow(constrain::TokenMask& mask, TokenId token) {
  mask[token / 32] |= 1U << (token % 32);
}
void forbid(constrain::TokenMask& mask, TokenId token) {
  mask[token / 32] &= ~(1U << (token % 32));
}

// Adds the tokens whose text is the beginning of `text`, or all of it.
void allow_along(const TokenTrie& trie, std::string_view text, constrain::TokenMask& mask) {
  for (std::size_t length = 1; length <= text.size(); ++length) {
    const std::uint32_t node = descend(trie, 0, text.substr(0, length));
    if (node == 0) return;
    tokens_at(trie, node, [&](TokenId token) { allow(mask, token); });
  }
}

}  // namespace

SpelledTokens::SpelledTokens(const model::Tokenizer& tokenizer, const model::answer::Family& family)
    : spelled_(tokenizer.size()), plain_(tokenizer.size()) {
  for (TokenId token = 0; token < tokenizer.size(); ++token) {
    const bool control = tokenizer.is_control(token);
    const std::string_view text =
        control ? tokenizer.vocabulary_text(token) : tokenizer.piece(token);
    const bool mark = model::answer::has_mark(family, text) && (control || looks_like_a_mark(text));
    if (mark || !control) plain_[token] = text;
    if (plain_[token].find('"') != std::string_view::npos) quoting_.push_back(token);
    if (tokenizer.ends_generation(token)) {
      ends_.push_back(token);
    } else if (mark) {
      spelled_[token] = kMarkByte + std::string(text);
      marks_.push_back(text);
    } else if (!control && text.find(kMarkByte) == std::string_view::npos) {
      spelled_[token] = text;
    }
  }
  std::ranges::sort(marks_, [](std::string_view a, std::string_view b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  trie_ =
      std::make_shared<TokenTrie>(std::vector<std::string_view>(spelled_.begin(), spelled_.end()));
}

std::string SpelledTokens::spell(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const auto mark =
        std::ranges::find_if(marks_, [&](std::string_view each) { return text.starts_with(each); });
    if (mark == marks_.end()) {
      out += text[0];
      text.remove_prefix(1);
    } else {
      out += kMarkByte;
      out += *mark;
      text.remove_prefix(mark->size());
    }
  }
  return out;
}

AnswerConstraint::AnswerConstraint(AnswerRules rules, model::answer::AnswerRequest request)
    : rules_(std::move(rules)),
      parser_(*rules_.family, request),
      bare_json_(rules_.family->calls),
      tools_(std::move(request.tools)) {
  static_cast<void>(parser_.feed({}));
  place_ = parser_.place();
  if (place_.bare) follow_bare(parser_.undecided());
  const bool channels = rules_.family->calls.syntax == model::answer::CallSyntax::kChannels;
  opener_ = rules_.tokens->spell(channels ? "<|channel|>analysis<|message|>"
                                          : rules_.family->reasoning.open);
  // If the answer spells this mark out by letters, that does not show that the model reasons.
  if (!opener_.starts_with(kMarkByte) || !place_.may_reason) opener_.clear();
  if (place_.reasons) {
    phase_ = Phase::kReasoning;
  } else if (rules_.from_start) {
    phase_ = Phase::kHeld;
  }
}

void AnswerConstraint::locate() {
  if (epoch_ == rules_.held->epoch()) return;
  at_ = rules_.held->get().advance(rules_.held->get().start(), held_text_);
  epoch_ = rules_.held->epoch();
}

void AnswerConstraint::hold(std::string_view spelled) {
  held_text_ = spelled;
  epoch_ = 0;
  locate();
  // A call in a form that the grammar does not have (a family's code) is not constrained.
  given_up_ = at_ == constrain::kNowhere;
  fresh_ = true;
  phase_ = given_up_ ? Phase::kFree : Phase::kHeld;
}

void AnswerConstraint::advance(TokenId token) {
  const std::string_view plain = rules_.tokens->plain(token);
  const std::string_view spelled = rules_.tokens->spelled(token);
  const bool reasoned = phase_ == Phase::kReasoning;
  fresh_ = false;
  free_mask_.reset();
  if (spelled.starts_with(kMarkByte)) {
    step(plain, spelled);
  } else {
    for (std::size_t i = 0; i < plain.size(); ++i)
      step(plain.substr(i, 1), plain.substr(i, 1));
  }
  if (reasoned) ++reasoned_;
}

void AnswerConstraint::step(std::string_view plain, std::string_view spelled) {
  switch (phase_) {
    case Phase::kDone:
      return;
    case Phase::kFree:
    case Phase::kReasoning:
      return step_free(plain);
    case Phase::kHeld:
      break;
  }
  static_cast<void>(parser_.feed(plain));
  place_ = parser_.place();
  if (place_.reasons) {  // the family begins an answer in its own way
    phase_ = Phase::kReasoning;
    return;
  }
  locate();
  held_text_ += spelled;
  at_ = rules_.held->get().advance(at_, spelled);
  if (rules_.from_start) return;
  if (at_ == constrain::kNowhere) {
    if (!fresh_ && !rules_.may_give_up) return;
    given_up_ = true;
    phase_ = Phase::kFree;
    return;
  }
  if (!rules_.held->get().accepting(at_)) return;
  phase_ = rules_.one_call ? Phase::kDone : Phase::kFree;
}

void AnswerConstraint::follow_bare(const std::string& more) {
  bare_ += more;
  for (const char byte : more)
    bare_json_.feed(byte);
}

// Returns the call without a mark as the grammar has it, as far as it has come.
std::string AnswerConstraint::bare_call() const {
  if (bare_json_.named()) return bare_json_.in_order(bare_);
  const std::string_view begins = model::answer::bare_begins(rules_.family->calls);
  std::string call = bare_.substr(std::min(bare_.find_first_of(begins), bare_.size()));
  // In Python's notation this is a bracket and a name, and the grammar has few blanks between them.
  std::erase_if(call,
                [](char c) { return model::answer::kBlanks.find(c) != std::string_view::npos; });
  return call;
}

void AnswerConstraint::step_free(std::string_view plain) {
  const model::answer::Place before = std::exchange(place_, {});
  static_cast<void>(parser_.feed(plain));
  place_ = parser_.place();
  if (!before.bare && place_.bare) {
    bare_.clear();
    bare_json_ = BareCall(rules_.family->calls);
  }
  if (before.bare || place_.bare) {
    follow_bare(before.bare ? std::string(plain) : parser_.undecided());
  }
  given_up_ = given_up_ && place_.begun;
  if (rules_.held != nullptr && place_.begun && !given_up_)
    return hold(rules_.tokens->spell(parser_.undecided()));
  // Its name has shown that the text without a mark is a call.
  const bool call = before.bare && !place_.bare && !place_.calls;
  if (rules_.held != nullptr && call) return hold(bare_call());
  if (place_.reasons) {
    phase_ = Phase::kReasoning;
  } else if (phase_ == Phase::kReasoning) {
    phase_ = Phase::kFree;
    if (rules_.from_start) hold({});
  }
}

std::string_view AnswerConstraint::opener_left() const {
  const bool may = rules_.from_start && reasoned_ == 0 && opener_.size() > held_text_.size() &&
                   opener_.starts_with(held_text_);
  return may ? std::string_view(opener_).substr(held_text_.size()) : std::string_view();
}

// Adds text up to the first mark, which no text can spell.
std::string AnswerConstraint::forced_text(std::size_t most) {
  if (phase_ != Phase::kHeld || !opener_left().empty()) return {};
  locate();
  if (at_ == constrain::kNowhere) return {};
  const std::string text = rules_.held->get().forced(at_, most);
  return text.substr(0, text.find(kMarkByte));
}

std::unique_ptr<MasksAhead> AnswerConstraint::ahead() {
  if (phase_ != Phase::kHeld || !opener_left().empty()) return nullptr;
  locate();
  const auto text = [this](TokenId token) { return rules_.tokens->spelled(token); };
  return std::make_unique<GrammarAhead>(rules_.held->get(), at_, text, rules_.from_start);
}

bool AnswerConstraint::complete() {
  if (phase_ == Phase::kDone) return true;
  if (phase_ != Phase::kHeld || !rules_.from_start) return false;
  locate();
  return rules_.held->get().only_end(at_);
}

std::span<const std::uint32_t> AnswerConstraint::all() {
  mask_.assign(rules_.tokens->trie()->words(), 0xFFFFFFFF);
  return mask_;
}

// Only the rest of the mark that ends reasoning is allowed.
std::span<const std::uint32_t> AnswerConstraint::forced_end() {
  const std::string& close = rules_.family->reasoning.close;
  const std::string before = parser_.undecided();
  const bool begun = !before.empty() && close.starts_with(before);
  const std::string rest = begun ? close.substr(before.size()) : rules_.tokens->spell(close);
  const TokenTrie& trie = *rules_.tokens->trie();
  mask_.assign(trie.words(), 0);
  allow_along(trie, rest, mask_);
  return mask_;
}

bool AnswerConstraint::forbid_beyond(std::string_view mark, std::string_view before,
                                     std::string_view grammar_text) {
  const TokenTrie& trie = *rules_.tokens->trie();
  constrain::TokenMasks& masks = rules_.held->get();
  const constrain::ConfigId behind = masks.advance(masks.start(), grammar_text);
  bool any = false;
  // Tries each length that the mark's beginning may already have at the end of the text.
  for (std::size_t begun = std::min(mark.size() - 1, before.size()) + 1; begun-- > 0;) {
    if (!before.ends_with(mark.substr(0, begun))) continue;
    const std::uint32_t top = descend(trie, 0, mark.substr(begun));
    if (top == 0) continue;
    const auto& nodes = trie.nodes();
    std::vector<std::pair<std::uint32_t, constrain::ConfigId>> open = {
        {top + nodes[top].subtree, behind}};
    for (std::uint32_t node = top + 1; node < top + nodes[top].subtree; ++node) {
      while (open.back().first <= node)
        open.pop_back();
      const char byte = static_cast<char>(nodes[node].byte);
      const constrain::ConfigId at = open.back().second == constrain::kNowhere
                                         ? constrain::kNowhere
                                         : masks.advance(open.back().second, {&byte, 1});
      if (at == constrain::kNowhere) {
        tokens_at(trie, node, [&](TokenId token) {
          forbid(mask_, token);
          any = true;
        });
      }
      open.emplace_back(node + nodes[node].subtree, at);
    }
  }
  return any;
}

bool AnswerConstraint::forbid_beyond_name() {
  constrain::TokenMasks& masks = rules_.held->get();
  bool any = false;
  // Most of these tokens begin with the quotation mark, so they end the same name.
  std::string named;
  bool is_call = false;
  constrain::ConfigId behind = constrain::kNowhere;
  for (const TokenId token : rules_.tokens->quoting()) {
    BareCall json = bare_json_;
    const std::string_view text = rules_.tokens->plain(token);
    std::size_t read = 0;
    while (read < text.size() && !json.named())
      json.feed(text[read++]);
    if (!json.named()) continue;
    std::string before = bare_ + std::string(text.substr(0, read));
    if (before != named) {
      is_call = tools_.find(json.name(before)) != nullptr;
      behind = is_call ? masks.advance(masks.start(), json.in_order(before)) : constrain::kNowhere;
      named = std::move(before);
    }
    if (!is_call) continue;
    if (behind != constrain::kNowhere &&
        masks.advance(behind, text.substr(read)) != constrain::kNowhere)
      continue;
    forbid(mask_, token);
    any = true;
  }
  return any;
}

std::span<const std::uint32_t> AnswerConstraint::free_mask() {
  if (!free_mask_) free_mask_ = make_free_mask();
  return *free_mask_;
}

std::span<const std::uint32_t> AnswerConstraint::make_free_mask() {
  if (rules_.held == nullptr) return {};
  const bool reasons = phase_ == Phase::kReasoning;
  const std::string before = reasons || place_.calls ? parser_.undecided() : std::string();
  const bool ends_forbidden = rules_.from_start;
  bool restricted = ends_forbidden;
  static_cast<void>(all());
  if (ends_forbidden) {
    for (const TokenId token : rules_.tokens->ends())
      forbid(mask_, token);
  }
  if (reasons && rules_.from_start && !rules_.family->reasoning.close.empty())
    restricted |= forbid_beyond(rules_.family->reasoning.close, before, {});
  if (place_.calls) {
    const model::answer::Calls& calls = rules_.family->calls;
    std::vector<std::string_view> marks(calls.opens.begin(), calls.opens.end());
    marks.push_back(calls.section);
    if (calls.syntax == model::answer::CallSyntax::kChannels) marks = {"to="};
    for (const std::string_view mark : marks) {
      if (!mark.empty()) restricted |= forbid_beyond(mark, before, rules_.tokens->spell(mark));
    }
  }
  if (place_.bare) restricted |= forbid_beyond_name();
  return restricted ? std::span<const std::uint32_t>(mask_) : std::span<const std::uint32_t>();
}

bool AnswerConstraint::is_free() {
  switch (phase_) {
    case Phase::kReasoning:
      return !must_end_reasoning() && free_mask().empty();
    case Phase::kFree:
      return free_mask().empty();
    case Phase::kHeld:
    case Phase::kDone:
      break;
  }
  return false;
}

Result<std::span<const std::uint32_t>> AnswerConstraint::mask() {
  switch (phase_) {
    case Phase::kDone:
      mask_.assign(rules_.tokens->trie()->words(), 0);
      for (const TokenId token : rules_.tokens->ends())
        allow(mask_, token);
      return std::span<const std::uint32_t>(mask_);
    case Phase::kReasoning:
      return must_end_reasoning() ? forced_end() : free_mask();
    case Phase::kFree:
      return free_mask();
    case Phase::kHeld:
      break;
  }
  rules_.held->trim();
  locate();
  const constrain::TokenMask* mask = rules_.held->get().mask(at_);
  if (mask == nullptr && rules_.may_give_up) return free_mask();
  if (mask == nullptr || at_ == constrain::kNowhere) return too_ambiguous();
  const std::string_view opener = opener_left();
  if (opener.empty()) return std::span<const std::uint32_t>(*mask);
  mask_ = *mask;
  allow_along(*rules_.tokens->trie(), opener, mask_);
  return std::span<const std::uint32_t>(mask_);
}

}  // namespace bulkhead::engine

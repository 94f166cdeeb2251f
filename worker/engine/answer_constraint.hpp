// Constrains a whole answer. Text and reasoning are free, and the grammar of calls applies from where the answer's
// parser sees a call begin. If the answer must be a call or must follow a schema, that grammar applies from the
// start, or after the reasoning. The answer's parser decides where the answer stands, so the grammar never applies
// to what would be read as text, and everything that is read as a call follows it.
//
// A pure function of the request and the tokens. Use it from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/constrain/token_trie.hpp"
#include "worker/engine/bare_call.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// The tokens as grammars see them. A mark that is a token of its own is spelled as the byte 0xFF followed by the
// mark, which no text contains; any other token is spelled as its piece. Made once for a model; immutable.
class SpelledTokens {
 public:
  SpelledTokens(const model::Tokenizer& tokenizer, const model::answer::Family& family);

  std::string_view spelled(TokenId token) const { return spelled_[token]; }
  // The token as the answer's parser sees it.
  std::string_view plain(TokenId token) const { return plain_[token]; }
  // Returns a text's spelling in a grammar, where marks that are tokens are spelled as such.
  std::string spell(std::string_view text) const;
  const std::vector<TokenId>& ends() const { return ends_; }
  // Returns the tokens whose plain text contains a quotation mark: only those can end a name in JSON.
  const std::vector<TokenId>& quoting() const { return quoting_; }
  const std::shared_ptr<const constrain::TokenTrie>& trie() const { return trie_; }

 private:
  std::vector<std::string> spelled_;
  std::vector<std::string_view> plain_;
  std::vector<std::string_view> marks_;  // marks that are tokens; the longer ones first
  std::vector<TokenId> ends_, quoting_;
  std::shared_ptr<const constrain::TokenTrie> trie_;
};

struct AnswerRules {
  std::shared_ptr<const SpelledTokens> tokens;
  const model::answer::Family* family = nullptr;
  std::shared_ptr<GrammarMasks> held;  // null: only the reasoning is bounded
  bool from_start = false;             // the grammar applies from the answer's start, except to its reasoning
  bool one_call = false;               // nothing follows a call
  bool may_give_up = false;  // a call becomes free if it is too ambiguous what may come next
  std::int32_t reasoning_budget = -1;  // tokens; -1: no limit
};

class AnswerConstraint : public TokenConstraint {
 public:
  // `request` must be the same as the answer's reader has.
  AnswerConstraint(AnswerRules rules, model::answer::AnswerRequest request);

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  bool is_free() override;
  std::string forced_text(std::size_t most) override;
  std::unique_ptr<MasksAhead> ahead() override;
  bool complete() override;

 private:
  enum class Phase : std::uint8_t { kFree, kReasoning, kHeld, kDone };

  void step(std::string_view plain, std::string_view spelled);
  void follow_bare(const std::string& more);
  std::string bare_call() const;
  void step_free(std::string_view plain);
  void hold(std::string_view spelled);
  void locate();
  // Returns the rest of the text that opens reasoning, if a constrained answer may still open it; otherwise an empty
  // text.
  std::string_view opener_left() const;
  // Forbids the tokens that complete a mark and go on in a way that the grammar after the mark does not allow.
  bool forbid_beyond(std::string_view mark, std::string_view before, std::string_view grammar_text);
  // Forbids the tokens that end the name of a call without a mark if what they make of it is not a call of the grammar:
  // the arguments that came before the name are wrong for this tool, or the token goes on wrongly.
  bool forbid_beyond_name();
  std::span<const std::uint32_t> all();
  bool must_end_reasoning() const {
    return rules_.reasoning_budget >= 0 && reasoned_ >= rules_.reasoning_budget;
  }
  std::span<const std::uint32_t> forced_end();
  // Returns the mask while the grammar does not apply. The first call computes it; it is kept until advance().
  std::span<const std::uint32_t> free_mask();
  std::span<const std::uint32_t> make_free_mask();

  AnswerRules rules_;
  model::answer::AnswerParser parser_;
  model::answer::Place place_;
  Phase phase_ = Phase::kFree;
  std::string held_text_;  // spelled, from the start of the grammar
  constrain::ConfigId at_ = constrain::kNowhere;
  std::uint64_t epoch_ = 0;  // the epoch in which `at_` is valid; 0: never
  std::string opener_;       // spelled; empty if the vocabulary has no mark for it
  std::string bare_;         // a text without a mark that may be a call
  BareCall bare_json_;       // has read bare_
  model::answer::Tools tools_;
  std::int32_t reasoned_ = 0;
  bool given_up_ = false;  // the call is not one of the grammar's, so it is free
  bool fresh_ = false;     // the last token began the call, so no mask checked the rest of that token
  constrain::TokenMask mask_;
  std::optional<std::span<const std::uint32_t>> free_mask_;  // valid now; points into mask_
};

}  // namespace bulkhead::engine

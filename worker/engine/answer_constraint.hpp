// Holds an answer as a whole: free text and reasoning, and from where its parser sees a call begin the grammar of
// calls; or, where an answer must be a call or must follow a schema, that grammar from its start or behind its
// reasoning. The parser of the answer says where it stands, so nothing is held that would be read as text, and
// nothing read as a call is free.
//
// A pure function of the request and the tokens. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/constrain/token_trie.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// Tokens as grammars see them: a mark that is a token of its own is the byte 0xFF and the mark, which no text
// holds; any other token is its piece. Made once for a model; immutable.
class SpelledTokens {
 public:
  SpelledTokens(const model::Tokenizer& tokenizer, const model::answer::Family& family);

  std::string_view spelled(TokenId token) const { return spelled_[token]; }
  // As the answer's parser sees it.
  std::string_view plain(TokenId token) const { return plain_[token]; }
  // A mark's bytes in a grammar: token by token where it holds marks that are tokens.
  std::string spell(std::string_view text) const;
  const std::vector<TokenId>& ends() const { return ends_; }
  const std::shared_ptr<const constrain::TokenTrie>& trie() const { return trie_; }

 private:
  std::vector<std::string> spelled_;
  std::vector<std::string_view> plain_;
  std::vector<std::string_view> marks_;  // that are tokens; longer ones first
  std::vector<TokenId> ends_;
  std::shared_ptr<const constrain::TokenTrie> trie_;
};

struct AnswerRules {
  std::shared_ptr<const SpelledTokens> tokens;
  const model::answer::Family* family = nullptr;
  std::shared_ptr<GrammarMasks> held;  // null: only reasoning is bounded
  bool from_start = false;             // held from the answer's start, but for its reasoning
  bool one_call = false;               // nothing follows a call
  bool may_give_up = false;  // a call is free where it is too ambiguous what may come next
  std::int32_t reasoning_budget = -1;  // tokens; -1: no limit
};

class AnswerConstraint : public TokenConstraint {
 public:
  // `request` as the answer's reader has it.
  AnswerConstraint(AnswerRules rules, model::answer::AnswerRequest request);

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  bool is_free() override;
  std::string forced_text(std::size_t most) override;
  bool complete() override;

 private:
  enum class Phase : std::uint8_t { kFree, kReasoning, kHeld, kDone };

  void step(std::string_view plain, std::string_view spelled);
  void step_free(std::string_view plain);
  void hold(std::string_view spelled);
  void locate();
  // What is left of the text that begins reasoning, where an answer that is held may begin so; else empty.
  std::string_view opener_left() const;
  // Tokens that would complete a mark and go on as the grammar behind it can't.
  bool forbid_beyond(std::string_view mark, std::string_view before, std::string_view grammar_text);
  // The same behind a call's name, in JSON that is no call before its name has ended.
  bool forbid_beyond_name();
  std::span<const std::uint32_t> all();
  bool must_end_reasoning() const {
    return rules_.reasoning_budget >= 0 && reasoned_ >= rules_.reasoning_budget;
  }
  std::span<const std::uint32_t> forced_end();
  // Returns the mask of an answer that no constraint holds now. The first call computes it, and it is
  // kept until advance().
  std::span<const std::uint32_t> free_mask();
  std::span<const std::uint32_t> make_free_mask();

  AnswerRules rules_;
  model::answer::AnswerParser parser_;
  model::answer::Place place_;
  Phase phase_ = Phase::kFree;
  std::string held_text_;  // spelled, from the grammar's start
  constrain::ConfigId at_ = constrain::kNowhere;
  std::uint64_t epoch_ = 0;  // of `at_`; 0: it has none
  std::string opener_;       // spelled; empty where the vocabulary has no mark for it
  std::string bare_;         // JSON that may be a call
  std::int32_t reasoned_ = 0;
  bool given_up_ = false;  // on a call that is none of the grammar's
  bool fresh_ = false;     // the last token began the call: no mask was there for its rest
  constrain::TokenMask mask_;
  std::optional<std::span<const std::uint32_t>> free_mask_;  // for now; lies in mask_
};

}  // namespace bulkhead::engine

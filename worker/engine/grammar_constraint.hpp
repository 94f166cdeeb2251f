// Makes the engine's constraints from schemas, grammars and expressions (worker/constrain).
//
// The tokenizer's thread compiles a request's text and makes its first mask; the engine's thread then follows the
// answer. Equal texts are compiled once and share the parts of their masks. The memory for these is bounded;
// forgotten parts are made again, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/constrain/token_masks.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// Returns the error as one that will not pass. A constraint that is too complex stays too complex, so a limit's error
// must not say "try again later".
Error for_good(const Error& error);
// Returns the error for a form that an answer can go on with in more ways than are followed.
Error too_ambiguous();

// Compiles the grammar of a request's form; kNone is not allowed. Errors are those of ConstraintCompiler.
Result<constrain::Compiled> compile_constraint(const ipc::Constraint& wanted);

// The masks of one grammar, for all requests that have it. One thread makes it and asks for the first mask; then it
// goes to another thread, which alone uses it from then on.
class GrammarMasks {
 public:
  GrammarMasks(std::shared_ptr<const constrain::Grammar> grammar,
               std::shared_ptr<const constrain::TokenTrie> trie, std::vector<TokenId> ends);

  constrain::TokenMasks& get() { return *masks_; }
  const constrain::TokenMasks& get() const { return *masks_; }
  // Forgets everything if too much is remembered. Places in the grammar become invalid when the epoch changes.
  void trim();
  std::uint64_t epoch() const { return epoch_; }

 private:
  std::shared_ptr<const constrain::Grammar> grammar_;
  std::shared_ptr<const constrain::TokenTrie> trie_;
  std::vector<TokenId> ends_;
  std::unique_ptr<constrain::TokenMasks> masks_;
  std::uint64_t epoch_ = 1;
};

// Masks after guesses within one grammar.
class GrammarAhead final : public MasksAhead {
 public:
  // Returns a token's text in the grammar.
  using Text = std::function<std::string_view(TokenId)>;
  // `at`: the place after the answer's tokens. `to_the_end`: the grammar also says what follows the answer's end.
  GrammarAhead(constrain::TokenMasks& masks, constrain::ConfigId at, Text text, bool to_the_end)
      : masks_(masks), at_(at), text_(std::move(text)), to_the_end_(to_the_end) {}

  const constrain::TokenMask* behind(TokenId token) override;

 private:
  constrain::TokenMasks& masks_;
  constrain::ConfigId at_;
  Text text_;
  bool to_the_end_;
};

// Makes one answer follow a grammar from its first token on. It may be made on another thread than the one that uses
// it: its first call is the first that uses the masks.
class GrammarConstraint : public TokenConstraint {
 public:
  // The tokenizer must outlive this.
  GrammarConstraint(std::shared_ptr<GrammarMasks> masks, const model::Tokenizer& tokenizer)
      : masks_(std::move(masks)), tokenizer_(tokenizer) {}

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  std::string forced_text(std::size_t most) override;
  std::unique_ptr<MasksAhead> ahead() override;
  bool complete() override;

 private:
  // Finds its place in the grammar, at first and after a trim().
  void locate();

  std::shared_ptr<GrammarMasks> masks_;
  const model::Tokenizer& tokenizer_;
  std::string text_;  // the text of the answer so far
  constrain::ConfigId at_ = constrain::kNowhere;
  std::uint64_t epoch_ = 0;  // the epoch in which `at_` is valid; 0: never
};

// Compiles constraints and keeps the most recent ones. Use it from one thread; what it returns may move to another.
class ConstraintCompiler {
 public:
  // Returns null if the request has no constraint. kInvalidArgument if the text is not valid or allows no answer,
  // kUnsupported if it can't be enforced or is too complex. Neither depends on time, so another process returns the
  // same. `tokenizer` must be the same each time and must outlive the results.
  Result<std::unique_ptr<TokenConstraint>> compile(const ipc::Constraint& wanted,
                                                   const model::Tokenizer& tokenizer);

 private:
  Result<std::shared_ptr<GrammarMasks>> masks_for(const ipc::Constraint& wanted,
                                                  const model::Tokenizer& tokenizer);

  struct Kept {
    ipc::ConstraintKind kind;
    std::string text;
    std::shared_ptr<GrammarMasks> masks;
  };
  std::shared_ptr<const constrain::TokenTrie> trie_;  // made for the first request that needs it
  std::vector<TokenId> ends_;
  std::list<Kept> kept_;  // the most recently used one first
};

}  // namespace bulkhead::engine

// Schemas, grammars and expressions (worker/constrain) as constraints of the engine.
//
// The tokenizer's thread compiles a request's text and makes its first mask; the engine's thread
// walks along with the answer. Equal texts are compiled once and share what their masks have in
// common. How much is remembered is bounded, and what was forgotten is made again, to the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/constrain/token_masks.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// The grammar of what a request wants; kNone is not allowed. Errors as for ConstraintCompiler.
Result<constrain::Compiled> compile_constraint(const ipc::Constraint& wanted);

// The masks of one grammar, for all requests that have it. Made and asked for the first mask on one
// thread, handed to another one, and touched by that alone from then on.
class GrammarMasks {
 public:
  GrammarMasks(std::shared_ptr<const constrain::Grammar> grammar,
               std::shared_ptr<const constrain::TokenTrie> trie, std::vector<TokenId> ends);

  constrain::TokenMasks& get() { return *masks_; }
  const constrain::TokenMasks& get() const { return *masks_; }
  // Forgets all when too much is remembered. Places in the grammar are void when the epoch changes.
  void trim();
  std::uint64_t epoch() const { return epoch_; }

 private:
  std::shared_ptr<const constrain::Grammar> grammar_;
  std::shared_ptr<const constrain::TokenTrie> trie_;
  std::vector<TokenId> ends_;
  std::unique_ptr<constrain::TokenMasks> masks_;
  std::uint64_t epoch_ = 1;
};

// Holds one answer to a grammar, from its first token on. May be made on another thread than the one that
// walks along: the masks are touched from the first call on.
class GrammarConstraint : public TokenConstraint {
 public:
  // The tokenizer must outlive this.
  GrammarConstraint(std::shared_ptr<GrammarMasks> masks, const model::Tokenizer& tokenizer)
      : masks_(std::move(masks)), tokenizer_(tokenizer) {}

  void advance(TokenId token) override;
  Result<std::span<const std::uint32_t>> mask() override;
  std::string forced_text(std::size_t most) override;
  bool complete() override;

 private:
  // Finds its place, at first and after a trim().
  void locate();

  std::shared_ptr<GrammarMasks> masks_;
  const model::Tokenizer& tokenizer_;
  std::string text_;  // of the answer so far
  constrain::ConfigId at_ = constrain::kNowhere;
  std::uint64_t epoch_ = 0;  // of `at_`; 0: it has none yet
};

// Compiles constraints and keeps the last ones. One thread; what it returns may go to another one.
class ConstraintCompiler {
 public:
  // Null where the request has none. kInvalidArgument for a text that is none of its kind or admits
  // no answer, kUnsupported for what can't be enforced or is too complex; never a matter of time,
  // so that another process says the same. `tokenizer`: the same one each time; it
  // must outlive what is made.
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
  std::list<Kept> kept_;  // the last used one first
};

}  // namespace bulkhead::engine

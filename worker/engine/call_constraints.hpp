// Makes the constraint that keeps a chat's answer to its tools and its reasoning within its budget. It caches the
// grammars of tools and their masks, because conversations offer the same tools repeatedly.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/engine/answer_constraint.hpp"
#include "worker/engine/call_grammar.hpp"
#include "worker/engine/grammar_constraint.hpp"
#include "worker/engine/token_constraint.hpp"
#include "worker/model/answer/answer_parser.hpp"
#include "worker/model/answer/family.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

struct ToolUse {
  std::string tools;  // the request's `tools`, as JSON
  ipc::ToolChoice choice = ipc::ToolChoice::kAuto;
  std::string named;      // for kNamed
  bool one_call = false;  // nothing may follow a call
  std::int32_t reasoning_budget = -1;
};

struct HeldCalls {
  std::unique_ptr<TokenConstraint> constraint;  // null: nothing is constrained
  bool content = false;               // the constraint also enforces the wanted form of the content
  bool no_calls = false;              // the answer can only be content: nothing in it may be read as a call
  std::vector<std::string> warnings;  // what the constraint does not enforce, in a few short lines of ASCII
};

// Use the object from one thread. The constraints that it returns may move to another thread.
class CallConstraints {
 public:
  // The arguments must outlive this object and the constraints that it makes.
  CallConstraints(const model::Tokenizer& tokenizer, const model::answer::Family& family)
      : tokenizer_(tokenizer), family_(family) {}

  // `request` must be the same as the answer's reader has. `wanted` is the required form of the content; the returned
  // constraint enforces it if the family writes its content in a channel, or if the answer may consist of calls
  // instead. kUnsupported if a call is required that can't be forced with this family, or if a strict tool has a
  // keyword that can't be enforced; `parameter` then names the request's field.
  Result<HeldCalls> hold(const ToolUse& use, const ipc::Constraint& wanted,
                         model::answer::AnswerRequest request, std::string& parameter);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<GrammarMasks> masks;
    std::vector<std::string> warnings;
  };
  using Made = Result<CallGrammar>;
  // Returns the grammar that was kept under the key, or the one that `make` makes.
  Result<const Kept*> kept(std::string key, const std::function<Made()>& make);
  Result<const Kept*> calls_for(const ToolUse& use);
  // Null: calls are free.
  Result<std::shared_ptr<GrammarMasks>> held_calls(const ToolUse& use, std::string& parameter,
                                                   std::vector<std::string>& warnings);
  // For answers that are either calls or the wanted content. Null: they can't be calls.
  Result<std::shared_ptr<GrammarMasks>> held_either(const ToolUse& use,
                                                    const ipc::Constraint& wanted,
                                                    std::string& parameter,
                                                    std::vector<std::string>& warnings);
  // Returns the grammar of the wanted content in the format of the family.
  Result<std::shared_ptr<const constrain::Grammar>> content_grammar(const ipc::Constraint& wanted);
  Result<std::shared_ptr<GrammarMasks>> held_content(const ipc::Constraint& wanted);

  // Returns whether an answer in channels begins with a message's header.
  bool begins_with_header(const model::answer::AnswerRequest& request) const;

  const model::Tokenizer& tokenizer_;
  const model::answer::Family& family_;
  std::shared_ptr<const SpelledTokens> tokens_;  // made for the first request that needs them
  std::list<Kept> kept_;                         // the most recently used one first
};

}  // namespace bulkhead::engine

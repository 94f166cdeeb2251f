// Makes the constraint that holds a chat's answer to its tools, and its reasoning to its budget. Keeps the grammars of
// tools and their masks, since conversations offer the same ones again and again.
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
  std::string named;      // of kNamed
  bool one_call = false;  // nothing may follow a call
  std::int32_t reasoning_budget = -1;
};

struct HeldCalls {
  std::unique_ptr<TokenConstraint> constraint;  // null: nothing is held
  bool content = false;               // the constraint holds the content to what is wanted
  bool no_calls = false;              // the answer can only be content: no call may be read in it
  std::vector<std::string> warnings;  // what is not, in few and short lines of ASCII
};

// One thread uses the object. The constraints that it returns may go to another thread.
class CallConstraints {
 public:
  // Both must outlive this object and the constraints that it makes.
  CallConstraints(const model::Tokenizer& tokenizer, const model::answer::Family& family)
      : tokenizer_(tokenizer), family_(family) {}

  // `request`: as the answer's reader has it. kUnsupported where a call is wanted that can't be forced with this
  // family, or a strict tool has a keyword that can't be held; `parameter` then is the request's field. `wanted`,
  // what the content must be, is held here where the family writes its content in a channel, or where the answer may
  // be calls in its place.
  Result<HeldCalls> hold(const ToolUse& use, const ipc::Constraint& wanted,
                         model::answer::AnswerRequest request, std::string& parameter);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<GrammarMasks> masks;
    std::vector<std::string> warnings;
  };
  using Made = Result<CallGrammar>;
  // Returns the grammar that was kept under the key, else the one that `make` makes.
  Result<const Kept*> kept(std::string key, const std::function<Made()>& make);
  Result<const Kept*> calls_for(const ToolUse& use);
  // Null: they are free.
  Result<std::shared_ptr<GrammarMasks>> held_calls(const ToolUse& use, std::string& parameter,
                                                   std::vector<std::string>& warnings);
  // Of answers that are calls or what is wanted. Null: they can't be calls.
  Result<std::shared_ptr<GrammarMasks>> held_either(const ToolUse& use,
                                                    const ipc::Constraint& wanted,
                                                    std::string& parameter,
                                                    std::vector<std::string>& warnings);
  // The grammar of what is wanted, as the family writes content.
  Result<std::shared_ptr<const constrain::Grammar>> content_grammar(const ipc::Constraint& wanted);
  Result<std::shared_ptr<GrammarMasks>> held_content(const ipc::Constraint& wanted);

  // Whether an answer in channels begins with a message's header.
  bool begins_with_header(const model::answer::AnswerRequest& request) const;

  const model::Tokenizer& tokenizer_;
  const model::answer::Family& family_;
  std::shared_ptr<const SpelledTokens> tokens_;  // made for the first request that needs them
  std::list<Kept> kept_;                         // the last used one first
};

}  // namespace bulkhead::engine

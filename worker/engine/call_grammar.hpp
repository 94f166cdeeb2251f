// The grammar of tool calls, made from the same description of a family that its parser reads by
// (answer/family.hpp): a text that it lets through is read as calls of offered tools, each with arguments that
// are valid under the tool's schema.
//
//   blanks BLOCK (blanks BLOCK)* blanks
//   BLOCK: a section of calls, a list of calls, or one call, with its marks
//
// Knows no tokens. A mark that the vocabulary has as a token of its own is written by that token alone, so that
// no text can stand for it: `spell` gives the bytes that mean the token.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/grammar.hpp"
#include "worker/model/answer/family.hpp"

namespace bulkhead::engine {

struct CallWish {
  std::string_view tools = {};  // the request's `tools`, as JSON
  std::string_view named = {};  // the only tool that may be called; empty: any
  bool one_call = false;        // else as many as the family can write
  // What the answer may be in place of calls; null: it is calls.
  const constrain::Grammar* content = nullptr;
};

struct CallGrammar {
  std::shared_ptr<const constrain::Grammar> grammar;
  std::vector<std::string> warnings;  // what of the schemas is not held
};

// kUnsupported if a strict tool's schema has a keyword that can't be held; the error names the tool and the keyword.
// A tool that is not strict never fails: the grammar leaves out what can't be held, its whole schema at worst, and
// `warnings` names it. kInvalidArgument if no call is left that the answer could make. The family must have calls.
Result<CallGrammar> make_call_grammar(const model::answer::Family& family, const CallWish& wish,
                                      const std::function<std::string(std::string_view)>& spell);

// The content of an answer in channels: the header of its last message, then what `content` lets through.
Result<std::shared_ptr<const constrain::Grammar>> in_final_channel(
    const constrain::Grammar& content, const std::function<std::string(std::string_view)>& spell);

}  // namespace bulkhead::engine

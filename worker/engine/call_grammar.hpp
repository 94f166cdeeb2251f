// The grammar of tool calls. It is made from the same description of a family that the family's parser uses
// (answer/family.hpp). The parser reads every text that the grammar allows as calls of offered tools, with arguments
// that are valid under each tool's schema.
//
//   blanks BLOCK (blanks BLOCK)* blanks
//   BLOCK: a section of calls, a list of calls, or one call, with its marks
//
// It does not depend on tokens. If the vocabulary has a mark as a token of its own, only that token can write the
// mark, so that no other text can stand for it. `spell` returns the bytes that mean the token.
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
  bool one_call = false;        // otherwise as many as the family can write
  // The answer has begun freely, so a call without a mark may have other forms that the parser reads: the API's own
  // shape, and one object where the family writes a list.
  bool other_forms = false;
  // What the answer may be instead of calls; null: it must be calls.
  const constrain::Grammar* content = nullptr;
};

struct CallGrammar {
  std::shared_ptr<const constrain::Grammar> grammar;
  std::vector<std::string> warnings;  // the parts of the schemas that are not enforced
};

// kUnsupported if a strict tool's schema has a keyword that can't be enforced; the error names the tool and the
// keyword. A tool that is not strict never fails: the grammar leaves out what can't be enforced (at worst its whole
// schema), and `warnings` names it. kInvalidArgument if no call is left that the answer could make. The family must
// have calls.
Result<CallGrammar> make_call_grammar(const model::answer::Family& family, const CallWish& wish,
                                      const std::function<std::string(std::string_view)>& spell);

// Returns the grammar of an answer in channels: the header of its last message, then what `content` allows.
Result<std::shared_ptr<const constrain::Grammar>> in_final_channel(
    const constrain::Grammar& content, const std::function<std::string(std::string_view)>& spell);

}  // namespace bulkhead::engine

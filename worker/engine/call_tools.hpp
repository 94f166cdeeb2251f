// Turns a request's tools into rules of a grammar for the arguments of each tool. call_grammar.cpp knows how a family
// writes a call around them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/constrain/grammar.hpp"
#include "worker/model/answer/family.hpp"

namespace bulkhead::engine {

struct OfferedTool {
  std::string name;
  constrain::RuleId arguments = 0;                   // for families whose arguments are one JSON object
  std::vector<constrain::LooseMember> members = {};  // for families that write calls in tags
  bool any_members = false;                          // the same, but no schema constrains them
};

struct OfferedTools {
  std::vector<OfferedTool> tools;
  std::vector<std::string> warnings;  // the parts of the schemas that are not enforced
};

// Returns whether one of the tools (JSON) has `strict: true`.
bool any_strict_tool(std::string_view tools);

// Returns the tools (JSON) that have one of these names, as JSON. If the text is not a list of tools, it is returned
// unchanged, and Tools::from_json() reports the error.
std::string only_tools(std::string_view tools, std::span<const std::string> names);

// Adds the rules of `tools` (JSON) to the grammar; if `named` is not empty, only that tool's rules. kUnsupported,
// with the tool and the keyword, if a strict tool's schema has a keyword that can't be enforced; a tool that is not
// strict never fails. For `spell` see call_grammar.hpp.
Result<OfferedTools> add_tools(constrain::Grammar& grammar, const model::answer::Calls& calls,
                               std::string_view tools, std::string_view named,
                               const std::function<std::string(std::string_view)>& spell);

}  // namespace bulkhead::engine

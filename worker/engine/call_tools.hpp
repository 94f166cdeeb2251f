// A request's tools as rules of a grammar: what the arguments of each may be. How a family writes a call around
// them is in call_grammar.cpp.
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
  constrain::RuleId arguments = 0;                   // of calls whose arguments are one JSON object
  std::vector<constrain::LooseMember> members = {};  // of calls in tags
  bool any_members = false;                          // the same: no schema holds them
};

struct OfferedTools {
  std::vector<OfferedTool> tools;
  std::vector<std::string> warnings;  // what of the schemas is not held
};

// Whether one of the tools (JSON) has `strict: true`.
bool any_strict_tool(std::string_view tools);

// Returns those of the tools (JSON) that have one of these names, as JSON. Returns any other text unchanged;
// Tools::from_json() then says what is wrong with it.
std::string only_tools(std::string_view tools, std::span<const std::string> names);

// Puts the rules of `tools` (JSON; of `named` alone, if not empty) into the grammar. kUnsupported for a keyword in
// a strict tool's schema that can't be held, with the tool and the keyword; a tool that is not strict never fails.
// `spell`: see call_grammar.hpp.
Result<OfferedTools> add_tools(constrain::Grammar& grammar, const model::answer::Calls& calls,
                               std::string_view tools, std::string_view named,
                               const std::function<std::string(std::string_view)>& spell);

}  // namespace bulkhead::engine

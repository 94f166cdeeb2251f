// Regular expressions of ECMA-262, as JSON Schema's `pattern` has them: read into the terms of
// term.hpp. Groups, alternatives, all quantifiers (lazy ones match the same texts), classes, the
// escapes \d \w \s \D \W \S, \x \u \cX, \p{...} of the general categories that the tokenizer knows
// (L, N, P and scripts are not there), `^` and `$`, lookahead. Refused by name: backreferences,
// lookbehind, \b and \B, and an anchor or lookahead inside a repetition.
//
// `.` is any character but a line's end. Characters are code points, as with the flag u.
#pragma once

#include <string_view>

#include "config/base/error.hpp"
#include "worker/constrain/term.hpp"

namespace bulkhead::constrain {

enum class Match {
  kAnywhere,  // as `pattern` in a schema: some part of the text matches
  kWhole,     // the whole text matches
};

// kInvalidArgument for what is no expression, kUnsupported for what is not offered; both tell where.
Result<TermId> read_regex(Terms& terms, std::string_view pattern, Match match);

// The same, as an automaton.
Result<DfaPtr> regex_automaton(std::string_view pattern, Match match);

}  // namespace bulkhead::constrain

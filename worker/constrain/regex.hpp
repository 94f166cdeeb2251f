// Reads regular expressions of ECMA-262, as in JSON Schema's `pattern`, into the terms of term.hpp. Supported:
// groups, alternatives, all quantifiers (lazy ones match the same texts), classes, the escapes \d \w \s \D \W \S, \x
// \u \cX, \p{...} with the general categories that the tokenizer knows (L, N, P, but no scripts), `^` and `$`, and
// lookahead. Backreferences, lookbehind, \b and \B, and an anchor or lookahead inside a repetition are refused, each
// with its name; so is what Python takes for something else ({,n}, and a class that begins with its "]").
//
// `.` is any character but a line terminator (but a line feed, where either reading counts). Characters are code
// points, as with the flag u.
#pragma once

#include <string_view>

#include "config/base/error.hpp"
#include "worker/constrain/term.hpp"

namespace bulkhead::constrain {

enum class Match {
  kAnywhere,  // as `pattern` in a schema: some part of the text must match
  kWhole,     // the whole text must match
};

// Validators (ECMA-262, Python's re) differ in what \d, \w, \s and `.` match outside ASCII, and in whether `$` matches
// before a line end that ends the text.
enum class Reading {
  kBoth,    // the texts that both match: what an answer may be
  kEither,  // the texts that either matches: what an answer must not be
};

// kInvalidArgument if it is no expression, kUnsupported for what is not supported; both messages say where.
Result<TermId> read_regex(Terms& terms, std::string_view pattern, Match match,
                          Reading reading = Reading::kBoth);

// The same, as an automaton.
Result<DfaPtr> regex_automaton(std::string_view pattern, Match match,
                               Reading reading = Reading::kBoth);

}  // namespace bulkhead::constrain

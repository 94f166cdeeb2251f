// What a request may ask its answer to be: the front ends, and checking a text against one. No
// knowledge of requests, models or devices; tokens come in with token_masks.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/grammar.hpp"

namespace bulkhead::constrain {

enum class Strictness {
  kStrict,   // a keyword that can't be enforced is an error (kUnsupported) that names it
  kLenient,  // it is left out and named in `warnings`
};

struct Compiled {
  std::shared_ptr<const Grammar> grammar;
  std::vector<std::string> warnings;
};

// JSON Schema, draft 2020-12 or draft-07. kInvalidArgument for what is no schema or admits no value,
// kUnsupported (strict) for what can't be enforced, kResourceExhausted past the limits.
Result<Compiled> compile_schema(std::string_view schema, Strictness strictness);
// Any JSON object.
Result<Compiled> compile_json_object();
// llama.cpp's grammar format; the answer is what the rule "root" derives.
Result<Compiled> compile_gbnf(std::string_view text);
// An expression (regex.hpp) that the whole answer matches.
Result<Compiled> compile_regex(std::string_view expression);

struct Checked {
  bool passed = false;
  // The byte at which the text was rejected; its size where it ended too early.
  std::size_t rejected_at = 0;
};
Checked check_text(const std::shared_ptr<const Grammar>& grammar, std::string_view text);

// Puts a schema's rule into a grammar that holds other things, too (a tool call's arguments).
// `warnings` gets what was left out.
Result<RuleId> add_schema(Grammar& grammar, std::string_view schema, Strictness strictness,
                          std::vector<std::string>& warnings);

}  // namespace bulkhead::constrain

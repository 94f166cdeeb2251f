// What a request may ask its answer to be: the front ends, and checking a text against one. No
// knowledge of requests, models or devices; tokens come in with token_masks.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
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

// The notation in which a model writes values.
struct Notation {
  enum class Form {
    kJson,
    kPython,  // Python's literals; the schema's own object is arguments of a call, (name=value, ...)
    kMarked,  // JSON, but keys are bare and strings stand between marks, without escapes (Gemma 4)
  };
  Form form = Form::kJson;
  // kMarked: the mark in the grammar's bytes, and the mark's text, which no string contains.
  std::string mark = {}, mark_text = {};
};

// Puts a schema's rule into a grammar that holds other things, too (a tool call's arguments).
// `warnings` gets what was left out.
Result<RuleId> add_schema(Grammar& grammar, std::string_view schema, Strictness strictness,
                          std::vector<std::string>& warnings, const Notation& notation = {});

// A member of an object whose members are written one by one, between marks.
struct LooseMember {
  std::string name;
  bool required = false;
  RuleId json = 0;             // its value, as JSON
  std::optional<RuleId> text;  // its value as plain text, where it can be nothing else
};
// In the schema's order; others are not written. No value has `never` in it, which would end it. What the schema
// says of its object as a whole must follow from each member by itself; else as for what can't be enforced.
Result<std::vector<LooseMember>> add_loose_members(Grammar& grammar, std::string_view schema,
                                                   Strictness strictness, std::string_view never,
                                                   std::vector<std::string>& warnings);
// Texts that don't have `mark` in them.
Result<DfaPtr> texts_without(std::string_view mark);

}  // namespace bulkhead::constrain

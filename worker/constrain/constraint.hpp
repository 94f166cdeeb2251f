// The front ends for the forms that a request may demand of its answer, and a check of a text against one.
// Nothing here depends on requests, models or devices; token_masks.hpp adds tokens.
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
  kStrict,   // a keyword that can't be enforced is an error (kUnsupported), which names the keyword
  kLenient,  // such a keyword is left out and named in `warnings`
};

struct Compiled {
  std::shared_ptr<const Grammar> grammar;
  std::vector<std::string> warnings;
};

// Compiles JSON Schema, draft 2020-12 or draft-07. kInvalidArgument if the text is no schema or allows no value,
// kUnsupported (if strict) for what can't be enforced, kResourceExhausted beyond the limits.
Result<Compiled> compile_schema(std::string_view schema, Strictness strictness);
// Allows any JSON object.
Result<Compiled> compile_json_object();
// Compiles llama.cpp's grammar format; the rule "root" derives the answer.
Result<Compiled> compile_gbnf(std::string_view text);
// Compiles an expression (regex.hpp) that the whole answer must match.
Result<Compiled> compile_regex(std::string_view expression);

struct Checked {
  bool passed = false;
  // The byte at which the text was rejected, or its size if it ended too early.
  std::size_t rejected_at = 0;
};
Checked check_text(const std::shared_ptr<const Grammar>& grammar, std::string_view text);

// The notation in which a model writes values.
struct Notation {
  enum class Form {
    kJson,
    kPython,  // Python's literals; the schema's own object is the arguments of a call, (name=value, ...)
    kMarked,  // JSON, but keys have no quotes, and strings stand between marks, without escapes (Gemma 4)
  };
  Form form = Form::kJson;
  // kMarked: the mark as bytes of the grammar, and the mark's text, which no string contains.
  std::string mark = {}, mark_text = {};
};

// Adds a schema's rule to a grammar that contains other rules, too (for a tool call's arguments). `warnings` gets
// what was left out.
Result<RuleId> add_schema(Grammar& grammar, std::string_view schema, Strictness strictness,
                          std::vector<std::string>& warnings, const Notation& notation = {});

// A member of an object whose members are written separately, between marks.
struct LooseMember {
  std::string name;
  bool required = false;
  RuleId json = 0;             // its value, as JSON
  std::optional<RuleId> text;  // its value as plain text, if it can be nothing else
  std::optional<RuleId>
      some;  // its plain texts, if the value may also be something other than a text
};
enum class TextsAre {
  kGuessed,  // what can be read as JSON is no text, so `some` has no such texts
  kMarked,   // the marks around a value say whether it is a text
};
// Returns the members in the schema's order; other members can't be written. No value contains `never`, which would
// end it. What the schema says about its object as a whole must follow from each member alone; otherwise it counts as
// a keyword that can't be enforced.
Result<std::vector<LooseMember>> add_loose_members(Grammar& grammar, std::string_view schema,
                                                   Strictness strictness, std::string_view never,
                                                   TextsAre texts_are,
                                                   std::vector<std::string>& warnings);
// Returns the automaton of texts that do not contain `mark`.
Result<DfaPtr> texts_without(std::string_view mark);

}  // namespace bulkhead::constrain

// Compiles objects whose members are written one by one, between marks, instead of as one JSON object: the arguments
// of tool calls in tags.
#include <algorithm>
#include <string>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/regex.hpp"
#include "worker/constrain/schema_compiler.hpp"

namespace bulkhead::constrain {
namespace {

// Returns the keyword that an error names if a schema has more than one form.
const char* branching_keyword(const Json& schema) {
  for (const char* keyword : {"anyOf", "oneOf", "not", "if", "dependentRequired",
                              "dependentSchemas", "dependencies", "enum", "const"}) {
    if (schema.is_object() && schema.contains(keyword)) return keyword;
  }
  return "anyOf";
}

bool is_text(const Alternative& kind) {
  if (kind.constants)
    return std::ranges::all_of(*kind.constants, [](const Json& it) { return it.is_string(); });
  const Types& types = kind.types;
  return types.string && !types.null && !types.boolean && !types.array && !types.object &&
         !types.integer && !types.fraction;
}

// The texts that a reader of untyped values takes for texts: those that are neither JSON nor one of Python's words.
Result<DfaPtr> texts_that_are_no_json() {
  BULKHEAD_TRY(const DfaPtr words,
               regex_automaton("[ \\t\\r\\n\\f\\v]*"
                               "(true|false|null|True|False|None|"
                               "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?)"
                               "[ \\t\\r\\n\\f\\v]*",
                               Match::kWhole));
  BULKHEAD_TRY(const DfaPtr others,
               regex_automaton("^[ \\t\\r\\n\\f\\v]*[\"{\\[]", Match::kAnywhere));
  return intersect(complement(*words), complement(*others));
}

}  // namespace

Result<DfaPtr> texts_of_length(std::uint32_t min, std::uint32_t max) {
  Terms terms;
  return terms.automaton(terms.repeat(terms.chars({{0, kLastCodePoint}}), min, max));
}

Result<DfaPtr> texts_without(std::string_view mark) {
  std::u32string wide;
  if (!decode_utf8(mark, wide)) return Error(ErrorCode::kInternal, "a mark that is no UTF-8");
  Terms terms;
  const TermId all = terms.repeat(terms.chars({{0, kLastCodePoint}}), 0, kUnbounded);
  return terms.automaton(terms.negate(terms.cat(all, terms.cat(terms.text(wide), all))));
}

// Returns the plain texts that these schemas allow.
Result<SchemaCompiler::PlainText> SchemaCompiler::plain_text(const SchemaSet& value) {
  BULKHEAD_TRY(const std::vector<Alternative> kinds, alternatives_.of(value));
  PlainText found{literals({}, true), std::ranges::all_of(kinds, is_text)};
  for (const Alternative& kind : kinds) {
    DfaPtr contents;
    if (kind.constants) {
      std::vector<std::u32string> texts;
      for (const Json& member : *kind.constants) {
        if (!member.is_string()) continue;
        if (!decode_utf8(member.get<std::string>(), texts.emplace_back())) texts.pop_back();
      }
      contents = literals(texts, true);
    } else {
      if (!kind.types.string) continue;
      BULKHEAD_TRY(const StringShape shape, string_shape(kind.schemas, document_, complaints_));
      contents = shape.contents;
      if (shape.min > 0 || shape.max != kUnbounded) {
        Result<DfaPtr> bounded = texts_of_length(shape.min, shape.max);
        if (bounded.ok()) bounded = intersect(contents, *bounded);
        if (bounded.ok()) {
          contents = *bounded;
        } else if (!found.only) {
          continue;  // JSON can hold it
        } else {
          const char* const keyword = shape.max != kUnbounded ? "maxLength" : "minLength";
          BULKHEAD_RETURN_IF_ERROR(
              complaints_.unsupported(keyword, document_.path(kind.schemas, keyword),
                                      "it is too large to be held in text between tags"));
        }
      }
    }
    if (found.texts->empty()) {
      found.texts = contents;
      continue;
    }
    BULKHEAD_TRY(const DfaPtr neither, intersect(complement(*found.texts), complement(*contents)));
    found.texts = complement(*neither);
  }
  return found;
}

Result<std::vector<LooseMember>> SchemaCompiler::loose_members(std::string_view never,
                                                               TextsAre texts_are) {
  BULKHEAD_TRY(never_, shared_.without(std::string(never)));
  const Json* const root = document_.root();
  BULKHEAD_TRY(const std::vector<Alternative> forms, alternatives_.of({root}));
  if (forms.empty()) return Error(ErrorCode::kInvalidArgument, "the schema allows no value");
  SchemaSet schemas = {root};
  if (forms.size() == 1 && !forms[0].constants) {
    schemas = forms[0].schemas;
  } else {
    BULKHEAD_RETURN_IF_ERROR(
        complaints_.unsupported(branching_keyword(*root), document_.path(root),
                                "arguments between tags can have one form only"));
  }
  BULKHEAD_TRY(const std::vector<Declared> all, declared(schemas));
  DfaPtr some = never_;
  if (texts_are == TextsAre::kGuessed) {
    static const Result<DfaPtr> no_json = texts_that_are_no_json();
    BULKHEAD_TRY(const DfaPtr texts, no_json);
    BULKHEAD_TRY(some, shared_.both(some, texts));
  }
  std::uint32_t required = 0;
  std::vector<LooseMember> members;
  for (const Declared& each : all) {
    LooseMember& member = members.emplace_back();
    member.name = each.name;
    member.required = each.required;
    required += each.required ? 1 : 0;
    BULKHEAD_TRY(const PlainText plain, plain_text(each.value));
    const auto add_texts = [&](const DfaPtr& among, std::optional<RuleId>& to) -> Status {
      BULKHEAD_TRY(const DfaPtr texts, shared_.both(plain.texts, among));
      if (texts->empty()) return {};
      to = grammar_.add_rule();
      grammar_.rules[*to] = grammar_.leaf(NodeKind::kText, texts, grammar_.add(Node{}));
      return {};
    };
    if (plain.only) BULKHEAD_RETURN_IF_ERROR(add_texts(never_, member.text));
    BULKHEAD_RETURN_IF_ERROR(add_texts(some, member.some));
    member.json = rule(each.value);
  }
  BULKHEAD_RETURN_IF_ERROR(make_waiting());
  for (const Json* schema : schemas) {
    for (const char* key : {"minProperties", "maxProperties"}) {
      const auto bound = schema->find(key);
      if (bound == schema->end()) continue;
      BULKHEAD_TRY(const std::uint32_t count, count_of(*bound, key));
      const bool least = key[1] == 'i';
      if (least ? count <= required : count >= members.size()) continue;
      BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(key, document_.path(schema),
                                                       "arguments between tags can't be counted"));
    }
  }
  return members;
}

Result<std::vector<LooseMember>> add_loose_members(Grammar& grammar, std::string_view schema,
                                                   Strictness strictness, std::string_view never,
                                                   TextsAre texts_are,
                                                   std::vector<std::string>& warnings) {
  try {
    Complaints complaints(strictness == Strictness::kStrict ? Complaints::Mode::kStrict
                                                            : Complaints::Mode::kLenient);
    BULKHEAD_TRY(const auto document, SchemaDocument::read(schema, complaints));
    SchemaCompiler compiler(*document, complaints, grammar);
    BULKHEAD_TRY(std::vector<LooseMember> members, compiler.loose_members(never, texts_are));
    warnings.insert(warnings.end(), complaints.warnings().begin(), complaints.warnings().end());
    return members;
  } catch (const nlohmann::json::exception& error) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string("the schema has a keyword of the wrong type: ") + error.what());
  }
}

}  // namespace bulkhead::constrain

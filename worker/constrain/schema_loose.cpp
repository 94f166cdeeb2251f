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

// Returns the plain texts that these schemas allow; null if the value may be something other than a text.
Result<DfaPtr> SchemaCompiler::plain_text(const SchemaSet& value) {
  BULKHEAD_TRY(const std::vector<Alternative> kinds, alternatives_.of(value));
  DfaPtr all = literals({}, true);
  for (const Alternative& kind : kinds) {
    DfaPtr contents;
    if (kind.constants) {
      std::vector<std::u32string> texts;
      for (const Json& member : *kind.constants) {
        if (!member.is_string()) return DfaPtr();
        if (!decode_utf8(member.get<std::string>(), texts.emplace_back())) texts.pop_back();
      }
      contents = literals(texts, true);
    } else {
      const Types& types = kind.types;
      if (!types.string || types.null || types.boolean || types.array || types.object ||
          types.integer || types.fraction)
        return DfaPtr();
      BULKHEAD_TRY(const StringShape shape, string_shape(kind.schemas, document_, complaints_));
      contents = shape.contents;
      if (shape.min > 0 || shape.max != kUnbounded) {
        Result<DfaPtr> bounded = texts_of_length(shape.min, shape.max);
        if (bounded.ok()) bounded = intersect(contents, *bounded);
        if (bounded.ok()) {
          contents = *bounded;
        } else {
          BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
              shape.max != kUnbounded ? "maxLength" : "minLength", document_.path(kind.schemas[0]),
              "it is too large to be held in text between tags"));
        }
      }
    }
    BULKHEAD_TRY(const DfaPtr neither, intersect(complement(*all), complement(*contents)));
    all = complement(*neither);
  }
  return all;
}

Result<std::vector<LooseMember>> SchemaCompiler::loose_members(std::string_view never) {
  BULKHEAD_TRY(never_, texts_without(never));
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
  std::uint32_t required = 0;
  std::vector<LooseMember> members;
  for (const Declared& each : all) {
    LooseMember& member = members.emplace_back();
    member.name = each.name;
    member.required = each.required;
    required += each.required ? 1 : 0;
    BULKHEAD_TRY(DfaPtr text, plain_text(each.value));
    if (text != nullptr) {
      BULKHEAD_TRY(text, intersect(text, never_));
      member.text = grammar_.add_rule();
      grammar_.rules[*member.text] = grammar_.leaf(NodeKind::kText, text, grammar_.add(Node{}));
    }
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
                                                   std::vector<std::string>& warnings) {
  try {
    BULKHEAD_TRY(const auto document, SchemaDocument::read(schema));
    Complaints complaints(strictness == Strictness::kStrict ? Complaints::Mode::kStrict
                                                            : Complaints::Mode::kLenient);
    SchemaCompiler compiler(*document, complaints, grammar);
    BULKHEAD_TRY(std::vector<LooseMember> members, compiler.loose_members(never));
    warnings.insert(warnings.end(), complaints.warnings().begin(), complaints.warnings().end());
    return members;
  } catch (const nlohmann::json::exception& error) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string("the schema has a keyword of the wrong type: ") + error.what());
  }
}

}  // namespace bulkhead::constrain

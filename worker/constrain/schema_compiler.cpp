// Makes rules for sets of schemas, and compiles their scalars.
#include "worker/constrain/schema_compiler.hpp"

#include <algorithm>
#include <iterator>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/number.hpp"
#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostRules = 20'000;
// Comparing longer lists costs as much as compiling them again.
constexpr std::size_t kMostSimpleValues = 64;

// Returns a text that only schemas with the same values have; empty if the schema is not of the simplest kind. The
// keywords here mean the same wherever they stand, and none of them is ever left out.
std::string simple_form(const Json& schema) {
  if (!schema.is_object()) return {};
  std::string form;
  for (const auto& [key, value] : schema.items()) {
    if (key == "title" || key == "description" || key == "default" || key == "examples") continue;
    if ((key != "type" && key != "enum" && key != "const") || value.size() > kMostSimpleValues)
      return {};
    form += key + value.dump();
  }
  return form;
}

}  // namespace

const Json* SchemaCompiler::first_like(const Json* schema) {
  const std::string form = simple_form(*schema);
  return form.empty() ? schema : simple_.try_emplace(form, schema).first->second;
}

RuleId SchemaCompiler::rule(SchemaSet set) {
  std::erase_if(set, [](const Json* schema) { return allows_all(*schema); });
  if (set.size() == 1) set[0] = first_like(set[0]);
  SchemaSet unique;
  for (const Json* schema : set) {
    if (std::find(unique.begin(), unique.end(), schema) == unique.end()) unique.push_back(schema);
  }
  const auto known = rules_.find(unique);
  if (known != rules_.end()) return known->second;
  const RuleId made = grammar_.add_rule();
  rules_.emplace(unique, made);
  waiting_.emplace_back(made, std::move(unique));
  return made;
}

Result<RuleId> SchemaCompiler::compile() {
  if (notation_.form == Notation::Form::kMarked) {
    BULKHEAD_TRY(never_, shared_.without(notation_.mark_text));
  }
  RuleId root = 0;
  if (notation_.form == Notation::Form::kPython) {
    // Values don't share this rule: if the schema refers to itself, the value there is a plain object.
    root = grammar_.add_rule();
    arguments_ = true;
    const Status made = make(root, {document_.root()});
    arguments_ = false;
    BULKHEAD_RETURN_IF_ERROR(made);
  } else {
    root = rule({document_.root()});
  }
  BULKHEAD_RETURN_IF_ERROR(make_waiting());
  return root;
}

Status SchemaCompiler::make_waiting() {
  while (!waiting_.empty()) {
    const auto [next, set] = std::move(waiting_.back());
    waiting_.pop_back();
    BULKHEAD_RETURN_IF_ERROR(make(next, set));
    if (grammar_.rules.size() > kMostRules || grammar_.nodes.size() > kMostNodes) {
      return Error(ErrorCode::kResourceExhausted, "the schema is too large to be enforced");
    }
  }
  return strings_;
}

Status SchemaCompiler::make(RuleId made, const SchemaSet& set) {
  BULKHEAD_TRY(std::vector<Alternative> alternatives, alternatives_.of(set));
  const NodeId end = grammar_.add(Node{});
  Node split;
  split.kind = NodeKind::kSplit;
  std::vector<Json> listed;  // the constants of all alternatives
  for (Alternative& one : alternatives) {
    if (!one.constants) {
      BULKHEAD_RETURN_IF_ERROR(make_alternative(one, end, split.branches));
      continue;
    }
    if (arguments_) {
      return Error(ErrorCode::kUnsupported,
                   "\"enum\": arguments of a Python call can't be listed as a whole");
    }
    std::ranges::move(*one.constants, std::back_inserter(listed));
  }
  constants(listed, end, split.branches);
  grammar_.rules[made] =
      split.branches.size() == 1 ? split.branches[0] : grammar_.add(std::move(split));
  return {};
}

Status SchemaCompiler::make_alternative(const Alternative& one, NodeId end,
                                        std::vector<NodeId>& ways) {
  const Types types = means_objects(one) ? Types::only_object() : one.types;
  std::vector<std::u32string> words;
  if (types.null) spellings(Json(), words);
  const auto excluded = [&](bool value) {
    for (const Json* schema : one.schemas) {
      const auto found = schema->find(kNotEnum);
      if (found == schema->end()) continue;
      if (std::find(found->begin(), found->end(), Json(value)) != found->end()) return true;
    }
    return false;
  };
  for (const bool value : {true, false}) {
    if (types.boolean && !excluded(value)) spellings(Json(value), words);
  }
  if (!words.empty()) {
    ways.push_back(grammar_.leaf(NodeKind::kBytes, literals(words, true), end));
  }
  if (types.integer || types.fraction) BULKHEAD_RETURN_IF_ERROR(number(one, end, ways));
  if (types.string) {
    BULKHEAD_TRY(StringShape shape, string_shape(one.schemas, document_, complaints_));
    ways.push_back(string_node(std::move(shape), end));
  }
  if (types.array) BULKHEAD_RETURN_IF_ERROR(array(one.schemas, end, ways));
  if (types.object) BULKHEAD_RETURN_IF_ERROR(object(one, end, ways));
  return {};
}

Status SchemaCompiler::number(const Alternative& one, NodeId end, std::vector<NodeId>& ways) {
  BULKHEAD_TRY(const NumberRange range, number_range(one.schemas, one.types.integer,
                                                     one.types.fraction, document_, complaints_));
  const auto complain = [&](const Error& error) {
    const bool bounds_alone = range.multiples.empty() && range.not_multiples.empty();
    const char* keyword = bounds_alone ? "minimum" : "multipleOf";
    return complaints_.unsupported(keyword, document_.path(one.schemas, keyword), error.message());
  };
  Result<DfaPtr> automaton = shared_.numbers(range);
  if (!automaton.ok()) {
    BULKHEAD_RETURN_IF_ERROR(complain(automaton.error()));
    BULKHEAD_TRY(automaton, shared_.numbers({}));
  }
  for (const Json* schema : one.schemas) {
    const auto found = schema->find(kNotEnum);
    if (found == schema->end()) continue;
    for (const Json& member : *found) {
      if (!member.is_number()) continue;
      BULKHEAD_TRY(const Decimal value, Decimal::of(member));
      NumberRange only;
      only.low = only.high = NumberRange::Bound{value, false};
      BULKHEAD_TRY(const DfaPtr same, number_automaton(only));
      // A number with an exponent could have this value, too.
      NumberRange plain = range;
      if (!plain.low) plain.low = NumberRange::Bound{{true, std::string(33, '9'), ""}, false};
      BULKHEAD_TRY(const DfaPtr spelled, shared_.numbers(plain));
      BULKHEAD_TRY(automaton, intersect(*automaton, spelled));
      BULKHEAD_TRY(automaton, intersect(*automaton, complement(*same)));
    }
  }
  ways.push_back(grammar_.leaf(NodeKind::kBytes, *automaton, end));
  return {};
}

NodeId SchemaCompiler::string_node(StringShape shape, NodeId next) {
  if (notation_.form == Notation::Form::kMarked) {
    const NodeId close = grammar_.bytes(notation_.mark, next);
    return grammar_.bytes(notation_.mark, text_node(shape, close));
  }
  if (notation_.form == Notation::Form::kPython) shape.quoting = Quoting::kPython;
  if (never_ != nullptr) {
    const Result<DfaPtr> contents = shared_.both(shape.contents, never_);
    Result<StringShape> without = contents.ok() ? with_lengths(*contents, shape.min, shape.max)
                                                : Result<StringShape>(contents.error());
    if (without.ok()) {
      shape = *std::move(without);
    } else {
      strings_ = without.error();
    }
  }
  const auto index = static_cast<std::uint32_t>(grammar_.strings.size());
  grammar_.strings.push_back(std::move(shape));
  return grammar_.add(NodeKind::kString, index, next);
}

NodeId SchemaCompiler::with_blanks(const char* kind, NodeId next) {
  const std::string blank = "(?: |\\n {0,64}|\\n\\t{0,64})?";
  std::string expression = kind;
  const std::size_t place = expression.find('_');
  expression.replace(place, 1, blank);
  return grammar_.leaf(NodeKind::kBytes, shared_.expression(expression), next);
}

Result<RuleId> add_schema(Grammar& grammar, std::string_view schema, Strictness strictness,
                          std::vector<std::string>& warnings, const Notation& notation) {
  try {
    Complaints complaints(strictness == Strictness::kStrict ? Complaints::Mode::kStrict
                                                            : Complaints::Mode::kLenient);
    BULKHEAD_TRY(const auto document, SchemaDocument::read(schema, complaints));
    BULKHEAD_TRY(const RuleId root,
                 SchemaCompiler(*document, complaints, grammar, notation).compile());
    warnings.insert(warnings.end(), complaints.warnings().begin(), complaints.warnings().end());
    return root;
  } catch (const nlohmann::json::exception& error) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string("the schema has a keyword of the wrong type: ") + error.what());
  }
}

}  // namespace bulkhead::constrain

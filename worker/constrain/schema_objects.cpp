// Compiles objects: their properties, the order of these, and their other keys.
#include <algorithm>
#include <iterator>
#include <set>

#include "worker/constrain/regex.hpp"
#include "worker/constrain/schema_compiler.hpp"
#include "worker/constrain/schema_validate.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostPatterns = 6;  // each pattern doubles the number of kinds of keys
constexpr std::size_t kMostNames = 512;   // properties whose names are compared with propertyNames

// Keywords that evaluate members.
constexpr const char* kEvaluating[] = {"properties", "patternProperties", "additionalProperties"};

Error not_object(const char* keyword) {
  return Error(ErrorCode::kInvalidArgument, "\"" + std::string(keyword) + "\" must be an object");
}

}  // namespace

RuleId SchemaCompiler::member(RuleId value) {
  const auto known = members_.find({value, arguments_});
  if (known != members_.end()) return known->second;
  const RuleId made = grammar_.add_rule();
  const NodeId call = grammar_.add(NodeKind::kCall, value, grammar_.add(Node{}));
  grammar_.rules[made] = with_blanks(arguments_ ? "=_" : ":_", call);
  members_.emplace(std::pair(value, arguments_), made);
  return made;
}

Result<bool> SchemaCompiler::name_allowed(const SchemaSet& schemas, const std::string& name) {
  for (const Json* schema : schemas) {
    const auto names = schema->find("propertyNames");
    if (names == schema->end()) continue;
    BULKHEAD_TRY(const bool ok, validates(Json(name), &*names, document_, complaints_));
    if (!ok) return false;
  }
  return true;
}

Result<std::vector<SchemaCompiler::Declared>> SchemaCompiler::declared(const SchemaSet& schemas) {
  std::vector<std::string> order;
  std::set<std::string> known, required;
  for (const Json* schema : schemas) {
    const auto declared = schema->find("properties");
    if (declared == schema->end()) continue;
    if (!declared->is_object()) return not_object("properties");
    for (const auto& entry : declared->items()) {
      if (known.insert(entry.key()).second) order.push_back(entry.key());
    }
  }
  for (const Json* schema : schemas) {
    const auto list = schema->find("required");
    if (list == schema->end() || list->is_boolean()) continue;  // draft 3 had booleans
    if (!list->is_array()) {
      return Error(ErrorCode::kInvalidArgument, "\"required\" must be a list of names");
    }
    for (const Json& name : *list) {
      if (!name.is_string()) {
        return Error(ErrorCode::kInvalidArgument, "\"required\" must be a list of names");
      }
      required.insert(name.get<std::string>());
      if (known.insert(name.get<std::string>()).second) order.push_back(name.get<std::string>());
    }
  }
  const auto constrained =
      std::ranges::find_if(schemas, [](const Json* it) { return it->contains("propertyNames"); });
  const bool compare = constrained != schemas.end() && order.size() <= kMostNames;
  if (constrained != schemas.end() && !compare) {
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
        "propertyNames", document_.path(*constrained),
        "at most " + std::to_string(kMostNames) + " properties are compared with it"));
  }
  std::vector<Declared> all;
  for (const std::string& name : order) {
    SchemaSet value;
    const Status added = add_member(schemas, name, lookup_, value);
    if (!added.ok()) {
      BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported("patternProperties",
                                                       document_.path(schemas, "patternProperties"),
                                                       added.error().message()));
    }
    BULKHEAD_TRY(const bool allowed, compare ? name_allowed(schemas, name) : true);
    if (!allowed) value.push_back(document_.keep(Json(false), *constrained));
    all.push_back({name, std::move(value), required.contains(name)});
  }
  return all;
}

Status SchemaCompiler::properties(const SchemaSet& schemas, const Unevaluated& rest,
                                  ObjectShape& shape) {
  BULKHEAD_TRY(std::vector<Declared> all, declared(schemas));
  if (bare_keys()) {
    shape.keys = Quoting::kNone;
  } else if (notation_.form == Notation::Form::kPython) {
    shape.keys = Quoting::kPython;
  }
  for (Declared& each : all) {
    ObjectShape::Property property;
    if (!decode_utf8(each.name, property.name)) return not_object("properties");
    if (shape.keys == Quoting::kNone && !is_bare_key(each.name)) {
      if (!each.required) continue;  // the grammar leaves this member out
      BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
          "required", document_.path(schemas, "required"),
          "this model's calls can't have the name " + Json(each.name).dump()));
      continue;
    }
    if (!rest.value.empty()) {
      SchemaSet evaluating;
      BULKHEAD_RETURN_IF_ERROR(add_member(rest.evaluating, each.name, lookup_, evaluating));
      if (evaluating.empty()) std::ranges::copy(rest.value, std::back_inserter(each.value));
    }
    property.member = member(rule(std::move(each.value)));
    property.required = each.required;
    shape.properties.push_back(std::move(property));
  }
  return {};
}

// Returns the keys among those in `contents` that propertyNames allows.
Result<StringShape> SchemaCompiler::names(const SchemaSet& schemas, DfaPtr contents) {
  std::uint32_t min = 0, max = kUnbounded;
  for (const Json* schema : schemas) {
    const auto allowed = schema->find("propertyNames");
    if (allowed == schema->end()) continue;
    BULKHEAD_TRY(const std::vector<Alternative> kinds, alternatives_.of({&*allowed}));
    DfaPtr all = literals({}, true);
    bool lengths = false;
    for (const Alternative& kind : kinds) {
      StringShape shape;
      if (kind.constants) {
        std::vector<std::u32string> texts;
        for (const Json& member : *kind.constants) {
          std::u32string text;
          if (member.is_string() && decode_utf8(member.get<std::string>(), text))
            texts.push_back(text);
        }
        shape.contents = literals(texts, true);
      } else if (kind.types.string) {
        BULKHEAD_TRY(shape, string_shape(kind.schemas, document_, complaints_));
      } else {
        continue;
      }
      lengths = lengths || shape.min > 0 || shape.max != kUnbounded;
      min = std::max(min, shape.min);
      max = std::min(max, shape.max);
      BULKHEAD_TRY(const DfaPtr neither, intersect(complement(*all), complement(*shape.contents)));
      all = complement(*neither);
    }
    if (lengths && kinds.size() > 1) {
      return Error(ErrorCode::kUnsupported, "lengths in several branches can't be enforced");
    }
    BULKHEAD_TRY(contents, intersect(contents, all));
  }
  return with_lengths(std::move(contents), min, max);
}

// Adds the keys that match exactly those patterns whose bits are set.
Status SchemaCompiler::other(const SchemaSet& schemas, const std::vector<std::string>& patterns,
                             std::uint32_t matched, const Unevaluated& rest, ObjectShape& shape) {
  std::vector<std::u32string> declared;
  for (const ObjectShape::Property& property : shape.properties)
    declared.push_back(property.name);
  DfaPtr contents = literals(declared, false);
  if (bare_keys()) {
    BULKHEAD_TRY(const DfaPtr bare, bare_key_automaton());
    BULKHEAD_TRY(contents, intersect(contents, bare));
  }
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const bool matches = (matched >> i & 1) != 0;
    BULKHEAD_TRY(const DfaPtr pattern,
                 lookup_.pattern(patterns[i], matches ? Reading::kBoth : Reading::kEither));
    BULKHEAD_TRY(contents, intersect(contents, matches ? pattern : complement(*pattern)));
  }
  SchemaSet value;
  bool evaluated = false;
  for (const Json* schema : schemas) {
    const bool evaluates = std::ranges::find(rest.evaluating, schema) != rest.evaluating.end();
    bool spoken = false;
    const auto own = schema->find("patternProperties");
    for (std::size_t i = 0; i < patterns.size() && own != schema->end(); ++i) {
      if ((matched >> i & 1) == 0 || !own->contains(patterns[i])) continue;
      value.push_back(&(*own)[patterns[i]]);
      spoken = true;
    }
    const auto additional = schema->find("additionalProperties");
    if (!spoken && additional != schema->end()) {
      value.push_back(&*additional);
      spoken = true;
    }
    evaluated = evaluated || (spoken && evaluates);
  }
  if (!evaluated) std::ranges::copy(rest.value, std::back_inserter(value));
  const bool never =
      std::any_of(value.begin(), value.end(), [](const Json* schema) { return *schema == false; });
  if (never || contents->empty()) return {};
  Result<StringShape> key = names(schemas, contents);
  if (!key.ok()) {
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
        "propertyNames", document_.path(schemas, "propertyNames"), key.error().message()));
    BULKHEAD_TRY(key, with_lengths(contents, 0, kUnbounded));
  }
  if (key->contents->empty()) return {};
  const RuleId made = grammar_.add_rule();
  const RuleId called = member(rule(std::move(value)));
  const NodeId behind = grammar_.add(NodeKind::kCall, called, grammar_.add(Node{}));
  grammar_.rules[made] =
      bare_keys() ? text_node(*key, behind) : string_node(*std::move(key), behind);
  shape.others.push_back(made);
  return {};
}

Status SchemaCompiler::others(const SchemaSet& schemas, const Unevaluated& rest,
                              ObjectShape& shape) {
  std::vector<std::string> patterns;
  for (const Json* schema : schemas) {
    const auto own = schema->find("patternProperties");
    if (own == schema->end()) continue;
    if (!own->is_object()) return not_object("patternProperties");
    for (const auto& entry : own->items()) {
      if (std::find(patterns.begin(), patterns.end(), entry.key()) == patterns.end()) {
        patterns.push_back(entry.key());
      }
    }
  }
  if (patterns.size() > kMostPatterns) {
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported("patternProperties",
                                                     document_.path(schemas, "patternProperties"),
                                                     "at most 6 patterns can be enforced"));
    patterns.clear();
  }
  for (std::uint32_t matched = 0; matched < 1U << patterns.size(); ++matched) {
    const Status added = other(schemas, patterns, matched, rest, shape);
    if (added.ok()) continue;
    if (added.error().code() == ErrorCode::kInvalidArgument) return added.error();
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported("patternProperties",
                                                     document_.path(schemas, "patternProperties"),
                                                     added.error().message()));
  }
  return {};
}

// unevaluatedProperties applies to the members that neither its own schema nor one that this applies in place
// evaluates. If others evaluate members of this object, too, these can't be told apart.
Result<SchemaCompiler::Unevaluated> SchemaCompiler::unevaluated(const Alternative& one) {
  Unevaluated out;
  for (const Json* schema : one.schemas) {
    const auto origin = one.origins.find(schema);
    const bool speaks =
        std::ranges::any_of(kEvaluating, [&](const char* it) { return schema->contains(it); });
    if (speaks && origin != one.origins.end() && origin->second.evaluates) {
      out.evaluating.push_back(schema);
    }
  }
  for (const Json* schema : one.schemas) {
    const auto own = schema->find("unevaluatedProperties");
    if (own == schema->end() || allows_all(*own)) continue;
    const auto inside = [&](const Json* it) {
      const SchemaSet& within = one.origins.at(it).within;
      return std::ranges::find(within, schema) != within.end();
    };
    if (one.origins.at(schema).evaluates && std::ranges::all_of(out.evaluating, inside)) {
      out.value.push_back(&*own);
      continue;
    }
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
        "unevaluatedProperties", document_.path(schema),
        "it can be enforced only in the schema that the others are part of"));
  }
  return out;
}

Status SchemaCompiler::object(const Alternative& one, NodeId end, std::vector<NodeId>& ways) {
  const SchemaSet& schemas = one.schemas;
  ObjectShape shape;
  for (const Json* schema : schemas) {
    for (const char* key : {"minProperties", "maxProperties"}) {
      const auto value = schema->find(key);
      if (value == schema->end()) continue;
      BULKHEAD_TRY(const std::uint32_t bound, count_of(*value, key));
      if (key[1] == 'i')
        shape.min = std::max(shape.min, bound);
      else
        shape.max = std::min(shape.max, bound);
    }
  }
  BULKHEAD_TRY(const Unevaluated rest, unevaluated(one));
  BULKHEAD_RETURN_IF_ERROR(properties(schemas, rest, shape));
  BULKHEAD_RETURN_IF_ERROR(others(schemas, rest, shape));
  const std::uint32_t most = shape.size() + 1;
  if (shape.min > most && !shape.others.empty() && shape.min <= shape.max) {
    BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported(
        "minProperties", document_.path(schemas, "minProperties"),
        "only one property that is not named in \"properties\" can be counted; name the others"));
    shape.min = most;
  }
  const auto index = static_cast<std::uint32_t>(grammar_.objects.size());
  const NodeId between = grammar_.add(NodeKind::kObject, index, kNoNode);
  shape.key_start = grammar_.add(NodeKind::kKeyStart, index, between);
  shape.key = grammar_.add(NodeKind::kKey, index, between);
  shape.first = with_blanks("_", shape.key_start);
  shape.comma = with_blanks(",_", shape.key_start);
  shape.close = with_blanks(arguments_ ? "_\\)" : "_\\}", end);
  grammar_.objects.push_back(std::move(shape));
  ways.push_back(grammar_.bytes(arguments_ ? "(" : "{", between));
  return {};
}

}  // namespace bulkhead::constrain

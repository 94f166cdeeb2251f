// Makes the opposite of a schema, keyword by keyword: a value is not valid if one of the keywords does not hold. The
// opposite of each keyword is a schema again.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "worker/constrain/schema_alternatives.hpp"

namespace bulkhead::constrain {
namespace {

constexpr int kMostOpposites = 16;

Json of_type(const char* type, const char* key, const Json& value) {
  return Json{{"type", type}, {key, value}};
}

// A keyword whose opposite for values of a type is another keyword. `counts`: the keyword bounds a count, and the
// opposite's bound differs by one.
struct Opposite {
  std::string_view key;
  const char* type;
  const char* opposite;
  bool counts = false;
};
constexpr Opposite kOpposites[] = {
    {"minimum", "number", "exclusiveMaximum"},
    {"maximum", "number", "exclusiveMinimum"},
    {"exclusiveMinimum", "number", "maximum"},
    {"exclusiveMaximum", "number", "minimum"},
    {"multipleOf", "number", kNotMultiple},
    {"pattern", "string", kNotPattern},
    {"format", "string", kNotFormat},
    {"minLength", "string", "maxLength", true},
    {"maxLength", "string", "minLength", true},
    {"minItems", "array", "maxItems", true},
    {"maxItems", "array", "minItems", true},
    {"minProperties", "object", "maxProperties", true},
    {"maxProperties", "object", "minProperties", true},
};

Result<Json> opposite_of(const Opposite& row, const Json& value) {
  if (!row.counts) return of_type(row.type, row.opposite, value);
  BULKHEAD_TRY(const std::uint32_t count, count_of(value, row.key.data()));
  const bool least = row.key.starts_with("min");
  if (least && count == 0) return Json(false);
  return of_type(row.type, row.opposite, least ? count - 1 : count + 1);
}

// Keywords whose opposite can't be enforced.
constexpr std::string_view kHard[] = {"oneOf",
                                      "if",
                                      "items",
                                      "prefixItems",
                                      "additionalItems",
                                      "contains",
                                      "uniqueItems",
                                      "additionalProperties",
                                      "patternProperties",
                                      "propertyNames",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "dependencies",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "$dynamicRef",
                                      "$recursiveRef"};

Json negated_type(const Types& types) {
  Json names = Json::array();
  if (!types.null) names.push_back("null");
  if (!types.boolean) names.push_back("boolean");
  if (!types.string) names.push_back("string");
  if (!types.array) names.push_back("array");
  if (!types.object) names.push_back("object");
  if (!types.integer && !types.fraction) names.push_back("number");
  Json ways = Json::array();
  if (!names.empty()) ways.push_back(Json{{"type", names}});
  if (types.integer && !types.fraction) ways.push_back(of_type("number", kNotInteger, true));
  if (ways.empty()) return Json(false);
  return Json{{"anyOf", ways}};
}

}  // namespace

Result<const Json*> Alternatives::negated(const Json* schema, int depth) {
  if (depth > kMostOpposites) {
    return Error(ErrorCode::kUnsupported, "a schema that leads to itself can't be negated");
  }
  if (const auto known = negated_.find(schema); known != negated_.end()) return known->second;
  if (schema->is_boolean()) return document_.keep(Json(!schema->get<bool>()), schema);
  if (!schema->is_object()) {
    return Error(ErrorCode::kInvalidArgument, "a schema must be an object, true or false");
  }
  if (const Json* linked = document_.linked(*schema)) return negated(linked, depth + 1);
  Json ways = Json::array();
  for (const auto& [key, value] : schema->items()) {
    if (document_.draft7() && schema->contains("$ref") && key != "$ref") continue;
    BULKHEAD_RETURN_IF_ERROR(negate_keyword(schema, key, value, depth, ways));
  }
  const Json* made =
      document_.keep(ways.empty() ? Json(false) : Json{{kOpposite, true}, {"anyOf", ways}}, schema);
  negated_[schema] = made;
  return made;
}

Status Alternatives::negate_keyword(const Json* schema, const std::string& key, const Json& value,
                                    int depth, Json& ways) {
  const auto add = [&](const Json* inner) -> Status {
    BULKHEAD_TRY(const Json* other, negated(inner, depth + 1));
    ways.push_back(document_.link(other));
    return {};
  };
  if (key == "type") {
    BULKHEAD_TRY(const Types types, Types::of(value));
    ways.push_back(negated_type(types));
    return {};
  }
  if (key == "enum" || key == "const") {
    ways.push_back(Json{{kNotEnum, key == "enum" ? value : Json::array({value})}});
    return {};
  }
  if (const auto* const row = std::ranges::find(kOpposites, key, &Opposite::key);
      row != std::end(kOpposites)) {
    BULKHEAD_TRY(Json other, opposite_of(*row, value));
    ways.push_back(std::move(other));
    return {};
  }
  if (key == "required" && value.is_array()) {
    for (const Json& name : value) {
      if (!name.is_string()) continue;
      Json absent{{name.get<std::string>(), false}};
      ways.push_back(of_type("object", "properties", absent));
    }
    return {};
  }
  if (key == "properties" && value.is_object()) {
    for (const auto& entry : value.items()) {
      BULKHEAD_TRY(const Json* other, negated(&entry.value(), depth + 1));
      Json present{{entry.key(), document_.link(other)}};
      Json way = of_type("object", "properties", present);
      way["required"] = Json::array({entry.key()});
      ways.push_back(std::move(way));
    }
    return {};
  }
  if (key == "$ref" && value.is_string()) {
    BULKHEAD_TRY(const Json* target, document_.resolve(schema, value.get<std::string>()));
    return add(target);
  }
  if (key == "allOf" && value.is_array()) {
    for (const Json& part : value)
      BULKHEAD_RETURN_IF_ERROR(add(&part));
    return {};
  }
  if ((key == "anyOf" || (key == "oneOf" && value.size() == 1)) && value.is_array()) {
    Json all = Json::array();
    for (const Json& part : value) {
      BULKHEAD_TRY(const Json* other, negated(&part, depth + 1));
      all.push_back(document_.link(other));
    }
    ways.push_back(Json{{"allOf", all}});
    return {};
  }
  if (key == "not") return ways.push_back(document_.link(&value)), Status();
  if (std::ranges::find(kHard, key) == std::end(kHard)) return {};  // the keyword is an annotation
  return Error(ErrorCode::kUnsupported, "the opposite of \"" + key + "\" can't be enforced");
}

}  // namespace bulkhead::constrain

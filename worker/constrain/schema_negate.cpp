// The opposite of a schema, keyword by keyword: a value is not valid where one of them does not
// hold. The opposite of each is a schema again.
#include <algorithm>

#include "worker/constrain/schema_alternatives.hpp"

namespace bulkhead::constrain {
namespace {

constexpr int kMostDepth = 16;

Json of_type(const char* type, const char* key, const Json& value) {
  return Json{{"type", type}, {key, value}};
}

// A bound of a count, from the other side.
Result<Json> other_count(const char* type, const char* key, const char* opposite,
                         const Json& value) {
  BULKHEAD_TRY(const std::uint32_t count, count_of(value, key));
  const bool least = std::string_view(key).starts_with("min");
  if (least && count == 0) return Json(false);
  return of_type(type, opposite, least ? count - 1 : count + 1);
}

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
  if (depth > kMostDepth) {
    return Error(ErrorCode::kUnsupported, "a schema that leads to itself can't be negated");
  }
  if (const auto known = negated_.find(schema); known != negated_.end()) return known->second;
  if (schema->is_boolean()) return document_.keep(Json(!schema->get<bool>()));
  if (!schema->is_object()) {
    return Error(ErrorCode::kInvalidArgument, "a schema must be an object, true or false");
  }
  if (const Json* linked = document_.linked(*schema)) return negated(linked, depth + 1);
  Json ways = Json::array();
  for (const auto& [key, value] : schema->items()) {
    if (document_.draft7() && schema->contains("$ref") && key != "$ref") continue;
    BULKHEAD_RETURN_IF_ERROR(negate_keyword(schema, key, value, depth, ways));
  }
  const Json* made = document_.keep(ways.empty() ? Json(false) : Json{{"anyOf", ways}});
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
  const auto add_count = [&](const char* type, const char* opposite) -> Status {
    BULKHEAD_TRY(Json other, other_count(type, key.c_str(), opposite, value));
    ways.push_back(std::move(other));
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
  if (key == "minimum")
    return ways.push_back(of_type("number", "exclusiveMaximum", value)), Status();
  if (key == "maximum")
    return ways.push_back(of_type("number", "exclusiveMinimum", value)), Status();
  if (key == "exclusiveMinimum")
    return ways.push_back(of_type("number", "maximum", value)), Status();
  if (key == "exclusiveMaximum")
    return ways.push_back(of_type("number", "minimum", value)), Status();
  if (key == "multipleOf") return ways.push_back(of_type("number", kNotMultiple, value)), Status();
  if (key == "pattern") return ways.push_back(of_type("string", kNotPattern, value)), Status();
  if (key == "format") return ways.push_back(of_type("string", kNotFormat, value)), Status();
  if (key == "minLength") return add_count("string", "maxLength");
  if (key == "maxLength") return add_count("string", "minLength");
  if (key == "minItems") return add_count("array", "maxItems");
  if (key == "maxItems") return add_count("array", "minItems");
  if (key == "minProperties") return add_count("object", "maxProperties");
  if (key == "maxProperties") return add_count("object", "minProperties");
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
  static constexpr const char* kHard[] = {"oneOf",
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
  const bool hard = std::any_of(std::begin(kHard), std::end(kHard),
                                [&](const char* name) { return key == name; });
  if (!hard) return {};  // an annotation
  return Error(ErrorCode::kUnsupported, "the opposite of \"" + key + "\" can't be enforced");
}

}  // namespace bulkhead::constrain

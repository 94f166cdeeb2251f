// Compiles arrays: tuples, items, counts, contains and uniqueItems.
#include <algorithm>

#include "worker/constrain/schema_compiler.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostTuple = 2'000;

// A schema's list of first items, and the schema of the items that follow; nullptr if it has none.
struct Items {
  const Json* prefix = nullptr;
  const Json* rest = nullptr;
};

Items items_of(const Json& schema) {
  Items out;
  const auto find = [&](const char* key) -> const Json* {
    const auto found = schema.find(key);
    return found == schema.end() ? nullptr : &*found;
  };
  out.prefix = find("prefixItems");
  out.rest = find("items");
  if (out.rest != nullptr && out.rest->is_array()) {  // draft-07
    out.prefix = out.rest;
    out.rest = find("additionalItems");
  }
  return out;
}

SchemaSet item_set(const SchemaSet& schemas, std::size_t place) {
  SchemaSet out;
  for (const Json* schema : schemas) {
    const Items items = items_of(*schema);
    if (items.prefix != nullptr && place < items.prefix->size()) {
      out.push_back(&(*items.prefix)[place]);
    } else if (items.rest != nullptr) {
      out.push_back(items.rest);
    }
  }
  return out;
}

}  // namespace

Status SchemaCompiler::unique(const SchemaSet& schemas, const SchemaSet& items, ArrayShape& shape) {
  for (const Json* schema : schemas) {
    const auto wanted = schema->find("uniqueItems");
    if (wanted == schema->end() || *wanted != true || shape.max <= 1) continue;
    if (items.empty()) {
    }
    return complaints_.unsupported("uniqueItems", document_.path(schema),
                                   "it can't be enforced for more than one item");
  }
  return {};
}

Status SchemaCompiler::array(const SchemaSet& schemas, NodeId end, std::vector<NodeId>& ways) {
  ArrayShape shape;
  std::size_t fixed = 0;
  const Json* contains = nullptr;
  for (const Json* schema : schemas) {
    const Items items = items_of(*schema);
    if (items.prefix != nullptr) {
      if (!items.prefix->is_array()) {
        return Error(ErrorCode::kInvalidArgument, "\"prefixItems\" must be a list of schemas");
      }
      fixed = std::max(fixed, items.prefix->size());
    }
    for (const char* key : {"minItems", "maxItems"}) {
      const auto value = schema->find(key);
      if (value == schema->end()) continue;
      BULKHEAD_TRY(const std::uint32_t bound, count_of(*value, key));
      if (key[1] == 'i')
        shape.min = std::max(shape.min, bound);
      else
        shape.max = std::min(shape.max, bound);
    }
    const auto wanted = schema->find("contains");
    if (wanted == schema->end()) continue;
    std::uint32_t least = 1;
    if (schema->contains("minContains")) {
      BULKHEAD_TRY(least, count_of((*schema)["minContains"], "minContains"));
    }
    if (schema->contains("maxContains")) {
      BULKHEAD_RETURN_IF_ERROR(
          complaints_.unsupported("maxContains", document_.path(schema), "it can't be enforced"));
    }
    if (least == 0) continue;
    if (contains != nullptr) {
      BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported("contains", document_.path(schema),
                                                       "two of them can't be enforced together"));
      continue;
    }
    contains = &*wanted;
    shape.min_contains = least;
  }
  fixed = std::min<std::size_t>(fixed, shape.max);
  if (fixed > kMostTuple) {
    return Error(ErrorCode::kResourceExhausted, "\"prefixItems\" has more than 2000 members");
  }
  for (std::size_t place = 0; place <= fixed; ++place) {
    SchemaSet item = item_set(schemas, place);
    if (place == fixed) BULKHEAD_RETURN_IF_ERROR(unique(schemas, item, shape));
    std::optional<RuleId> wanted;
    if (contains != nullptr) {
      SchemaSet both = item;
      both.push_back(contains);
      wanted = rule(std::move(both));
    }
    const RuleId plain = rule(std::move(item));
    if (place == fixed) {
      shape.rest = plain;
      shape.rest_containing = wanted;
    } else {
      shape.prefix.push_back(plain);
      if (contains != nullptr) shape.prefix_containing.push_back(wanted);
    }
  }
  const auto index = static_cast<std::uint32_t>(grammar_.arrays.size());
  const NodeId between = grammar_.add(NodeKind::kArray, index, kNoNode);
  shape.item = grammar_.add(NodeKind::kItem, index, between);
  shape.first = with_blanks("_", shape.item);
  shape.comma = with_blanks(",_", shape.item);
  shape.close = with_blanks("_\\]", end);
  grammar_.arrays.push_back(std::move(shape));
  ways.push_back(grammar_.bytes("[", between));
  return {};
}

}  // namespace bulkhead::constrain

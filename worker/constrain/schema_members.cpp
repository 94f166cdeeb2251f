// The functions of schema_members.hpp.
#include "worker/constrain/schema_members.hpp"

#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {

Result<DfaPtr> PatternCache::of(const std::string& pattern) {
  if (const auto known = known_.find(pattern); known != known_.end()) return known->second;
  BULKHEAD_TRY(DfaPtr made, regex_automaton(pattern, Match::kAnywhere));
  known_.emplace(pattern, made);
  return made;
}

bool allows_all(const Json& schema) {
  return schema == true || (schema.is_object() && schema.empty());
}

Status add_member(const SchemaSet& schemas, const std::string& name, PatternCache& patterns,
                  SchemaSet& out) {
  std::u32string codes;
  if (!decode_utf8(name, codes)) {
    return Error(ErrorCode::kInvalidArgument, "the name of a property is not UTF-8");
  }
  for (const Json* schema : schemas) {
    bool spoken = false;
    const auto declared = schema->find("properties");
    if (declared != schema->end() && declared->is_object() && declared->contains(name)) {
      out.push_back(&(*declared)[name]);
      spoken = true;
    }
    const auto by_pattern = schema->find("patternProperties");
    if (by_pattern != schema->end() && by_pattern->is_object()) {
      for (const auto& entry : by_pattern->items()) {
        BULKHEAD_TRY(const DfaPtr pattern, patterns.of(entry.key()));
        if (!pattern->matches(codes)) continue;
        out.push_back(&entry.value());
        spoken = true;
      }
    }
    const auto others = schema->find("additionalProperties");
    if (!spoken && others != schema->end()) out.push_back(&*others);
  }
  return {};
}

}  // namespace bulkhead::constrain

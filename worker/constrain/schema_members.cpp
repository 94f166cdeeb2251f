// The functions of schema_members.hpp.
#include "worker/constrain/schema_members.hpp"

#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {

namespace {

// From here on a table is faster than a search that compares all names.
constexpr std::size_t kWideObject = 64;

}  // namespace

Result<DfaPtr> MemberLookup::pattern(const std::string& pattern, Reading reading) {
  const std::pair key(pattern, reading);
  if (const auto known = patterns_.find(key); known != patterns_.end()) return known->second;
  BULKHEAD_TRY(DfaPtr made, regex_automaton(pattern, Match::kAnywhere, reading));
  patterns_.emplace(key, made);
  return made;
}

const Json* MemberLookup::find(const Json& object, const std::string& name) {
  if (object.size() < kWideObject) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }
  auto& table = wide_[&object];
  if (table.empty()) {
    for (const auto& member : object.items())
      table.emplace(member.key(), &member.value());
  }
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

bool allows_all(const Json& schema) {
  return schema == true || (schema.is_object() && schema.empty());
}

Status add_member(const SchemaSet& schemas, const std::string& name, MemberLookup& lookup,
                  SchemaSet& out) {
  std::u32string codes;
  if (!decode_utf8(name, codes)) {
    return Error(ErrorCode::kInvalidArgument, "the name of a property is not UTF-8");
  }
  for (const Json* schema : schemas) {
    bool spoken = false;
    const auto declared = schema->find("properties");
    if (declared != schema->end() && declared->is_object()) {
      if (const Json* member = lookup.find(*declared, name); member != nullptr) {
        out.push_back(member);
        spoken = true;
      }
    }
    const auto by_pattern = schema->find("patternProperties");
    if (by_pattern != schema->end() && by_pattern->is_object()) {
      for (const auto& entry : by_pattern->items()) {
        BULKHEAD_TRY(const DfaPtr either, lookup.pattern(entry.key(), Reading::kEither));
        if (!either->matches(codes)) continue;
        out.push_back(&entry.value());
        BULKHEAD_TRY(const DfaPtr both, lookup.pattern(entry.key(), Reading::kBoth));
        spoken = spoken || both->matches(codes);
      }
    }
    const auto others = schema->find("additionalProperties");
    if (!spoken && others != schema->end()) out.push_back(&*others);
  }
  return {};
}

}  // namespace bulkhead::constrain

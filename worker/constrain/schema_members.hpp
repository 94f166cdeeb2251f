// Finds the schemas that hold for a property of an object or for an item of an array.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "worker/constrain/regex.hpp"
#include "worker/constrain/schema_alternatives.hpp"

namespace bulkhead::constrain {

// Keeps what is made once and looked up for each member: the automata of patterns, and the places of members in wide
// objects. The objects must live as long as this.
class MemberLookup {
 public:
  Result<DfaPtr> pattern(const std::string& pattern, Reading reading);
  // Returns the member of that name; null if the object has none.
  const Json* find(const Json& object, const std::string& name);

 private:
  std::map<std::pair<std::string, Reading>, DfaPtr> patterns_;
  std::unordered_map<const Json*, std::unordered_map<std::string_view, const Json*>> wide_;
};

// Appends the schemas that `schemas` demand of the property `name`: those in properties and patternProperties and, if
// neither mentions it, additionalProperties.
Status add_member(const SchemaSet& schemas, const std::string& name, MemberLookup& lookup,
                  SchemaSet& out);

// Returns whether the schema obviously allows everything.
bool allows_all(const Json& schema);

}  // namespace bulkhead::constrain

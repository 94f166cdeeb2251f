// Tells which schemas hold for a property of an object or for an item of an array.
#pragma once

#include <map>
#include <string>

#include "worker/constrain/schema_alternatives.hpp"

namespace bulkhead::constrain {

// The automata of patterns; each is made once.
class PatternCache {
 public:
  Result<DfaPtr> of(const std::string& pattern);

 private:
  std::map<std::string, DfaPtr> known_;
};

// Appends the schemas that `schemas` demand of the property `name`: those in properties and patternProperties and, if
// neither mentions it, additionalProperties.
Status add_member(const SchemaSet& schemas, const std::string& name, PatternCache& patterns,
                  SchemaSet& out);

// Returns whether the schema obviously allows everything.
bool allows_all(const Json& schema);

}  // namespace bulkhead::constrain

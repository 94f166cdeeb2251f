// Which schemas hold for a property of an object, or an item of an array.
#pragma once

#include <map>
#include <string>

#include "worker/constrain/schema_alternatives.hpp"

namespace bulkhead::constrain {

// The automata of patterns, each made once.
class PatternCache {
 public:
  Result<DfaPtr> of(const std::string& pattern);

 private:
  std::map<std::string, DfaPtr> known_;
};

// Appends what `schemas` ask of the property `name`: of properties, patternProperties and, where
// neither speaks of it, additionalProperties.
Status add_member(const SchemaSet& schemas, const std::string& name, PatternCache& patterns,
                  SchemaSet& out);

// True for a schema that allows everything without further ado.
bool allows_all(const Json& schema);

}  // namespace bulkhead::constrain

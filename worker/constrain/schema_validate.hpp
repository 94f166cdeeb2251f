// Decides whether a constant (a member of `enum`, a property's name) is valid under a schema. It supports all
// keywords, because the whole constant is known.
#pragma once

#include "worker/constrain/schema_document.hpp"
#include "worker/constrain/schema_limits.hpp"

namespace bulkhead::constrain {

// What can't be decided is reported to Complaints and counts as valid.
Result<bool> validates(const Json& instance, const Json* schema, SchemaDocument& document,
                       Complaints& complaints, int depth = 0);
// The same for the keywords about the value itself: without $ref, allOf, anyOf, oneOf, not, if and dependencies.
Result<bool> validates_alone(const Json& instance, const Json* schema, SchemaDocument& document,
                             Complaints& complaints);

// Compares as JSON Schema does: 1 equals 1.0, 1 does not equal true, and the order of properties does not matter.
bool equal_json(const Json& a, const Json& b);

}  // namespace bulkhead::constrain

// Whether a constant (a member of `enum`, a property's name) is valid under a schema: all keywords,
// because a constant is there as a whole.
#pragma once

#include "worker/constrain/schema_document.hpp"
#include "worker/constrain/schema_limits.hpp"

namespace bulkhead::constrain {

// What can't be told is complained about (Complaints) and taken as valid.
Result<bool> validates(const Json& instance, const Json* schema, SchemaDocument& document,
                       Complaints& complaints, int depth = 0);
// The same, of the keywords that speak of the value itself: without $ref, allOf, anyOf, oneOf, not,
// if and dependencies.
Result<bool> validates_alone(const Json& instance, const Json* schema, SchemaDocument& document,
                             Complaints& complaints);

// Equal as JSON Schema means it: 1 and 1.0 are, 1 and true are not, properties have no order.
bool equal_json(const Json& a, const Json& b);

}  // namespace bulkhead::constrain

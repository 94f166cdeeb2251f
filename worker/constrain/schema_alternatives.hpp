// Takes the branches of schemas apart: `$ref`, allOf, anyOf, oneOf, not, if/then/else and
// dependencies go, and what is left are alternatives, each a list of plain schemas that hold
// together. The disjunctive normal form of a set of schemas.
//
// A set of schemas is a list of places in the document, so there are finitely many of them, however
// schemas refer to each other; that is what makes recursion end.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "worker/constrain/schema_document.hpp"
#include "worker/constrain/schema_limits.hpp"

namespace bulkhead::constrain {

using SchemaSet = std::vector<const Json*>;

struct Alternative {
  SchemaSet schemas;  // objects; of their keywords only those of types, bounds and members count
  Types types;
  // Where an enum or const is among them: the members that all schemas of the set allow.
  std::optional<std::vector<Json>> constants;
};

class Alternatives {
 public:
  Alternatives(SchemaDocument& document, Complaints& complaints)
      : document_(document), complaints_(complaints) {}

  Result<std::vector<Alternative>> of(const SchemaSet& set);
  // True where no value can be valid under all of these; false where one may be. `depth`: levels of
  // members to look at.
  Result<bool> never_meet(const SchemaSet& set, int depth);
  // A schema for all that is not valid under this one. kUnsupported where that can't be said.
  Result<const Json*> negated(const Json* schema, int depth);

 private:
  struct State;
  Status visit(const Json* schema, State& state);
  Status visit_keyword(const Json* schema, const std::string& key, const Json& value, State& state);
  Status split(State state, const SchemaSet& initial, std::vector<Alternative>& out);
  Result<std::optional<std::vector<Json>>> constants(const SchemaSet& schemas,
                                                     const SchemaSet& initial);
  Result<const Json*> exclusive(const Json* schema, const Json& branches);
  Status depend(const Json* schema, const std::string& key, const Json& value, State& state);
  Status negate_keyword(const Json* schema, const std::string& key, const Json& value, int depth,
                        Json& ways);
  Result<bool> objects_never_meet(const SchemaSet& schemas, int depth);

  SchemaDocument& document_;
  Complaints& complaints_;
  std::map<const Json*, const Json*> exclusive_;
  std::map<const Json*, const Json*> negated_;
  std::map<std::pair<const Json*, std::string>, const Json*> conditions_;
  std::uint64_t work_ = 0;
  bool quiet_one_of_ = false;  // take oneOf for anyOf
};

}  // namespace bulkhead::constrain

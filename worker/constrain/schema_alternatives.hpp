// Resolves the branches of schemas: `$ref`, allOf, anyOf, oneOf, not, if/then/else and dependencies. The result is a
// list of alternatives, each a list of plain schemas that must all hold: the disjunctive normal form of a set of
// schemas.
//
// A set of schemas is a list of places in the document, so there are finitely many sets, however schemas refer to
// each other. Therefore recursion ends.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "worker/constrain/schema_document.hpp"
#include "worker/constrain/schema_limits.hpp"

namespace bulkhead::constrain {

using SchemaSet = std::vector<const Json*>;

// How a schema came into a set: what unevaluatedProperties needs of it.
struct Origin {
  bool evaluates = true;  // false: it came as a part of what must not hold
  SchemaSet within;       // the schemas with unevaluatedProperties that apply it, itself included
  // Adds another way in which it came. Returns whether that changes anything.
  bool add(const Origin& other);
};

struct Alternative {
  SchemaSet schemas;  // objects; only their keywords about types, bounds and members count
  std::map<const Json*, Origin>
      origins;  // of all schemas; empty where none has unevaluatedProperties
  Types types;
  // If the schemas contain an enum or const: the values that all schemas of the set allow.
  std::optional<std::vector<Json>> constants;
};

// Returns whether the schemas list properties but no type. Such schemas mean objects.
bool means_objects(const Alternative& one);

class Alternatives {
 public:
  Alternatives(SchemaDocument& document, Complaints& complaints)
      : document_(document), complaints_(complaints) {}

  Result<std::vector<Alternative>> of(const SchemaSet& set);
  // Returns true if no value can be valid under all of these schemas, false if one may be. It looks at `depth` levels
  // of members.
  Result<bool> never_meet(const SchemaSet& set, int depth);
  // Returns a schema for everything that is not valid under this one. kUnsupported if no schema can say that.
  Result<const Json*> negated(const Json* schema, int depth);

 private:
  struct State;
  Status visit(const Json* schema, State& state);
  // `first` is true if the schema has not been visited before.
  Status visit_inside(const Json* schema, bool first, State& state);
  Status visit_keyword(const Json* schema, const std::string& key, const Json& value, State& state);
  Status split(State state, const SchemaSet& initial, std::vector<Alternative>& out);
  Result<std::optional<std::vector<Json>>> constants(const SchemaSet& schemas,
                                                     const SchemaSet& initial);
  struct Apart;
  struct Quiet;
  Result<const Json*> exclusive(const Json* schema, const Json& branches);
  Result<Apart> apart(const Json* schema, const Json& branches);
  // Returns whether the schema names no type and lists properties, so that it means objects.
  Result<bool> only_objects(const Json* schema);
  Status depend(const Json* schema, const std::string& key, const Json& value, State& state);
  Status negate_keyword(const Json* schema, const std::string& key, const Json& value, int depth,
                        Json& ways);
  Result<bool> objects_never_meet(const SchemaSet& schemas, int depth);

  SchemaDocument& document_;
  Complaints& complaints_;
  std::map<const Json*, const Json*> exclusive_;
  std::map<const Json*, const Json*> negated_;
  std::map<std::pair<const Json*, std::string>, const Json*> conditions_;
  std::map<std::pair<SchemaSet, int>, bool> empty_members_;  // answers of objects_never_meet
  std::uint64_t work_ = 0;
  int steps_ = 0;              // schemas that are visited now, one within another
  int choices_ = 0;            // branches that are chosen now, one within another
  bool quiet_one_of_ = false;  // treat oneOf like anyOf
};

}  // namespace bulkhead::constrain

// Turns a set of schemas into its alternatives.
#include "worker/constrain/schema_alternatives.hpp"

#include <algorithm>
#include <set>

#include "worker/constrain/number.hpp"
#include "worker/constrain/schema_members.hpp"
#include "worker/constrain/schema_validate.hpp"

namespace bulkhead::constrain {
namespace {

// The most branches looked at for one document, and the most alternatives of one set. A hostile schema multiplies
// them.
constexpr std::uint64_t kMostWork = 200'000;
constexpr std::size_t kMostAlternatives = 4'000;
// A reference may lead to a reference, and so on; each takes some of the thread's stack.
constexpr int kMostSteps = 256;
// The most branches that are chosen one within another. With each choice, what is known so far is copied.
constexpr int kMostChoices = 1'000;
constexpr std::size_t kCopiesPerWork = 16;

Error invalid(const std::string& key, const std::string& path, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "\"" + key + "\" at " + path + " must be " + what);
}

// Returns the keyword that has given a schema its branches.
std::string keyword_of_branches(const Json& schema) {
  for (const char* key : {"anyOf", "oneOf", "dependentRequired", "dependentSchemas", "dependencies",
                          "if", "not", "allOf", "$ref"})
    if (schema.contains(key)) return key;
  return "anyOf";
}

bool speaks_of_objects(const SchemaSet& schemas) {
  static constexpr const char* kKeywords[] = {"properties",           "required",
                                              "additionalProperties", "patternProperties",
                                              "propertyNames",        "minProperties",
                                              "maxProperties",        "dependentRequired",
                                              "dependentSchemas",     "unevaluatedProperties"};
  for (const Json* schema : schemas) {
    for (const char* keyword : kKeywords) {
      if (schema->contains(keyword)) return true;
    }
  }
  return false;
}

}  // namespace

bool means_objects(const Alternative& one) {
  return !one.constants && one.types.all() && speaks_of_objects(one.schemas);
}

bool Origin::add(const Origin& other) {
  const std::size_t before = within.size();
  std::erase_if(within, [&](const Json* each) {
    return std::ranges::find(other.within, each) == other.within.end();
  });
  const bool more = other.evaluates && !evaluates;
  evaluates = evaluates || other.evaluates;
  return more || within.size() < before;
}

struct Alternatives::State {
  struct Group {
    SchemaSet branches;  // one must hold
    Origin origin;
  };
  SchemaSet flat;
  std::map<const Json*, Origin> seen;
  Origin here;  // of the schema that is visited now
  std::vector<Group> groups;
  Types types;
  bool dead = false;
};

Result<std::vector<Alternative>> Alternatives::of(const SchemaSet& set) {
  std::vector<Alternative> out;
  State state;
  for (const Json* schema : set)
    BULKHEAD_RETURN_IF_ERROR(visit(schema, state));
  BULKHEAD_RETURN_IF_ERROR(split(std::move(state), set, out));
  return out;
}

Status Alternatives::visit(const Json* schema, State& state) {
  if (state.dead) return {};
  if (steps_ == kMostSteps) {
    return Error(ErrorCode::kResourceExhausted,
                 "\"" + keyword_of_branches(*schema) + "\" at " + document_.path(schema) +
                     ": references and branches lead deeper than " + std::to_string(kMostSteps));
  }
  ++steps_;
  const Origin outside = state.here;
  if (schema->is_object()) {
    if (schema->contains("unevaluatedProperties")) state.here.within.push_back(schema);
    if (schema->contains(kOpposite)) state.here.evaluates = false;
  }
  const auto [place, first] = state.seen.try_emplace(schema, state.here);
  const Status done =
      first || place->second.add(state.here) ? visit_inside(schema, first, state) : Status();
  --steps_;
  state.here = outside;
  return done;
}

Status Alternatives::visit_inside(const Json* schema, bool first, State& state) {
  if (++work_ > kMostWork) {
    return Error(ErrorCode::kResourceExhausted,
                 "\"anyOf\" at " + document_.path(schema) +
                     ": the branches of the schema combine in too many ways");
  }
  if (schema->is_boolean()) {
    state.dead = !schema->get<bool>();
    return {};
  }
  if (!schema->is_object()) {
    return Error(ErrorCode::kInvalidArgument,
                 "a schema must be an object, true or false; see " + document_.path(schema));
  }
  if (const Json* linked = document_.linked(*schema)) return visit(linked, state);
  if (document_.draft7() && schema->contains("$ref")) {
    return visit_keyword(schema, "$ref", (*schema)["$ref"], state);
  }
  bool placed =
      !first;  // already among the plain schemas, at the place that decides its properties' order
  for (const auto& [key, value] : schema->items()) {
    if (key == "properties" && first) {
      state.flat.push_back(schema);
      placed = true;
    }
    BULKHEAD_RETURN_IF_ERROR(visit_keyword(schema, key, value, state));
  }
  if (!placed) state.flat.push_back(schema);
  return {};
}

Status Alternatives::visit_keyword(const Json* schema, const std::string& key, const Json& value,
                                   State& state) {
  const auto path = [&] { return document_.path(schema); };
  if (key == "type") {
    Result<Types> types = Types::of(value);
    if (!types.ok()) return types.error().within(path());
    state.types.meet(*types);
  } else if (key == kNotInteger) {
    state.types.integer = false;
  } else if (key == kNotEnum) {
    for (const Json& member : value) {
      if (member.is_null()) state.types.null = false;
      if (!member.is_structured()) continue;
      BULKHEAD_RETURN_IF_ERROR(
          complaints_.unsupported("not", path(), "an array or object can't be excluded"));
    }
  } else if (key == "$ref") {
    if (!value.is_string()) return invalid(key, path(), "a string");
    Result<const Json*> target = document_.resolve(schema, value.get<std::string>());
    if (target.ok()) return visit(*target, state);
    return complaints_.unsupported("$ref", path(), target.error().message());
  } else if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    if (!value.is_array() || value.empty())
      return invalid(key, path(), "a list of at least one schema");
    if (key == "oneOf" && !quiet_one_of_ && value.size() > 1) {
      Result<const Json*> apart = exclusive(schema, value);
      if (apart.ok()) return visit(*apart, state);
      if (apart.error().code() != ErrorCode::kUnsupported) return apart.error();
      BULKHEAD_RETURN_IF_ERROR(complaints_.unsupported("oneOf", path(), apart.error().message()));
    }
    SchemaSet branches;
    for (const Json& branch : value)
      branches.push_back(&branch);
    if (key != "allOf" && branches.size() > 1) {
      state.groups.push_back({std::move(branches), state.here});
      return {};
    }
    for (const Json* branch : branches)
      BULKHEAD_RETURN_IF_ERROR(visit(branch, state));
  } else if (key == "not") {
    Result<const Json*> other = negated(&value, 0);
    if (other.ok()) return visit(*other, state);
    if (other.error().code() != ErrorCode::kUnsupported) return other.error();
    return complaints_.unsupported("not", path(), other.error().message());
  } else if (key == "if" || key == "dependentRequired" || key == "dependentSchemas" ||
             key == "dependencies") {
    return depend(schema, key, value, state);
  } else if (key == "$dynamicRef" || key == "$recursiveRef" || key == "unevaluatedItems") {
    return complaints_.unsupported(key, path(), "it can't be enforced while a text is written");
  }
  return {};
}

// Turns a condition into branches: either it does not hold, or what follows from it does.
Status Alternatives::depend(const Json* schema, const std::string& key, const Json& value,
                            State& state) {
  if (key == "if" && !schema->contains("then") && !schema->contains("else")) return {};
  const auto known = conditions_.find({schema, key});
  if (known != conditions_.end()) return visit(known->second, state);
  Json all = Json::array();
  if (key == "if") {
    Result<const Json*> other = negated(&value, 0);
    if (!other.ok()) {
      if (other.error().code() != ErrorCode::kUnsupported) return other.error();
      return complaints_.unsupported("if", document_.path(schema), other.error().message());
    }
    Json yes = Json::array({document_.link(&value)});
    Json no = Json::array({document_.link(*other)});
    if (schema->contains("then")) yes.push_back(document_.link(&(*schema)["then"]));
    if (schema->contains("else")) no.push_back(document_.link(&(*schema)["else"]));
    all.push_back(Json{{"anyOf", Json::array({Json{{"allOf", yes}}, Json{{"allOf", no}}})}});
  } else {
    if (!value.is_object()) return invalid(key, document_.path(schema), "an object");
    for (const auto& entry : value.items()) {
      Json absent{{"properties", Json{{entry.key(), false}}}};
      Json present{{"required", Json::array({entry.key()})}};
      if (entry.value().is_array()) {
        for (const Json& name : entry.value())
          present["required"].push_back(name);
      } else {
        present["allOf"] = Json::array({document_.link(&entry.value())});
      }
      all.push_back(Json{{"anyOf", Json::array({absent, present})}});
    }
    if (all.empty()) return {};
  }
  const Json* made = document_.keep(Json{{"allOf", all}}, schema);
  conditions_[{schema, key}] = made;
  return visit(made, state);
}

Status Alternatives::split(State state, const SchemaSet& initial, std::vector<Alternative>& out) {
  if (state.dead || state.types.none()) return {};
  const SchemaSet& checked = state.groups.empty() ? state.flat : initial;
  const bool alone = state.groups.empty();
  BULKHEAD_TRY(auto members, constants(state.flat, alone ? SchemaSet{} : checked));
  if (members) {
    if (!members->empty())
      out.push_back({std::move(state.flat), {}, state.types, std::move(members)});
    return {};
  }
  const auto too_many = [&]() -> Status {
    return Error(ErrorCode::kResourceExhausted, "\"" + keyword_of_branches(*initial[0]) + "\" at " +
                                                    document_.path(initial[0]) +
                                                    ": too many branches");
  };
  if (state.groups.empty()) {
    const bool wanted = std::ranges::any_of(
        state.flat, [](const Json* it) { return it->contains("unevaluatedProperties"); });
    if (!wanted) state.seen.clear();
    out.push_back({std::move(state.flat), std::move(state.seen), state.types, std::nullopt});
    return out.size() <= kMostAlternatives ? Status() : too_many();
  }
  const State::Group group = std::move(state.groups.back());
  state.groups.pop_back();
  if (choices_ == kMostChoices) return too_many();
  for (const Json* branch : group.branches) {
    State with = state;
    work_ += (with.flat.size() + with.seen.size()) / kCopiesPerWork;
    with.here = group.origin;
    BULKHEAD_RETURN_IF_ERROR(visit(branch, with));
    ++choices_;
    const Status done = split(std::move(with), initial, out);
    --choices_;
    BULKHEAD_RETURN_IF_ERROR(done);
  }
  return {};
}

// Returns the members of the first enum or const that all schemas allow. `initial`: schemas to check as a whole,
// because some of their branches have not been chosen yet.
Result<std::optional<std::vector<Json>>> Alternatives::constants(const SchemaSet& schemas,
                                                                 const SchemaSet& initial) {
  const Json* source = nullptr;
  Json only;
  for (const Json* schema : schemas) {
    if (const auto one = schema->find("const"); one != schema->end()) {
      only = Json::array({*one});
      source = &only;
      break;
    }
    const auto list = schema->find("enum");
    if (list == schema->end()) continue;
    if (!list->is_array()) return invalid("enum", document_.path(schema), "a list");
    if (source == nullptr || list->size() < source->size()) source = &*list;
  }
  if (source == nullptr) return std::optional<std::vector<Json>>();
  std::vector<Json> out;
  for (const Json& member : *source) {
    bool valid = true;
    for (const Json* schema : initial.empty() ? schemas : initial) {
      BULKHEAD_TRY(valid, initial.empty() ? validates_alone(member, schema, document_, complaints_)
                                          : validates(member, schema, document_, complaints_));
      if (!valid) break;
    }
    if (valid) out.push_back(member);
  }
  return std::optional<std::vector<Json>>(std::move(out));
}

namespace {

// Returns the constants that a branch names itself; nullptr if it names none.
const Json* named_constants(const Json& branch, Json& room) {
  if (!branch.is_object()) return nullptr;
  if (const auto one = branch.find("const"); one != branch.end()) {
    room = Json::array({*one});
    return &room;
  }
  const auto list = branch.find("enum");
  return list != branch.end() && list->is_array() ? &*list : nullptr;
}

bool different_constants(const Json& branches) {
  std::set<Json> seen;
  for (const Json& branch : branches) {
    Json room;
    const Json* members = named_constants(branch, room);
    if (members == nullptr) return false;
    for (const Json& member : *members) {
      if (member.is_structured() || !seen.insert(member).second) return false;
    }
  }
  return true;
}

}  // namespace

// While it exists, nothing is complained about, and oneOf is treated like anyOf.
struct Alternatives::Quiet {
  explicit Quiet(Alternatives& all)
      : all(all), mode(all.complaints_.mode()), one_of(all.quiet_one_of_) {
    all.complaints_.set_mode(Complaints::Mode::kQuiet);
    all.quiet_one_of_ = true;
  }
  ~Quiet() {
    all.complaints_.set_mode(mode);
    all.quiet_one_of_ = one_of;
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

  Alternatives& all;
  const Complaints::Mode mode;
  const bool one_of;
};

// Says which branches of a oneOf never meet.
struct Alternatives::Apart {
  std::vector<std::vector<bool>> pairs;  // [i][j] for i < j
  std::vector<bool> as_objects;  // the branch is apart from another one if both are about objects
};

// What stands beside the branches counts, too: often the tag is required there.
Result<Alternatives::Apart> Alternatives::apart(const Json* schema, const Json& branches) {
  Json beside = Json::object();
  for (const char* key : {"type", "required"}) {
    if (schema->contains(key)) beside[key] = (*schema)[key];
  }
  const auto properties = schema->find("properties");
  if (properties != schema->end() && properties->is_object()) {
    for (const auto& entry : properties->items())
      beside["properties"][entry.key()] = document_.link(&entry.value());
  }
  SchemaSet around;
  if (!beside.empty()) around.push_back(document_.keep(std::move(beside), schema));

  const std::size_t count = branches.size();
  Apart out{std::vector(count, std::vector<bool>(count)), std::vector<bool>(count)};
  std::vector<bool> about_objects(count);
  for (std::size_t i = 0; i < count; ++i) {
    BULKHEAD_TRY(about_objects[i], only_objects(&branches[i]));
  }
  const Json* const object = document_.keep(Json{{"type", "object"}}, schema);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      // The branches come first in the set, so the search first tries the names that the branches require.
      SchemaSet both{&branches[i], &branches[j]};
      both.insert(both.end(), around.begin(), around.end());
      const bool as_objects = about_objects[i] && about_objects[j];
      if (as_objects) both.push_back(object);
      BULKHEAD_TRY(const bool apart, never_meet(both, 3));
      out.pairs[i][j] = apart;
      if (apart && as_objects) out.as_objects[i] = out.as_objects[j] = true;
    }
  }
  return out;
}

// Turns oneOf into anyOf: branches that overlap another one exclude it.
Result<const Json*> Alternatives::exclusive(const Json* schema, const Json& branches) {
  constexpr std::size_t kMostBranches = 200;
  if (const auto known = exclusive_.find(schema); known != exclusive_.end()) return known->second;
  Json ways = Json::array();
  if (different_constants(branches)) {
    for (const Json& branch : branches)
      ways.push_back(document_.link(&branch));
  } else if (branches.size() > kMostBranches) {
    return Error(ErrorCode::kUnsupported, "more than 200 branches");
  } else {
    BULKHEAD_TRY(const Apart apart, this->apart(schema, branches));
    for (std::size_t i = 0; i < branches.size(); ++i) {
      Json all = Json::array({document_.link(&branches[i])});
      if (apart.as_objects[i]) all.push_back(Json{{"type", "object"}});
      for (std::size_t j = 0; j < branches.size(); ++j) {
        if (i == j || apart.pairs[std::min(i, j)][std::max(i, j)]) continue;
        Result<const Json*> other = negated(&branches[j], 0);
        if (!other.ok()) {
          return Error(other.error().code(), "branches " + std::to_string(i) + " and " +
                                                 std::to_string(j) + " overlap, and " +
                                                 other.error().message());
        }
        all.push_back(document_.link(*other));
      }
      ways.push_back(Json{{"allOf", all}});
    }
  }
  const Json* made = document_.keep(Json{{"anyOf", ways}}, schema);
  exclusive_[schema] = made;
  return made;
}

Result<bool> Alternatives::only_objects(const Json* schema) {
  const Quiet quiet(*this);
  BULKHEAD_TRY(const std::vector<Alternative> alternatives, of({schema}));
  return std::ranges::all_of(alternatives, means_objects);
}

Result<bool> Alternatives::never_meet(const SchemaSet& set, int depth) {
  const Quiet quiet(*this);
  BULKHEAD_TRY(const std::vector<Alternative> alternatives, of(set));
  for (const Alternative& one : alternatives) {
    const Types& types = one.types;
    if (one.constants || types.null || types.boolean || types.array) return false;
    if (types.string) {
      BULKHEAD_TRY(const StringShape shape, string_shape(one.schemas, document_, complaints_));
      if (!shape.contents->empty()) return false;
    }
    if (types.integer || types.fraction) {
      BULKHEAD_TRY(const NumberRange range, number_range(one.schemas, types.integer, types.fraction,
                                                         document_, complaints_));
      BULKHEAD_TRY(const DfaPtr numbers, number_automaton(range));
      if (!numbers->empty()) return false;
    }
    if (types.object) {
      BULKHEAD_TRY(const bool apart, objects_never_meet(one.schemas, depth));
      if (!apart) return false;
    }
  }
  return true;
}

Result<bool> Alternatives::objects_never_meet(const SchemaSet& schemas, int depth) {
  if (depth == 0) return false;
  MemberLookup lookup;
  std::set<std::string> names;
  for (const Json* schema : schemas) {
    const auto required = schema->find("required");
    if (required == schema->end() || !required->is_array()) continue;
    for (const Json& name : *required) {
      if (!name.is_string() || !names.insert(name.get<std::string>()).second) continue;
      SchemaSet member;
      BULKHEAD_RETURN_IF_ERROR(add_member(schemas, name.get<std::string>(), lookup, member));
      // Another pair of branches may have looked at this member, because the schemas around the branches are the same.
      const auto known = empty_members_.find({member, depth});
      if (known != empty_members_.end()) {
        if (known->second) return true;
        continue;
      }
      BULKHEAD_TRY(const bool apart, never_meet(member, depth - 1));
      empty_members_.emplace(std::pair(std::move(member), depth), apart);
      if (apart) return true;
    }
  }
  return false;
}

}  // namespace bulkhead::constrain

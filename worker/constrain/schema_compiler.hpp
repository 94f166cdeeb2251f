// Turns the alternatives of a schema into rules of a grammar. Only for schema_*.cpp.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/grammar.hpp"
#include "worker/constrain/number.hpp"
#include "worker/constrain/schema_alternatives.hpp"
#include "worker/constrain/schema_members.hpp"
#include "worker/constrain/shared_automata.hpp"

namespace bulkhead::constrain {

class SchemaCompiler {
 public:
  SchemaCompiler(SchemaDocument& document, Complaints& complaints, Grammar& grammar,
                 Notation notation = {})
      : document_(document),
        complaints_(complaints),
        grammar_(grammar),
        shared_(shared_of(grammar)),
        notation_(std::move(notation)),
        alternatives_(document, complaints) {}

  // Compiles the rule of the document's schema, and all rules that it needs.
  Result<RuleId> compile();
  // Instead compiles the rules of its members, which are written separately (schema_loose.cpp). No value contains
  // `never`.
  Result<std::vector<LooseMember>> loose_members(std::string_view never, TextsAre texts_are);

 private:
  // Makes all rules that are still to be made.
  Status make_waiting();
  // Returns the rule for what all these schemas allow together. A new rule is made later.
  RuleId rule(SchemaSet set);
  // Returns the first schema that this was called with and that says the same. Most properties of a wide object are
  // such schemas, and then share one rule.
  const Json* first_like(const Json* schema);
  Status make(RuleId rule, const SchemaSet& set);
  Status make_alternative(const Alternative& one, NodeId end, std::vector<NodeId>& ways);

  // Constants (schema_constants.cpp).
  void constants(const std::vector<Json>& members, NodeId end, std::vector<NodeId>& ways);
  void spellings(const Json& value, std::vector<std::u32string>& out) const;
  NodeId key_constant(const std::string& name, NodeId next);
  class ConstantTree;
  NodeId string_node(StringShape shape, NodeId next);
  // Makes a text of the string's characters as they are, without quotes.
  NodeId text_node(const StringShape& shape, NodeId next);
  NodeId literal_string(const std::vector<std::u32string>& texts, NodeId next);

  // As number_automaton(), which takes longer than any other scalar.
  Status number(const Alternative& one, NodeId end, std::vector<NodeId>& ways);

  // schema_objects.cpp
  Status object(const Alternative& one, NodeId end, std::vector<NodeId>& ways);
  struct Declared {
    std::string name;
    SchemaSet value;
    bool required = false;
  };
  Result<std::vector<Declared>> declared(const SchemaSet& schemas);
  // What applies to the members that nothing evaluates, and the schemas that evaluate members.
  struct Unevaluated {
    SchemaSet value;
    SchemaSet evaluating;
  };
  Status properties(const SchemaSet& schemas, const Unevaluated& rest, ObjectShape& shape);
  struct PlainText {
    DfaPtr texts;
    bool only = true;  // the value is a text
  };
  Result<PlainText> plain_text(const SchemaSet& value);
  Status others(const SchemaSet& schemas, const Unevaluated& rest, ObjectShape& shape);
  Status other(const SchemaSet& schemas, const std::vector<std::string>& patterns,
               std::uint32_t matched, const Unevaluated& rest, ObjectShape& shape);
  Result<bool> name_allowed(const SchemaSet& schemas, const std::string& name);
  Result<StringShape> names(const SchemaSet& schemas, DfaPtr contents);
  Result<Unevaluated> unevaluated(const Alternative& one);
  RuleId member(RuleId value);
  // schema_notation.cpp
  bool bare_keys() const { return arguments_ || notation_.form == Notation::Form::kMarked; }
  bool is_bare_key(std::string_view name) const;
  Result<DfaPtr> bare_key_automaton();

  // schema_arrays.cpp
  Status array(const SchemaSet& schemas, NodeId end, std::vector<NodeId>& ways);
  Status unique(const SchemaSet& schemas, const SchemaSet& items, ArrayShape& shape);

  // White space: none, one space, or a line end with an indentation.
  NodeId blanks(NodeId next);
  NodeId with_blanks(const char* kind, NodeId next);

  SchemaDocument& document_;
  Complaints& complaints_;
  Grammar& grammar_;
  SharedAutomata& shared_;
  const Notation notation_;
  bool arguments_ = false;  // the object in work is the arguments of a Python call
  Alternatives alternatives_;
  MemberLookup lookup_;
  std::map<SchemaSet, RuleId> rules_;
  std::map<std::string, const Json*> simple_;
  std::vector<std::pair<RuleId, SchemaSet>> waiting_;
  std::map<std::pair<RuleId, bool>, RuleId> members_;  // with true: members of arguments
  DfaPtr never_;    // the texts that strings may be; null: all texts
  Status strings_;  // an error if some string could not be made so
};

// Returns the automaton of all texts of `min` to `max` characters.
Result<DfaPtr> texts_of_length(std::uint32_t min, std::uint32_t max);

}  // namespace bulkhead::constrain

// Automata that the schemas of one grammar share while it is made. A request's tools have one schema each, and most of
// them need the same automata: numbers, blanks, texts without a mark. Each is made once. What has the same automaton
// also shares masks (token_masks.hpp).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker/constrain/dfa.hpp"
#include "worker/constrain/grammar.hpp"
#include "worker/constrain/number.hpp"

namespace bulkhead::constrain {

class SharedAutomata {
 public:
  // The same as texts_without() and intersect().
  Result<DfaPtr> without(const std::string& mark);
  Result<DfaPtr> both(const DfaPtr& a, const DfaPtr& b);
  // Returns the numbers within the range, as many digits as readers can tell apart.
  Result<DfaPtr> numbers(const NumberRange& range);
  // Returns the automaton over bytes of this text.
  DfaPtr bytes(const std::string& text);
  // Returns the automaton of an expression of ours. It must be valid.
  DfaPtr expression(const std::string& text);

 private:
  std::map<std::string, DfaPtr> without_;
  std::map<std::pair<DfaPtr, DfaPtr>, DfaPtr> both_;
  std::vector<std::pair<NumberRange, DfaPtr>> numbers_;
  std::map<std::string, DfaPtr> bytes_;
  std::map<std::string, DfaPtr> expressions_;
};

// Returns the grammar's automata; makes the object if need be.
SharedAutomata& shared_of(Grammar& grammar);

}  // namespace bulkhead::constrain

#include "worker/constrain/shared_automata.hpp"

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {
namespace {

// Automata of numbers that are kept. They are looked up one by one.
constexpr std::size_t kMostNumbers = 64;
constexpr std::size_t kMostBoth = 512;

// Readers round numbers to doubles. 0.99999999999999999999 becomes 1, so it is not below an exclusive maximum of 1, and
// it is a multiple of 1. Fractions within bounds have at most 15 digits therefore, which no reader changes, unless a
// bound itself needs more.
bool rounding_matters(const NumberRange& range) {
  const auto is_long = [](const std::optional<NumberRange::Bound>& bound) {
    return bound && bound->value.fraction.size() > 10;
  };
  if (range.integer || is_long(range.low) || is_long(range.high)) return false;
  return range.low || range.high || range.fraction || !range.not_multiples.empty();
}

}  // namespace

SharedAutomata& shared_of(Grammar& grammar) {
  if (grammar.shared == nullptr) grammar.shared = std::make_shared<SharedAutomata>();
  return *grammar.shared;
}

Result<DfaPtr> SharedAutomata::without(const std::string& mark) {
  DfaPtr& known = without_[mark];
  if (known == nullptr) {
    BULKHEAD_TRY(known, texts_without(mark));
  }
  return known;
}

Result<DfaPtr> SharedAutomata::both(const DfaPtr& a, const DfaPtr& b) {
  const auto known = both_.find({a, b});
  if (known != both_.end()) return known->second;
  BULKHEAD_TRY(DfaPtr made, intersect(a, b));
  if (both_.size() < kMostBoth) both_.emplace(std::pair(a, b), made);
  return made;
}

Result<DfaPtr> SharedAutomata::numbers(const NumberRange& range) {
  for (const auto& [known, automaton] : numbers_) {
    if (known == range) return automaton;
  }
  BULKHEAD_TRY(DfaPtr made, number_automaton(range));
  if (rounding_matters(range)) {
    static const Result<DfaPtr> exact = regex_automaton("-?[0-9]+|-?[0-9.]{1,16}", Match::kWhole);
    BULKHEAD_TRY(const DfaPtr few_digits, exact);
    BULKHEAD_TRY(made, intersect(made, few_digits));
  }
  if (numbers_.size() < kMostNumbers) numbers_.emplace_back(range, made);
  return made;
}

DfaPtr SharedAutomata::bytes(const std::string& text) {
  DfaPtr& known = bytes_[text];
  if (known != nullptr) return known;
  std::u32string codes;
  for (const char c : text)
    codes.push_back(static_cast<unsigned char>(c));
  const std::u32string all[] = {codes};
  known = literals(all, true);
  return known;
}

DfaPtr SharedAutomata::expression(const std::string& text) {
  DfaPtr& known = expressions_[text];
  if (known == nullptr) known = *regex_automaton(text, Match::kWhole);
  return known;
}

}  // namespace bulkhead::constrain

// Regular expressions as terms. Derivatives turn terms into automata (Brzozowski, "Derivatives of regular
// expressions", 1964; Owens, Reppy, Turon, "Regular-expression derivatives re-examined", 2009). Derivatives support
// intersection and complement without extra work; lookaheads, `$` and several patterns on one string need these.
//
// Each term is stored once (equal terms have equal ids) and simplified when it is made. This keeps the number of
// different derivatives small, and so the number of states.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/dfa.hpp"

namespace bulkhead::constrain {

// Sorted, disjoint ranges of code points.
using CodeRanges = std::vector<std::pair<char32_t, char32_t>>;
CodeRanges normalise(CodeRanges ranges);
CodeRanges invert(const CodeRanges& ranges);
bool contains(const CodeRanges& ranges, char32_t code);

using TermId = std::uint32_t;

class Terms {
 public:
  Terms();

  TermId nothing() const { return 0; }  // no text
  TermId empty() const { return 1; }    // the empty text
  TermId anything() const { return anything_; }
  TermId chars(CodeRanges ranges);
  TermId text(std::u32string_view text);
  TermId cat(TermId a, TermId b);
  TermId either(std::vector<TermId> parts);
  TermId both(std::vector<TermId> parts);
  TermId negate(TermId a);
  TermId repeat(TermId a, std::uint32_t min, std::uint32_t max);

  bool nullable(TermId term) const { return terms_[term].nullable; }

  // kResourceExhausted beyond the limits of dfa.hpp, or if a state takes too much work.
  Result<DfaPtr> automaton(TermId term);

 private:
  enum class Kind : std::uint8_t { kNothing, kEmpty, kChars, kCat, kEither, kBoth, kNot, kRepeat };
  struct Term {
    Kind kind = Kind::kNothing;
    std::vector<TermId> parts;
    std::uint32_t min = 0, max = 0;  // kRepeat; for kChars, `min` is an index into classes_
    bool nullable = false;
    auto key() const { return std::tie(kind, parts, min, max); }
  };
  struct Less {
    bool operator()(const Term& a, const Term& b) const { return a.key() < b.key(); }
  };

  TermId intern(Term term);
  TermId derive(TermId term, char32_t code, std::map<TermId, TermId>& done);
  TermId derive_cat(TermId term, char32_t code, std::map<TermId, TermId>& done);
  // The classes that decide where the next character leads.
  void first_classes(TermId term, std::vector<std::uint32_t>& classes,
                     std::vector<bool>& seen) const;
  Result<std::vector<std::pair<char32_t, char32_t>>> elementary(
      const std::vector<std::uint32_t>& classes) const;

  std::vector<Term> terms_;
  std::map<Term, TermId, Less> ids_;
  std::vector<CodeRanges> classes_;
  std::map<CodeRanges, std::uint32_t> class_ids_;
  TermId anything_ = 0;
  std::uint64_t work_ = 0;
};

}  // namespace bulkhead::constrain

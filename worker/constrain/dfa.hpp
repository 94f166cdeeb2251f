// Deterministic automata over code points. They describe the content of a string, a key or a number, without
// JSON's escapes and bytes, which spelling.hpp adds.
//
// A Dfa is trimmed: every state can reach an accepting state, so a text that has not been rejected can always be
// completed. The automaton of the empty language has one state, which does not accept and has no edges. Immutable
// once built, and then thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::constrain {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr std::uint32_t kDead = 0xFFFFFFFF;
constexpr std::uint32_t kUnbounded = 0xFFFFFFFF;

// Limits for hostile schemas and expressions.
constexpr std::size_t kMostDfaStates = 20'000;
constexpr std::size_t kMostDfaRanges = 400'000;

struct Dfa {
  struct Range {
    char32_t low = 0;
    char32_t high = 0;
    std::uint32_t to = kDead;
    bool operator==(const Range&) const = default;
  };
  struct State {
    bool accept = false;
    std::vector<Range> ranges;  // sorted, disjoint; a code point in none of them is rejected
  };
  std::vector<State> states = {State{}};  // 0 is the start state

  bool empty() const { return !states[0].accept && states[0].ranges.empty(); }
  // Returns kDead if there is no way on.
  std::uint32_t step(std::uint32_t state, char32_t code) const;
  // Returns whether some code point of [low, high] leads on.
  bool any_in(std::uint32_t state, char32_t low, char32_t high) const;
  bool matches(std::u32string_view text) const;
};

using DfaPtr = std::shared_ptr<const Dfa>;

// Removes the states that can't reach an accepting state and those that can't be reached.
void trim(Dfa& dfa);

// Accepts every text.
DfaPtr any_text();
// Accepts exactly these texts (`inside`), or all other texts. Texts are given as code points.
DfaPtr literals(std::span<const std::u32string> texts, bool inside);
// Accepts the texts that both accept. kResourceExhausted beyond the limits.
Result<DfaPtr> intersect(const DfaPtr& a, const DfaPtr& b);
// Accepts the texts that `a` does not match.
DfaPtr complement(const Dfa& a);

// Computes how many more code points may follow before a text is accepted. A length limit together with a pattern
// needs this. can_finish(state, low, high) returns whether, for some n in [low, high], n code points lead from
// `state` to acceptance.
class Lengths {
 public:
  // kResourceExhausted if lengths up to `most` would take too much memory.
  static Result<Lengths> of(const Dfa& dfa, std::uint32_t most);
  bool can_finish(std::uint32_t state, std::uint32_t low, std::uint32_t high) const;

 private:
  bool at(std::uint32_t state, std::uint32_t length) const;
  // exact_[n][state]: n code points lead to acceptance. The rows repeat from cycle_ on: row cycle_ follows the last
  // row.
  std::vector<std::vector<bool>> exact_;
  std::uint32_t cycle_ = 0;
};

// Decodes strict UTF-8 to code points. Returns false if the text is not valid UTF-8.
bool decode_utf8(std::string_view text, std::u32string& out);

}  // namespace bulkhead::constrain

// Deterministic automata over code points: what the contents of a string, a key or a number may be.
// They know nothing of JSON's escapes or of bytes (spelling.hpp does).
//
// A Dfa is trimmed: every state can reach an accepting one, so a text that has not been rejected can
// always be completed. An automaton of the empty language has one state that neither accepts nor
// goes anywhere. Immutable once built, thread-safe then.
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

// Limits that a hostile schema or expression meets.
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
    std::vector<Range> ranges;  // rising, disjoint; what is in none of them leads nowhere
  };
  std::vector<State> states = {State{}};  // 0 is the start

  bool empty() const { return !states[0].accept && states[0].ranges.empty(); }
  // kDead where there is no way on.
  std::uint32_t step(std::uint32_t state, char32_t code) const;
  // True if some code point of [low, high] leads on.
  bool any_in(std::uint32_t state, char32_t low, char32_t high) const;
  bool matches(std::u32string_view text) const;
};

using DfaPtr = std::shared_ptr<const Dfa>;

// Drops what can't reach an accepting state, and what can't be reached.
void trim(Dfa& dfa);

// Every text.
DfaPtr any_text();
// Exactly these texts (`inside`), or all others. Texts are given as code points.
DfaPtr literals(std::span<const std::u32string> texts, bool inside);
// Texts of both. kResourceExhausted past the limits.
Result<DfaPtr> intersect(const DfaPtr& a, const DfaPtr& b);
// Texts that `a` does not match.
DfaPtr complement(const Dfa& a);

// How many code points more may follow until the text is accepted: for lengths beside a pattern.
// can_finish(state, low, high): some n in [low, high] code points lead from `state` to acceptance.
class Lengths {
 public:
  // kResourceExhausted where lengths up to `most` would take too much memory.
  static Result<Lengths> of(const Dfa& dfa, std::uint32_t most);
  bool can_finish(std::uint32_t state, std::uint32_t low, std::uint32_t high) const;

 private:
  bool at(std::uint32_t state, std::uint32_t length) const;
  // exact_[n][state]: n code points lead to acceptance. From cycle_ on the rows repeat, with the
  // last one followed by row cycle_.
  std::vector<std::vector<bool>> exact_;
  std::uint32_t cycle_ = 0;
};

// Strict UTF-8 to code points; false for text that is none.
bool decode_utf8(std::string_view text, std::u32string& out);

}  // namespace bulkhead::constrain

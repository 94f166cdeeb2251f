// Sorts characters into 64 classes, so that a set of characters is one number. The classes follow what expressions
// tell apart: each sign and each usual blank alone, digits, letters with those of hexadecimal digits apart, and the
// characters outside ASCII by their first bytes.
//
// So a walk over a vocabulary finds at once that an automaton's state takes every token of a subtree: the subtree
// has the set of its characters (TokenTrie::below), and the state has the set of classes that it takes as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "worker/constrain/dfa.hpp"

namespace bulkhead::constrain {

// Bit c stands for class c.
using CharClasses = std::uint64_t;
constexpr std::uint32_t kClassCount = 64;
// The class of bytes that are no characters, or only parts of one.
constexpr std::uint32_t kNoCharacter = 63;

// Returns the class of the characters that begin with this byte.
std::uint32_t class_of(unsigned char first_byte);

struct CharClass {
  // Sorted and disjoint. A class outside ASCII has one range.
  std::span<const std::pair<char32_t, char32_t>> ranges;
  bool single = false;  // one character only
  bool ascii = false;
  unsigned char first = 0, last = 0;  // outside ASCII: the first bytes of its characters
  std::string sample;                 // one of its characters, as UTF-8
};
// kNoCharacter has no ranges.
const CharClass& char_class(std::uint32_t number);

// Returns the state that all characters of the class lead to (kDead if all are rejected), or nothing if they differ.
std::optional<std::uint32_t> reached_alike(const Dfa::State& from, const CharClass& all);
// Returns the classes whose characters all lead from the state back to it.
CharClasses loops(const Dfa& dfa, std::uint32_t state);

}  // namespace bulkhead::constrain

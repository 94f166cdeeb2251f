// Random grammars of all front ends, for tests that compare masks with their definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "worker/constrain/grammar.hpp"

namespace bulkhead::constrain {

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  // Returns a number below `count`.
  std::size_t below(std::size_t count) { return random_() % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }
  template <class Choices>
  auto of(const Choices& choices) {
    return *(std::begin(choices) + static_cast<std::ptrdiff_t>(below(std::size(choices))));
  }
  // Returns a character.
  std::string letter();
  // Returns a text of 1 to `most` characters.
  std::string word(std::size_t most);

 private:
  std::mt19937_64 random_;
};

struct Made {
  std::string text;  // what the grammar was made of
  std::shared_ptr<const Grammar> grammar;
  DfaPtr whole = nullptr;   // if not null: the automaton of all texts
  std::string behind = {};  // what may follow the texts of the grammar
};

// Schemas, expressions, GBNF, and calls as the families write them. Some can't be made: then there is no grammar.
Made random_grammar(Source& from);

}  // namespace bulkhead::constrain

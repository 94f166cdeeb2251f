// Says what each token of the vocabulary does inside a string between quotes: which tokens stay in the string, after
// how many characters and in which state of the contents' automaton, and which tokens close it. The tables are made
// once per state. The length of the string so far only selects among groups of tokens. So a string near its greatest
// length does not need a walk over the vocabulary for each character.
//
// Use an object from one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/constrain/char_classes.hpp"
#include "worker/constrain/dfa_runs.hpp"
#include "worker/constrain/grammar.hpp"
#include "worker/constrain/spelling.hpp"
#include "worker/constrain/token_trie.hpp"

namespace bulkhead::constrain {

// A set of tokens: their ids while they are few, otherwise a mask.
class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(const TokenMask& mask);
  void add(std::uint32_t token, std::size_t words);
  void add_to(TokenMask& mask) const;
  std::size_t bytes() const { return (ids_.capacity() + mask_.size()) * sizeof(std::uint32_t); }

 private:
  std::vector<std::uint32_t> ids_;
  TokenMask mask_;  // empty while ids_ holds all tokens
};

class StringTokens {
 public:
  explicit StringTokens(std::shared_ptr<const TokenTrie> trie) : trie_(std::move(trie)) {}

  // Tokens that stay inside and lead to the same place. Tokens whose `characters`, `state` and `ranges` differ share
  // a group if the shape's bounds can't tell them apart.
  struct Group {
    std::uint32_t state = 0;
    std::uint32_t characters = 0;  // complete ones
    bool partial = false;          // the tokens end within a character, which is in one of `ranges`
    std::vector<std::pair<char32_t, char32_t>> ranges;
    TokenSet tokens;
  };
  // The nodes of the trie at which the string is closed after `characters` characters.
  struct Exit {
    std::uint32_t characters = 0;
    std::vector<std::uint32_t> nodes;
  };
  struct Inside {
    bool plain =
        false;  // all plain tokens (TokenTrie::add_plain) stay inside, and `groups` lacks them
    std::vector<Group> groups;
    std::vector<Exit> exits;
  };
  // Returns the tokens from a state of the shape's contents and a place within a character. Valid until clear().
  const Inside& from(const StringShape& shape, std::uint32_t state, Spelling spelling);

  // Returns whether a string of the shape may go on like this, after `taken` characters and then the group's
  // characters.
  static bool may_be(const StringShape& shape, const Group& group, std::uint32_t taken);
  static bool may_close(const StringShape& shape, const Exit& exit, std::uint32_t taken);

  std::size_t bytes() const { return bytes_ + runs_.bytes(); }
  void clear();

 private:
  struct Walk;
  using AsciiSteps = std::array<std::uint32_t, 128>;
  const AsciiSteps& ascii_steps(const Dfa& dfa, std::uint32_t state);
  // Returns whether all tokens below the node consist of plain characters, and the automaton takes all of them from the
  // state. If `back` is set, all of them must also lead back to the state.
  bool takes_all(const Dfa& dfa, std::uint32_t state, std::uint32_t node, bool back);

  std::shared_ptr<const TokenTrie> trie_;
  // The key: the contents (and the shape, if it has lengths), the quoting, whether the string is bounded, the state
  // and the spelling.
  using Key = std::tuple<const Dfa*, const StringShape*, Quoting, bool, std::uint32_t, Spelling>;
  std::map<Key, Inside> insides_;
  std::unordered_map<const Dfa*, std::vector<std::unique_ptr<AsciiSteps>>> ascii_;
  std::unordered_map<const Dfa*, std::vector<std::optional<CharClasses>>> loops_;
  DfaRuns runs_;
  std::size_t bytes_ = 0;
};

}  // namespace bulkhead::constrain

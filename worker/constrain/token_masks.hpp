// Which tokens may come next: masks of the vocabulary for configurations of an automaton.
//
// A mask is a pure function of the grammar, the vocabulary and the text so far. It is put together
// from parts that are remembered: for each frame (a place in a rule) the tokens that stay within it,
// and the places in the trie where a token leaves it; from these the rest of the token is walked in
// what the frame returns to. So the mask inside a string is made once, whatever the string is in.
// Where all plain characters are allowed, all plain tokens are, and only the others are walked.
//
// One for a request's grammar and its copies; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "worker/constrain/automaton.hpp"
#include "worker/constrain/token_trie.hpp"

namespace bulkhead::constrain {

class TokenMasks {
 public:
  TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
             std::vector<std::uint32_t> end_tokens);

  ConfigId start() const { return automaton_.start(); }
  // What follows the bytes; kNowhere where they are not allowed.
  ConfigId advance(ConfigId at, std::string_view bytes);
  bool accepting(ConfigId at) const { return automaton_.accepting(at); }
  bool only_end(ConfigId at) const { return automaton_.only_end(at); }

  // The tokens that may come, those that end an answer among them where it may end. Valid until the
  // next call.
  const TokenMask& mask(ConfigId at);
  // The text that must come next, byte by byte, as far as nothing else may; at most `most` bytes.
  std::string forced(ConfigId at, std::size_t most);

 private:
  struct Part {
    TokenMask mask;
    std::vector<std::uint32_t> exits;  // nodes of the trie at which the frame is left
  };
  const Part& part(const Frame& frame);
  Frame canonical(const Frame& frame) const;
  // Walks the trie below `node` from configuration `at`. `only_special`: skip subtrees that have only
  // plain tokens. `exits`: where the walk returns to the hole, if anybody asks.
  void walk(std::uint32_t node, ConfigId at, bool only_special, TokenMask& mask,
            std::vector<std::uint32_t>* exits);
  void add_tokens(std::uint32_t node, TokenMask& mask) const;

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::uint32_t> end_tokens_;
  std::map<Frame, Part> parts_;
  std::unordered_map<ConfigId, TokenMask> masks_;
  std::vector<ConfigId> path_;
};

}  // namespace bulkhead::constrain

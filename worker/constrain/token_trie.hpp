// The vocabulary as a trie of bytes, for running all tokens through an automaton in one walk.
//
// Nodes are in depth-first order, each with the size of its subtree. So when a walk finds a byte impossible, one
// addition skips all tokens after it. Immutable and thread-safe; made once for a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/constrain/char_classes.hpp"
#include "worker/constrain/dfa_runs.hpp"

namespace bulkhead::constrain {

// One bit per token: bit t % 32 of word t / 32.
using TokenMask = std::vector<std::uint32_t>;
inline bool lets_any_through(const TokenMask& mask) {
  return std::ranges::any_of(mask, [](std::uint32_t word) { return word != 0; });
}

inline bool allows(const TokenMask& mask, std::uint32_t token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

class TokenTrie {
 public:
  struct Node {
    std::uint32_t subtree = 1;  // the nodes in its subtree, including itself
    // Its tokens are [first_token, first_token + tokens) of ids(); those of its subtree follow them.
    std::uint32_t first_token = 0, tokens = 0;
    unsigned char byte = 0;
  };

  // `pieces` has the bytes of each token, by id. They are empty for tokens that write nothing (control tokens and end
  // tokens); no mask of the trie contains these tokens.
  explicit TokenTrie(const std::vector<std::string_view>& pieces);

  const std::vector<Node>& nodes() const { return nodes_; }  // 0 is the root
  const std::vector<std::uint32_t>& ids() const { return ids_; }
  std::uint32_t vocabulary() const { return vocabulary_; }
  std::size_t words() const { return (vocabulary_ + 31) / 32; }
  std::uint32_t longest() const { return longest_; }  // bytes of the longest token

  // Returns the classes of the characters in the node's subtree, without its own byte. A token that does not consist
  // of whole characters from the node on counts as kNoCharacter.
  CharClasses below(std::uint32_t node) const { return below_[node]; }
  // Subtrees of fewer nodes than this are walked byte by byte, because below() would cost more than it saves.
  static constexpr std::uint32_t kLeastRun = 4;
  // Returns how many bytes the longest token has below the node, or kHigh if it has at least that many.
  std::uint32_t height(std::uint32_t node) const { return height_[node]; }
  static constexpr std::uint32_t kHigh = DfaRuns::kMostLength + 1;
  // Returns the tokens of the node's subtree, including its own.
  std::span<const std::uint32_t> tokens_of(std::uint32_t node) const;

  // The plain tokens: they consist of whole characters that need no escape in a JSON string. The next function
  // returns the nodes of the other tokens: apart from the root's children, `special` says which subtrees have any.
  const TokenMask& plain() const { return plain_; }
  // Adds the plain tokens of at most `most_characters` characters.
  void add_plain(std::uint32_t most_characters, TokenMask& mask) const;
  bool has_special(std::uint32_t node) const { return special_[node]; }
  // Returns how many bytes of the token begin a character.
  std::uint32_t characters(std::uint32_t id) const { return characters_[id]; }

 private:
  void add_nodes(const std::vector<std::string_view>& pieces);
  void find_plain(const std::vector<std::string_view>& pieces);
  void find_special();
  void find_below();
  // The same as below() if `left` more bytes end the node's character, the first of them in [low, high].
  CharClasses below_part(std::uint32_t node, std::uint32_t left, unsigned char low,
                         unsigned char high) const;

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> ids_;
  std::vector<bool> special_;
  std::vector<std::uint16_t> characters_;  // by id; tokens are shorter than 64 KiB
  std::vector<CharClasses> below_;
  std::vector<std::uint8_t> height_;
  TokenMask plain_;
  std::vector<TokenMask> plain_up_to_;  // by number of characters, for small numbers
  // The longer plain tokens with their number of characters, sorted by it.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> plain_longer_;
  std::uint32_t vocabulary_ = 0;
  std::uint32_t longest_ = 0;
};

}  // namespace bulkhead::constrain

// Tells which tokens may come next: masks of the vocabulary for configurations of an automaton.
//
// A mask is a pure function of the grammar, the vocabulary and the text so far. It is assembled from remembered
// parts. A part holds, for a frame (a place in a rule), the tokens that stay within the frame, and the places in the
// trie where a token leaves it. From these places the rest of the token is walked in the frame that is returned to.
// Inside strings the parts come from string_tokens.hpp; they do not depend on what surrounds the string or on its
// length so far.
//
// The work for a mask is counted as if nothing were remembered, so the limit is exceeded either always or never.
//
// One object serves a request's grammar and its copies. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/constrain/automaton.hpp"
#include "worker/constrain/string_tokens.hpp"
#include "worker/constrain/token_trie.hpp"

namespace bulkhead::constrain {

class TokenMasks {
 public:
  // The most frames to look at for one mask. Practical schemas take at most an eighth.
  static constexpr std::uint64_t kMostWork = 50'000;

  TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
             std::vector<std::uint32_t> end_tokens, std::uint64_t most_work = kMostWork);

  ConfigId start() const { return automaton_.start(); }
  // Returns the configuration after the bytes; kNowhere if they are not allowed.
  ConfigId advance(ConfigId at, std::string_view bytes);
  bool accepting(ConfigId at) const { return automaton_.accepting(at); }
  bool only_end(ConfigId at) const { return automaton_.only_end(at); }

  // Returns the tokens that may come next, including the end tokens where the answer may end. Valid until the next
  // call. Null if the grammar is so ambiguous that finding them takes more than `most_work`.
  const TokenMask* mask(ConfigId at);
  // How many nodes of the trie count as much work as a frame.
  static constexpr std::uint64_t kNodesOfFrame = 64;
  // Returns what the last mask would have cost on its own, in frames.
  std::uint64_t last_work() const { return tally_ / kNodesOfFrame; }
  // Returns roughly how much memory the remembered parts use.
  std::size_t bytes() const;
  // Returns the text that must come next, byte by byte, as long as there is no choice; at most `most` bytes.
  std::string forced(ConfigId at, std::size_t most);

 private:
  struct Part {
    TokenMask mask;
    bool leaves = false;  // a token can leave the frame
    TokenMask at_exits;   // the tokens that end where they leave it
    // The nodes of the trie below those places, by their bytes: few bytes lead on from there.
    std::array<std::vector<std::uint32_t>, 256> below;
    std::uint64_t cost = 0;
  };
  struct Beyond {
    std::vector<TokenSet> tokens;
    std::uint64_t cost = 0;
  };
  // Adds the work since `before` (as done() returned it) to the tally; returns false beyond the limit.
  bool count(std::uint64_t before);
  std::uint64_t done() const { return automaton_.spent() * kNodesOfFrame + nodes_walked_; }
  const Part& part(const Frame& frame);
  void forget_parts();
  void add_part(const Automaton::Item& item, TokenMask& mask);
  void add_string(const Automaton::Item& item, const StringShape& shape, TokenMask& mask);
  // Returns the tokens through each of the exits if the text around the string goes on at `back`.
  const std::vector<TokenSet>& beyond(const StringTokens::Inside& inside, ConfigId back);
  // Walks the trie below `node` from configuration `at`. If `exits` is not null, it gets the nodes where the walk
  // returns to the hole. Gives up beyond the limit.
  void walk(std::uint32_t node, ConfigId at, TokenMask& mask, std::vector<std::uint32_t>* exits);
  void add_tokens(std::uint32_t node, TokenMask& mask) const;

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::uint32_t> end_tokens_;
  std::map<Frame, Part> parts_;
  std::size_t part_bytes_ = 0;  // of their lists of nodes
  StringTokens strings_;
  std::map<std::pair<const StringTokens::Inside*, ConfigId>, Beyond> beyond_;
  std::size_t beyond_bytes_ = 0;
  std::unordered_map<ConfigId, TokenMask> masks_;
  TokenMask scratch_;
  std::uint64_t most_;       // limit of tally_
  std::uint64_t tally_ = 0;  // work for the present mask, in nodes of the trie
  std::uint64_t nodes_walked_ = 0;
};

}  // namespace bulkhead::constrain

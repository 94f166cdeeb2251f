// Computes which tokens may come next: masks of the vocabulary for configurations of an automaton.
//
// A mask is a pure function of the grammar, the vocabulary and the text so far. It is assembled from remembered
// parts. A part holds, for a frame (a place in a rule), the tokens that stay within the frame, and the places in the
// trie where a token leaves it. From these places the rest of the token is walked in the frame that is returned to.
// Inside strings the parts come from string_tokens.hpp; they do not depend on what surrounds the string or on its
// length so far.
//
// Three things keep the walks short (token_parts.cpp): a subtree whose tokens all stay in a text is taken as a whole;
// a part says only how it differs from the part of the frame that most characters lead to; and leaves with the same
// automaton share their parts.
//
// The work for a mask is counted as if nothing were remembered, so the limit is exceeded either always or never.
//
// One object serves a request's grammar and its copies. One thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
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
  using Run = std::pair<std::uint32_t, std::uint32_t>;  // nodes [first, second) of the trie
  struct Part {
    TokenSet tokens;  // those that stay in the frame, and those that end where they leave it
    // The nodes of the trie below the places where tokens leave the frame, by byte and then by number: few bytes lead
    // on from there. Where all tokens stay in the frame, the places are left out: there is nothing to add.
    std::vector<std::uint32_t> below;
    // If not null: the nodes of that part's `below` count, too, unless they are in `without` (rising).
    const Part* base = nullptr;
    std::vector<Run> without;
    std::uint64_t cost = 0;

    bool leaves() const { return !below.empty() || base != nullptr; }
    std::size_t bytes() const;
  };
  struct Beyond {
    std::vector<TokenSet> tokens;
    std::uint64_t cost = 0;
  };
  // Adds the work since `before` (as done() returned it) to the tally; returns false beyond the limit.
  bool count(std::uint64_t before);
  std::uint64_t done() const { return automaton_.spent() * kNodesOfFrame + nodes_walked_; }
  void add_tokens(std::uint32_t node, TokenMask& mask) const;
  void add_part(const Automaton::Item& item, TokenMask& mask);
  // The nodes with this byte of the part's own `below`.
  std::span<const std::uint32_t> below(const Part& part, unsigned char byte) const;
  // Returns whether there may be a node with this byte below the part's exits.
  bool leaves_by(const Part& part, unsigned char byte) const;
  // Adds the tokens that go on from the part's exits through nodes with this byte. Returns false beyond the limit.
  bool add_through(const Part& part, unsigned char byte, ConfigId next, TokenMask& mask);
  void add_string(const Automaton::Item& item, const StringShape& shape, TokenMask& mask);
  // Returns the tokens through each of the exits if the text around the string goes on at `back`.
  const std::vector<TokenSet>& beyond(const StringTokens::Inside& inside, ConfigId back);

  // token_parts.cpp
  void begin_walk();
  // Walks the trie below `node` from configuration `at`. If `exits` is not null, it gets what is below the nodes where
  // the walk returns to the hole. Gives up beyond the limit.
  void walk(std::uint32_t node, ConfigId at, TokenMask& mask, Part* exits);
  void walk_below(std::uint32_t node, ConfigId at, TokenMask& mask);
  // Returns whether configuration `at` surely takes all tokens of the subtree. `repeats`: a character has just led `at`
  // back to itself, so it pays to ask which characters do so.
  bool takes_all(std::uint32_t node, ConfigId at, bool repeats);
  // Adds all tokens of the subtree to the mask if takes_all() says that `at` takes them, and returns what it says.
  bool add_run(std::uint32_t node, ConfigId at, TokenMask& mask);
  void add_exits_below(std::uint32_t node, Part& part);
  const Part& part(Frame frame);
  // Returns the frame that most characters lead to from `frame` and then back to itself. False: there is none.
  bool base_of(const Frame& frame, Frame& base);
  // Makes a part out of its base: walks the trie only where the two differ.
  void derive(const Frame& frame, const Frame& base, Part& made);
  void derive_below(std::uint32_t node, ConfigId mine, Part& made);
  NodeId shared_leaf(NodeId leaf);
  void forget_parts();

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::uint32_t> end_tokens_;
  std::map<Frame, Part> parts_;
  std::size_t part_bytes_ = 0;
  // Leaves that end their rule, by kind and automaton.
  std::map<std::pair<NodeKind, const Dfa*>, NodeId> leaves_;
  StringTokens strings_;
  std::map<std::pair<const StringTokens::Inside*, ConfigId>, Beyond> beyond_;
  std::size_t beyond_bytes_ = 0;
  std::unordered_map<ConfigId, TokenMask> masks_;
  TokenMask scratch_;
  std::uint64_t most_;       // limit of tally_
  std::uint64_t tally_ = 0;  // work for the present mask, in nodes of the trie
  std::uint64_t nodes_walked_ = 0;
  // The configuration that a character was last seen to lead back to itself, in this walk.
  ConfigId repeats_ = kNowhere;
};

}  // namespace bulkhead::constrain

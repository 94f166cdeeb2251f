// Which tokens may come next: masks of the vocabulary for configurations of an automaton.
//
// A mask is a pure function of the grammar, the vocabulary and the text so far. It is put together
// from parts that are remembered: for each frame (a place in a rule) the tokens that stay within it,
// and the places in the trie where a token leaves it; from these the rest of the token is walked in
// what the frame returns to. Inside strings the parts are string_tokens.hpp's, whatever the string is in
// and however long it is already.
//
// How much work a mask may take is counted as if nothing were remembered, so it fails always or never.
//
// One for a request's grammar and its copies; one thread.
#pragma once

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
  // Frames looked at for one mask. Schemas of use take an eighth at most.
  static constexpr std::uint64_t kMostWork = 50'000;

  TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
             std::vector<std::uint32_t> end_tokens, std::uint64_t most_work = kMostWork);

  ConfigId start() const { return automaton_.start(); }
  // What follows the bytes; kNowhere where they are not allowed.
  ConfigId advance(ConfigId at, std::string_view bytes);
  bool accepting(ConfigId at) const { return automaton_.accepting(at); }
  bool only_end(ConfigId at) const { return automaton_.only_end(at); }

  // The tokens that may come, those that end an answer among them where it may end. Valid until the
  // next call. Null where the grammar is so ambiguous that finding them takes more than `most_work`.
  const TokenMask* mask(ConfigId at);
  // Nodes of the trie that are as much work as a frame.
  static constexpr std::uint64_t kNodesOfFrame = 64;
  // What the last mask that was made would have cost alone, in frames.
  std::uint64_t last_work() const { return tally_ / kNodesOfFrame; }
  // Rough memory of what is remembered.
  std::size_t bytes() const;
  // The text that must come next, byte by byte, as far as nothing else may; at most `most` bytes.
  std::string forced(ConfigId at, std::size_t most);

 private:
  struct Part {
    TokenMask mask;
    std::vector<std::uint32_t> exits;  // nodes of the trie at which the frame is left
    std::uint64_t cost = 0;
  };
  struct Beyond {
    std::vector<TokenSet> tokens;
    std::uint64_t cost = 0;
  };
  // Adds what was done since `before` (done()) to the tally; false past the limit.
  bool count(std::uint64_t before);
  std::uint64_t done() const { return automaton_.spent() * kNodesOfFrame + nodes_walked_; }
  const Part& part(const Frame& frame);
  void add_part(const Automaton::Item& item, TokenMask& mask);
  void add_string(const Automaton::Item& item, const StringShape& shape, TokenMask& mask);
  // The tokens through each of the exits, once what the string is in goes on at `back`.
  const std::vector<TokenSet>& beyond(const StringTokens::Inside& inside, ConfigId back);
  // Walks the trie below `node` from configuration `at`. `exits`: where the walk returns to the hole, if
  // anybody asks. Gives up past the limit.
  void walk(std::uint32_t node, ConfigId at, TokenMask& mask, std::vector<std::uint32_t>* exits);
  void add_tokens(std::uint32_t node, TokenMask& mask) const;

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::uint32_t> end_tokens_;
  std::map<Frame, Part> parts_;
  StringTokens strings_;
  std::map<std::pair<const StringTokens::Inside*, ConfigId>, Beyond> beyond_;
  std::size_t beyond_bytes_ = 0;
  std::unordered_map<ConfigId, TokenMask> masks_;
  TokenMask scratch_;
  std::uint64_t most_;       // of tally_
  std::uint64_t tally_ = 0;  // in nodes of the trie: the mask's that is made
  std::uint64_t nodes_walked_ = 0;
};

}  // namespace bulkhead::constrain

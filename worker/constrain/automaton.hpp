// Runs a grammar over bytes: a pushdown automaton whose stacks are kept as a graph (Tomita's
// graph-structured stack), so that ambiguous grammars cost a product of what they differ in, not a
// power of it.
//
// A configuration is a set of frames that may take the next byte, each with the set of frames that
// may be returned to. Equal sets are one set with one number, and the step of a configuration by a
// byte is remembered: after a while running is a walk through tables. A configuration depends on the
// grammar and the bytes alone, so the same text leads to the same masks in every process; the
// numbers don't, and are for this automaton only.
//
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "worker/constrain/grammar.hpp"

namespace bulkhead::constrain {

// Which leaf or place runs, and what it must remember (see NodeKind and the shapes).
struct Frame {
  NodeId node = 0;
  std::uint32_t state = 0;     // of the leaf's automaton, or the trie
  std::uint32_t count = 0;     // of its shape
  std::uint32_t extra = 0;     // of its shape
  std::uint32_t spelling = 0;  // within a character
  auto operator<=>(const Frame&) const = default;
};

using ConfigId = std::uint32_t;
constexpr ConfigId kNowhere = 0;  // no way on: the text was rejected

// The frame that stands for the end of the text, and the one that a mask's walk returns to.
constexpr NodeId kAcceptNode = 0xFFFFFFFE;
constexpr NodeId kHoleNode = 0xFFFFFFFD;

class Automaton {
 public:
  explicit Automaton(std::shared_ptr<const Grammar> grammar);

  struct Item {
    Frame frame;
    ConfigId parents = kNowhere;
    bool operator==(const Item&) const = default;
  };

  ConfigId start() const { return start_; }
  ConfigId step(ConfigId config, unsigned char byte);
  // The text may end here.
  bool accepting(ConfigId config) const { return configs_[config].accepting; }
  // Only the end may come.
  bool only_end(ConfigId config) const { return configs_[config].only_end; }
  // A walk from `isolated` has left its frame here.
  bool at_hole(ConfigId config) const { return configs_[config].hole; }

  const std::vector<Item>& items(ConfigId config) const { return configs_[config].items; }
  // A frame alone, to be walked until it returns (at_hole).
  ConfigId isolated(const Frame& frame);
  // What runs once the frames of these parents are returned to.
  ConfigId returned(ConfigId parents);

  // What runs at the node's beginning, to return to these parents.
  ConfigId entered(NodeId node, ConfigId parents);

  const Grammar& grammar() const { return *grammar_; }
  // Rough memory of what is remembered.
  std::size_t bytes() const { return bytes_; }
  std::size_t size() const { return configs_.size(); }
  // Frames looked at by all calls so far, had nothing been remembered from before the last begin_walk(): so what
  // a walk costs, and a limit on it, follows from the walk alone.
  std::uint64_t spent() const { return spent_; }
  void begin_walk();

 private:
  static constexpr ConfigId kUnknown = 0xFFFFFFFF;
  struct Edge {
    ConfigId to = kUnknown;
    std::uint16_t cost = 0;  // frames; the largest: so many, or more
    std::uint16_t walk = 0;  // the last one that took it
  };
  using Edges = std::array<Edge, 256>;
  struct Config {
    std::vector<Item> items;  // rising by frame
    std::unique_ptr<Edges> next;
    ConfigId returned = kUnknown;
    std::uint32_t returned_cost = 0;
    std::uint32_t depth = 0;
    bool accepting = false, only_end = false, hole = false;
  };
  struct Pending;

  ConfigId intern(std::vector<Item> items);
  ConfigId unite(ConfigId a, ConfigId b);
  ConfigId close(Pending& pending);
  void advance(const Item& item, unsigned char byte, Pending& out);
  void advance_string(const Item& item, const Node& node, unsigned char byte, Pending& out);
  void advance_key(const Item& item, const Node& node, unsigned char byte, Pending& out);
  void advance_text(const Item& item, const Node& node, unsigned char byte, Pending& out);
  // Puts in what may take a byte, beginning at `item`; what needs none is passed through.
  void expand(const Item& item, Pending& out);
  void expand_object(const Item& item, const Node& node, Pending& out);
  void expand_array(const Item& item, const Node& node, Pending& out);
  void call(RuleId rule, Frame back, ConfigId parents, Pending& out);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Config> configs_;
  std::unordered_multimap<std::uint64_t, ConfigId> by_hash_;
  std::unordered_map<std::uint64_t, ConfigId> unions_;
  ConfigId start_ = kNowhere;
  std::size_t bytes_ = 0;
  std::uint64_t spent_ = 0;
  std::uint16_t walk_ = 1;
};

}  // namespace bulkhead::constrain

// Runs a grammar over bytes: a pushdown automaton whose stacks are kept as a graph (Tomita's graph-structured stack).
// So the cost of an ambiguous grammar grows only with the places where its readings differ, and not exponentially.
//
// A configuration is a set of frames that may take the next byte, each with the set of frames that it may return to.
// Equal sets are stored once, under one number. The automaton remembers where a byte leads from a configuration, so
// after a while a run only walks through tables. A configuration depends only on the grammar and the bytes, so the
// same text leads to the same masks in every process. The numbers are valid only within one automaton.
//
// Use it from one thread.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "worker/constrain/char_classes.hpp"
#include "worker/constrain/dfa_runs.hpp"
#include "worker/constrain/grammar.hpp"

namespace bulkhead::constrain {

// The leaf or place that runs, and what it must remember (see NodeKind and the shapes).
struct Frame {
  NodeId node = 0;
  std::uint32_t state = 0;     // of the leaf's automaton, or of the trie
  std::uint32_t count = 0;     // as the leaf's shape defines it
  std::uint32_t extra = 0;     // as the leaf's shape defines it
  std::uint32_t spelling = 0;  // within a character
  auto operator<=>(const Frame&) const = default;
};

using ConfigId = std::uint32_t;
constexpr ConfigId kNowhere = 0;  // no way on: the text was rejected

// The frame that stands for the end of the text, and the one to which the walk for a mask returns.
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
  // Returns whether the text may end here.
  bool accepting(ConfigId config) const { return configs_[config].accepting; }
  // Returns whether the text can only end here.
  bool only_end(ConfigId config) const { return configs_[config].only_end; }
  // Returns whether a walk that started at isolated() has left its frame here.
  bool at_hole(ConfigId config) const { return configs_[config].hole; }

  const std::vector<Item>& items(ConfigId config) const { return configs_[config].items; }
  // Returns a configuration of this frame alone, for a walk until the frame returns (at_hole).
  ConfigId isolated(const Frame& frame);
  // Returns the configuration after the frames of these parents are returned to.
  ConfigId returned(ConfigId parents);

  // Returns the configuration at the node's beginning, with these parents to return to.
  ConfigId entered(NodeId node, ConfigId parents);

  // Returns whether every text of characters of these classes leads back to this configuration. Returns false, too, if
  // finding out would take much work. As for a step, spent() counts the same work whether results are remembered or
  // not.
  bool runs_on(ConfigId config, CharClasses classes);
  // Returns whether one of the configuration's texts takes every text of at most `length` characters of these classes.
  bool takes_freely(ConfigId config, CharClasses classes, std::uint32_t length);
  // Returns a set that has every byte that leads on from the configuration. It may have other bytes, too.
  std::bitset<256> takes(ConfigId config) const;

  const Grammar& grammar() const { return *grammar_; }
  // Returns roughly how much memory the automaton has used for what it remembers.
  std::size_t bytes() const { return bytes_ + text_runs_.bytes(); }
  std::size_t size() const { return configs_.size(); }
  // Returns the number of frames that all calls so far looked at, counted as if nothing were remembered from before
  // the last begin_walk(). So the cost of a walk, and a limit on it, depends only on the walk.
  std::uint64_t spent() const { return spent_; }
  void begin_walk();

 private:
  static constexpr ConfigId kUnknown = 0xFFFFFFFF;
  struct Edge {
    ConfigId to = kUnknown;
    std::uint16_t cost = 0;  // in frames; the largest value means: this many or more
    std::uint16_t walk = 0;  // the last walk that took this edge
  };
  using Edges = std::array<Edge, 256>;
  struct Config {
    std::vector<Item> items;  // sorted by frame
    std::unique_ptr<Edges> next;
    ConfigId returned = kUnknown;
    std::uint32_t returned_cost = 0;
    std::uint32_t depth = 0;
    // The classes that lead back here, of those for which the walk `runs_walk` has asked.
    CharClasses runs = 0, runs_asked = 0;
    std::uint16_t runs_walk = 0;
    bool accepting = false, only_end = false, hole = false;
  };
  struct Pending;

  // Returns whether the item takes all characters of the class alike, or none.
  bool takes_alike(const Item& item, const CharClass& all) const;
  bool leads_back(ConfigId config, const CharClass& all);

  ConfigId intern(std::vector<Item> items);
  ConfigId unite(ConfigId a, ConfigId b);
  ConfigId close(Pending& pending);
  void advance(const Item& item, unsigned char byte, Pending& out);
  void advance_string(const Item& item, const Node& node, unsigned char byte, Pending& out);
  void advance_key(const Item& item, const Node& node, unsigned char byte, Pending& out);
  void advance_text(const Item& item, const Node& node, unsigned char byte, Pending& out);
  // Adds the frames reachable from `item` that take a byte, and passes through those that take none.
  void expand(const Item& item, Pending& out);
  void expand_object(const Item& item, const Node& node, Pending& out);
  void expand_array(const Item& item, const Node& node, Pending& out);
  void call(RuleId rule, Frame back, ConfigId parents, Pending& out);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Config> configs_;
  std::unordered_multimap<std::uint64_t, ConfigId> by_hash_;
  std::unordered_map<std::uint64_t, ConfigId> unions_;
  ConfigId start_ = kNowhere;
  DfaRuns text_runs_;
  std::size_t bytes_ = 0;
  std::uint64_t spent_ = 0;
  std::uint16_t walk_ = 1;
};

}  // namespace bulkhead::constrain

// The form that a front end (JSON schema, GBNF, expression) makes and the automaton runs: rules that call each other.
// Each rule is a graph of nodes with one entry and a kEnd (a recursive transition network; Woods 1970). Leaves are
// automata, so a rule's graph stays small whatever texts it allows.
//
// The frame of the running rule holds counts (items of an array, properties of an object, repetitions), so they need
// no nodes: 200 items or 2,000 characters are one node.
//
// Immutable once built and finished, and then thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/constrain/dfa.hpp"
#include "worker/constrain/spelling.hpp"

namespace bulkhead::constrain {

using NodeId = std::uint32_t;
using RuleId = std::uint32_t;
constexpr NodeId kNoNode = 0xFFFFFFFF;

enum class NodeKind : std::uint8_t {
  kEnd,     // the end of the rule
  kSplit,   // leads to each of `branches`
  kCall,    // calls rule `index`, then leads to next
  kBytes,   // `index` is an automaton over bytes; then leads to next
  kText,    // `index` is an automaton over code points, written as UTF-8; then leads to next
  kString,  // a string between quotes: `index` is in strings; then leads to next
  kLoop,  // to branches[0], a kCall or kText that leads back, while count < max; to next once count >= min
  kObject,  // between properties: `index` is in objects; see ObjectShape
  kKeyStart,
  kKey,
  kArray,  // between items: `index` is in arrays; see ArrayShape
  kItem,
};

struct Node {
  NodeKind kind = NodeKind::kEnd;
  NodeId next = kNoNode;
  std::uint32_t index = 0;
  std::uint32_t min = 0, max = 0;  // kLoop
  std::vector<NodeId> branches;
  // kBytes, kString: if it is set, continuations[ways_on][STATE] follows instead of `next`, where STATE is that of the
  // leaf's automaton at the text's end. So many texts, each with a way on of its own, are one leaf.
  std::uint32_t ways_on = kNone;
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
};

struct StringShape {
  DfaPtr contents;
  Quoting quoting = Quoting::kJson;  // never kNone: a text without quotes is a kText
  std::uint32_t min = 0;             // in code points
  std::uint32_t max = kUnbounded;
  std::optional<Lengths> lengths;  // set if min and max do not follow from `contents`
  // For each state of `contents`: whether any text of plain characters from there is accepted or can be completed.
  std::vector<bool> safe;
};

// Properties in a fixed order, then other properties. A frame's `count` is the index of the next property that may
// come (size + 1 once other properties have begun); its `extra` is how many have come.
struct ObjectShape {
  struct Property {
    std::u32string name;
    RuleId member = 0;  // ":" (or "=") and the value
    bool required = false;
  };
  std::vector<Property> properties;
  Quoting keys = Quoting::kJson;            // kNone: no name contains the text that begins a member
  std::vector<RuleId> others;               // for each kind of key: the key, then its member
  std::uint32_t min = 0, max = kUnbounded;  // of all properties together
  NodeId first = kNoNode, comma = kNoNode;  // both lead to kKeyStart
  NodeId key_start = kNoNode, key = kNoNode, close = kNoNode;

  // Grammar::finish() makes these. The names as a trie; `below` has the sorted indices of the names that go through
  // the node.
  struct TrieNode {
    std::vector<std::pair<char32_t, std::uint32_t>> next;  // rising
    std::vector<std::uint32_t> below;
    std::uint32_t ends = kDead;  // index of the property
  };
  std::vector<TrieNode> trie;
  // For each index, and for the size: the first required property from there on (or the size), and how many required
  // properties are left.
  std::vector<std::uint32_t> next_required, required_left;

  std::uint32_t size() const { return static_cast<std::uint32_t>(properties.size()); }
  bool can_close(std::uint32_t index, std::uint32_t count) const;
  // Returns whether the object can still be completed if, at position `from` and with `count` properties so far,
  // property `index` comes next.
  bool can_take(std::uint32_t from, std::uint32_t index, std::uint32_t count) const;
  // Of the other properties only one counts towards `min`, because two may have the same key. So this one must reach
  // `min`.
  bool can_take_other(std::uint32_t from, std::uint32_t count) const;
  // Returns the count, reduced to the differences that matter.
  std::uint32_t counted(std::uint32_t count) const;
  // Returns false if no object can be written.
  bool possible() const;
};

// A frame's `count` is the number of items so far; its `extra` is the number of items that match `contains`.
struct ArrayShape {
  std::vector<std::optional<RuleId>> prefix;
  std::optional<RuleId> rest;
  // The same for items that match `contains`; with the same sizes if min_contains > 0.
  std::vector<std::optional<RuleId>> prefix_containing;
  std::optional<RuleId> rest_containing;
  std::uint32_t min = 0, max = kUnbounded;
  std::uint32_t min_contains = 0;
  NodeId first = kNoNode, comma = kNoNode, item = kNoNode, close = kNoNode;

  std::optional<RuleId> at(std::uint32_t count, bool containing) const;
  bool can_close(std::uint32_t count, std::uint32_t found) const {
    return count >= min && found >= min_contains;
  }
  // Returns whether the array can still be completed after one more item. `containing`: the item matches `contains`.
  bool can_take(std::uint32_t count, std::uint32_t found, bool containing) const;
  std::uint32_t counted(std::uint32_t count) const;
};

class SharedAutomata;

struct Grammar {
  std::vector<Node> nodes;
  std::vector<NodeId> rules;  // the first node of each
  std::vector<DfaPtr> automata;
  std::vector<StringShape> strings;
  std::vector<ObjectShape> objects;
  std::vector<ArrayShape> arrays;
  // See Node::ways_on. Each can end; kNoNode stands for states in which no text ends.
  std::vector<std::vector<NodeId>> continuations;
  RuleId root = 0;
  std::shared_ptr<SharedAutomata> shared;  // only until finish()
  NodeId add(Node node);
  NodeId add(NodeKind kind, std::uint32_t index, NodeId next);  // `index`: Node::index
  RuleId add_rule();                                            // the caller sets its start later
  std::uint32_t add_automaton(DfaPtr dfa);
  NodeId bytes(std::string_view text, NodeId next);
  NodeId leaf(NodeKind kind, const DfaPtr& dfa, NodeId next);
  // Returns the node that follows a leaf whose text ends in this state of its automaton.
  NodeId after(const Node& leaf, std::uint32_t state) const {
    return leaf.ways_on == Node::kNone ? leaf.next : continuations[leaf.ways_on][state];
  }

  // Removes everything that can't end (rules that only lead to themselves, empty automata). kInvalidArgument if
  // nothing is left, with these words.
  Status finish(std::string_view nothing_left = "no text fits it");

 private:
  bool ends(const Node& node, const std::function<bool(NodeId)>& node_ends) const;
  void drop(const std::vector<bool>& node_ends);
};

constexpr std::size_t kMostNodes = 200'000;
// How many nodes a text may be at when a byte comes, with those passed on the way to the byte.
constexpr std::size_t kMostAtOnce = 4'000;

// kResourceExhausted if the grammar has a place that leads to more nodes than that: a text that reaches it would be
// rejected there. Only for Grammar::finish().
Status check_width(const Grammar& grammar);

}  // namespace bulkhead::constrain

// What a front end (JSON schema, GBNF, expression) makes and the automaton runs: rules that call
// each other, each a graph of nodes with one way in and kEnd at its end (a recursive transition
// network; Woods 1970). Leaves are automata, so a rule's graph stays small whatever its texts are.
//
// Counts (items of an array, properties of an object, repetitions) are kept in the frame of the rule
// that runs, not spelled out as nodes: 200 items or 2,000 characters are one node.
//
// Immutable once built and finished; thread-safe then.
#pragma once

#include <cstdint>
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
  kEnd,     // of the rule
  kSplit,   // to each of `branches`
  kCall,    // `index`: a rule; then next
  kBytes,   // `index`: an automaton over bytes; then next
  kText,    // `index`: an automaton over code points, written as UTF-8; then next
  kString,  // a string between quotes: `index` into strings; then next
  kLoop,  // branches[0], a kCall or kText that leads back, while count < max; next once count >= min
  kObject,  // between properties: `index` into objects; see ObjectShape
  kKeyStart,
  kKey,
  kArray,  // between items: `index` into arrays; see ArrayShape
  kItem,
};

struct Node {
  NodeKind kind = NodeKind::kEnd;
  NodeId next = kNoNode;
  std::uint32_t index = 0;
  std::uint32_t min = 0, max = 0;  // kLoop
  std::vector<NodeId> branches;
};

struct StringShape {
  DfaPtr contents;
  Quoting quoting = Quoting::kJson;  // never kNone: a text without quotes is a kText
  std::uint32_t min = 0;             // in code points
  std::uint32_t max = kUnbounded;
  std::optional<Lengths> lengths;  // where min and max don't go by themselves with `contents`
  // From this state of `contents` every text of plain characters stays accepted or acceptable.
  std::vector<bool> safe;
};

// Properties in a fixed order, then others. A frame's `count` is the index of the next property that
// may come (size + 1 once others have begun), its `extra` how many have come.
struct ObjectShape {
  struct Property {
    std::u32string name;
    RuleId member = 0;  // ":" (or "=") and the value
    bool required = false;
  };
  std::vector<Property> properties;
  Quoting keys = Quoting::kJson;            // kNone: no name contains the text that begins a member
  std::vector<RuleId> others;               // a key of one kind, then its member
  std::uint32_t min = 0, max = kUnbounded;  // properties in all
  NodeId first = kNoNode, comma = kNoNode;  // both lead to kKeyStart
  NodeId key_start = kNoNode, key = kNoNode, close = kNoNode;

  // Made by Grammar::finish(). The names as a trie; `below`: the rising indices of the names that go
  // through the node.
  struct TrieNode {
    std::vector<std::pair<char32_t, std::uint32_t>> next;  // rising
    std::vector<std::uint32_t> below;
    std::uint32_t ends = kDead;  // index of the property
  };
  std::vector<TrieNode> trie;
  // By index, and for the size: the first required one from there, or the size; how many there are.
  std::vector<std::uint32_t> next_required, required_left;

  std::uint32_t size() const { return static_cast<std::uint32_t>(properties.size()); }
  bool can_close(std::uint32_t index, std::uint32_t count) const;
  // Taking property `index` from position `from`, when `count` have come: is there a way to the end?
  bool can_take(std::uint32_t from, std::uint32_t index, std::uint32_t count) const;
  // Of the others only one counts for `min`: two may have the same key. So `min` must be reached with it.
  bool can_take_other(std::uint32_t from, std::uint32_t count) const;
  // What must be told apart of a count.
  std::uint32_t counted(std::uint32_t count) const;
  // False where no object can be written.
  bool possible() const;
};

// A frame's `count` is the number of items so far, its `extra` that of those that `contains` wants.
struct ArrayShape {
  std::vector<std::optional<RuleId>> prefix;
  std::optional<RuleId> rest;
  // The same, of items that `contains` wants; of the same sizes where min_contains > 0.
  std::vector<std::optional<RuleId>> prefix_containing;
  std::optional<RuleId> rest_containing;
  std::uint32_t min = 0, max = kUnbounded;
  std::uint32_t min_contains = 0;
  NodeId first = kNoNode, comma = kNoNode, item = kNoNode, close = kNoNode;

  std::optional<RuleId> at(std::uint32_t count, bool containing) const;
  bool can_close(std::uint32_t count, std::uint32_t found) const {
    return count >= min && found >= min_contains;
  }
  // An item more, of which `containing` are wanted ones: is there a way to the end?
  bool can_take(std::uint32_t count, std::uint32_t found, bool containing) const;
  std::uint32_t counted(std::uint32_t count) const;
};

struct Grammar {
  std::vector<Node> nodes;
  std::vector<NodeId> rules;  // where each starts
  std::vector<DfaPtr> automata;
  std::vector<StringShape> strings;
  std::vector<ObjectShape> objects;
  std::vector<ArrayShape> arrays;
  RuleId root = 0;
  NodeId add(Node node);
  NodeId add(NodeKind kind, std::uint32_t index, NodeId next);  // `index`: Node::index
  RuleId add_rule();                                            // its start is set later
  std::uint32_t add_automaton(DfaPtr dfa);
  NodeId bytes(std::string_view text, NodeId next);
  NodeId leaf(NodeKind kind, const DfaPtr& dfa, NodeId next);

  // Takes out all that can't end (rules that only lead to themselves, empty automata).
  // kInvalidArgument where nothing is left.
  Status finish();

 private:
  bool ends(const Node& node, const std::vector<bool>& node_ends) const;
  void drop(const std::vector<bool>& node_ends);
};

constexpr std::size_t kMostNodes = 200'000;

}  // namespace bulkhead::constrain

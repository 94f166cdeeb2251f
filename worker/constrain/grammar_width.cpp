// Finds places of a grammar at which too many ways begin, before a text gets there.
#include <numeric>

#include "worker/constrain/grammar.hpp"

namespace bulkhead::constrain {
namespace {

// The most nodes that the search looks at in one grammar. Only hostile grammars have so many wide places that overlap.
// The limit that holds while a text is written also covers the places that the search leaves out.
constexpr std::size_t kMostLooks = 4'000'000;

class GrammarWidth {
 public:
  explicit GrammarWidth(const Grammar& grammar) : grammar_(grammar), seen_(grammar.nodes.size()) {}

  // Returns whether a text that is at the node is at more than kMostAtOnce nodes.
  bool is_too_wide(NodeId start) {
    ++round_;
    work_.clear();
    reached_ = 0;
    reach(start);
    while (!work_.empty() && reached_ <= kMostAtOnce && looks_ < kMostLooks) {
      const NodeId at = work_.back();
      work_.pop_back();
      pass(grammar_.nodes[at]);
    }
    return reached_ > kMostAtOnce;
  }

 private:
  void reach(NodeId node) {
    ++looks_;
    if (node == kNoNode || seen_[node] == round_) return;
    seen_[node] = round_;
    ++reached_;
    work_.push_back(node);
  }
  // After a rule that can be empty, the nodes behind its call are reached, too. The search leaves these nodes out,
  // because they hardly make a place wider.
  void pass(const Node& node) {
    switch (node.kind) {
      case NodeKind::kSplit:
        for (const NodeId branch : node.branches)
          reach(branch);
        return;
      case NodeKind::kCall:
        return reach(grammar_.rules[node.index]);
      case NodeKind::kLoop:
        reach(node.next);
        if (!node.branches.empty()) reach(node.branches[0]);
        return;
      case NodeKind::kEnd:
      case NodeKind::kBytes:
      case NodeKind::kText:
      case NodeKind::kString:
      case NodeKind::kObject:
      case NodeKind::kKeyStart:
      case NodeKind::kKey:
      case NodeKind::kArray:
      case NodeKind::kItem:
        return;
    }
  }

  const Grammar& grammar_;
  std::vector<std::uint32_t> seen_;  // the last round that reached the node
  std::uint32_t round_ = 0;
  std::size_t reached_ = 0, looks_ = 0;
  std::vector<NodeId> work_;
};

}  // namespace

Status check_width(const Grammar& grammar) {
  const std::size_t branches =
      std::accumulate(grammar.nodes.begin(), grammar.nodes.end(), std::size_t{0},
                      [](std::size_t sum, const Node& node) { return sum + node.branches.size(); });
  // Few nodes follow each branch before a byte is taken.
  if (branches <= kMostAtOnce / 4) return {};
  GrammarWidth width(grammar);
  for (const Node& node : grammar.nodes) {
    if (node.kind != NodeKind::kSplit || node.branches.size() < 2) continue;
    if (width.is_too_wide(static_cast<NodeId>(&node - grammar.nodes.data()))) {
      return Error(ErrorCode::kResourceExhausted,
                   "more than " + std::to_string(kMostAtOnce) +
                       " alternatives, with those that they consist of, begin at one place; give "
                       "alternatives that begin alike one common beginning");
    }
  }
  return {};
}

}  // namespace bulkhead::constrain

// The parts and walks of token_masks.hpp.
#include "worker/constrain/token_masks.hpp"

#include <algorithm>

#include "worker/constrain/spelling.hpp"

namespace bulkhead::constrain {
namespace {

// Masks kept: 19 kB each for a vocabulary of 150,000.
constexpr std::size_t kMostMasks = 512;
constexpr std::size_t kMostParts = 2'048;

}  // namespace

TokenMasks::TokenMasks(std::shared_ptr<const Grammar> grammar,
                       std::shared_ptr<const TokenTrie> trie, std::vector<std::uint32_t> end_tokens)
    : automaton_(std::move(grammar)), trie_(std::move(trie)), end_tokens_(std::move(end_tokens)) {}

ConfigId TokenMasks::advance(ConfigId at, std::string_view bytes) {
  for (const char byte : bytes)
    at = automaton_.step(at, static_cast<unsigned char>(byte));
  return at;
}

void TokenMasks::add_tokens(std::uint32_t node, TokenMask& mask) const {
  const TokenTrie::Node& end = trie_->nodes()[node];
  for (std::uint32_t i = 0; i < end.tokens; ++i) {
    const std::uint32_t id = trie_->ids()[end.first_token + i];
    mask[id / 32] |= 1U << (id % 32);
  }
}

void TokenMasks::walk(std::uint32_t top, ConfigId at, bool only_special, TokenMask& mask,
                      std::vector<std::uint32_t>* exits) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  // Ends of the open subtrees, and the configurations at their nodes.
  std::vector<std::pair<std::uint32_t, ConfigId>> open = {{top + nodes[top].subtree, at}};
  for (std::uint32_t node = top + 1; node < top + nodes[top].subtree;) {
    while (open.back().first <= node)
      open.pop_back();
    if (only_special && !trie_->has_special(node)) {
      node += nodes[node].subtree;
      continue;
    }
    const ConfigId next = automaton_.step(open.back().second, nodes[node].byte);
    if (next == kNowhere) {
      node += nodes[node].subtree;
      continue;
    }
    if (exits != nullptr && automaton_.at_hole(next)) {
      exits->push_back(node);
      // With nothing but the hole, the frame is left for good.
      if (automaton_.items(next).size() == 1) {
        node += nodes[node].subtree;
        continue;
      }
    }
    if (nodes[node].tokens > 0) {
      const bool only_hole = automaton_.at_hole(next) && automaton_.items(next).size() == 1;
      if (!only_hole) add_tokens(node, mask);
    }
    open.emplace_back(node + nodes[node].subtree, next);
    ++node;
  }
}

// Counts that no token can bring to a bound are one count.
Frame TokenMasks::canonical(const Frame& frame) const {
  if (frame.node >= kHoleNode) return frame;
  const Node& node = automaton_.grammar().nodes[frame.node];
  if (node.kind != NodeKind::kString) return frame;
  const StringShape& shape = automaton_.grammar().strings[node.index];
  if (shape.lengths) return frame;
  const std::uint32_t reach = trie_->longest() + 1;
  Frame out = frame;
  const bool far_from_max = shape.max == kUnbounded || shape.max - frame.count > reach;
  if (!far_from_max) return frame;
  if (frame.count >= shape.min) {
    out.count = shape.min;
    // The count that stands for all must be as far from the bound.
    if (shape.max != kUnbounded && shape.max - shape.min <= reach) return frame;
  } else if (shape.min - frame.count > reach) {
    out.count = 0;
  }
  return out;
}

const TokenMasks::Part& TokenMasks::part(const Frame& asked) {
  const Frame frame = canonical(asked);
  const auto known = parts_.find(frame);
  if (known != parts_.end()) return known->second;
  if (parts_.size() >= kMostParts) parts_.clear();
  Part& made = parts_[frame];
  made.mask.assign(trie_->words(), 0);
  bool only_special = false;
  const Node& node = automaton_.grammar().nodes[frame.node];
  if (node.kind == NodeKind::kString && frame.spelling == kInside) {
    const StringShape& shape = automaton_.grammar().strings[node.index];
    const std::uint32_t reach = trie_->longest() + 1;
    only_special =
        shape.safe[frame.state] && !shape.lengths &&
        (shape.max == kUnbounded || (shape.max > frame.count && shape.max - frame.count > reach));
    if (only_special) made.mask = trie_->plain();
  }
  walk(0, automaton_.isolated(frame), only_special, made.mask, &made.exits);
  return made;
}

const TokenMask& TokenMasks::mask(ConfigId at) {
  if (const auto known = masks_.find(at); known != masks_.end()) return known->second;
  if (masks_.size() >= kMostMasks) masks_.clear();
  TokenMask out(trie_->words(), 0);
  if (automaton_.accepting(at)) {
    for (const std::uint32_t id : end_tokens_)
      out[id / 32] |= 1U << (id % 32);
  }
  const std::vector<Automaton::Item> items = automaton_.items(at);
  for (const Automaton::Item& item : items) {
    if (item.frame.node >= kHoleNode) continue;
    const Part& alone = part(item.frame);
    for (std::size_t word = 0; word < out.size(); ++word)
      out[word] |= alone.mask[word];
    if (alone.exits.empty()) continue;
    const ConfigId back = automaton_.returned(item.parents);
    for (const std::uint32_t node : alone.exits) {
      add_tokens(node, out);
      if (trie_->nodes()[node].subtree > 1) walk(node, back, false, out, nullptr);
    }
  }
  return masks_.emplace(at, std::move(out)).first->second;
}

std::string TokenMasks::forced(ConfigId at, std::size_t most) {
  std::string out;
  while (out.size() < most && !automaton_.accepting(at)) {
    int only = -1;
    for (int byte = 0; byte < 256; ++byte) {
      if (automaton_.step(at, static_cast<unsigned char>(byte)) == kNowhere) continue;
      if (only >= 0) return out;
      only = byte;
    }
    if (only < 0) return out;
    out.push_back(static_cast<char>(only));
    at = automaton_.step(at, static_cast<unsigned char>(only));
  }
  return out;
}

}  // namespace bulkhead::constrain

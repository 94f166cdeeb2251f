// The parts of token_masks.hpp, and the walks that make them.
#include <algorithm>
#include <span>

#include "worker/constrain/token_masks.hpp"

namespace bulkhead::constrain {
namespace {

// How many tokens of a subtree that is taken as a whole count as much work as a node that is walked.
constexpr std::size_t kTokensOfNode = 16;
// From this size on, a subtree has many children, so it pays to ask first which bytes can lead on at all.
constexpr std::uint32_t kWide = 128;
// A frame that takes fewer bytes than this needs no base.
constexpr std::size_t kManyBytes = 64;
// The base is found by one of these characters: the first that the frame takes.
constexpr unsigned char kUsual[] = {'e', ' ', '0'};

}  // namespace

std::size_t TokenMasks::Part::bytes() const {
  return sizeof(Part) + tokens.bytes() + below.capacity() * sizeof(below[0]) +
         without.capacity() * sizeof(Run);
}

bool TokenMasks::takes_all(std::uint32_t node, ConfigId at, bool repeats) {
  if (at == kNowhere || trie_->nodes()[node].subtree < TokenTrie::kLeastRun) return false;
  const CharClasses below = trie_->below(node);
  return automaton_.takes_freely(at, below, trie_->height(node)) ||
         (repeats && automaton_.runs_on(at, below));
}

bool TokenMasks::add_run(std::uint32_t node, ConfigId at, TokenMask& mask) {
  if (!takes_all(node, at, at == repeats_)) return false;
  const std::span<const std::uint32_t> tokens = trie_->tokens_of(node);
  for (const std::uint32_t id : tokens)
    mask[id / 32] |= 1U << (id % 32);
  nodes_walked_ += tokens.size() / kTokensOfNode;
  return true;
}

void TokenMasks::add_exits_below(std::uint32_t node, Part& part) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  for (std::uint32_t child = node + 1; child < node + nodes[node].subtree;
       child += nodes[child].subtree) {
    part.below.push_back(child);
    ++nodes_walked_;
  }
}

void TokenMasks::begin_walk() {
  automaton_.begin_walk();
  repeats_ = kNowhere;
}

void TokenMasks::walk_below(std::uint32_t node, ConfigId at, TokenMask& mask) {
  const std::uint64_t before = done();
  const bool run = add_run(node, at, mask);
  if (count(before) && !run) walk(node, at, mask, nullptr);
}

void TokenMasks::walk(std::uint32_t top, ConfigId at, TokenMask& mask, Part* exits) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  struct Open {
    std::uint32_t end = 0;  // of the subtree
    ConfigId at = kNowhere;
    bool wide = false;
    std::bitset<256> takes = {};  // if wide
  };
  std::vector<Open> open;
  const auto enter = [&](std::uint32_t node, ConfigId config) {
    Open below{node + nodes[node].subtree, config, nodes[node].subtree >= kWide};
    if (below.wide) below.takes = automaton_.takes(config);
    open.push_back(below);
  };
  enter(top, at);
  for (std::uint32_t node = top + 1; node < top + nodes[top].subtree;) {
    while (open.back().end <= node)
      open.pop_back();
    if (open.back().wide && !open.back().takes[nodes[node].byte]) {
      node += nodes[node].subtree;
      continue;
    }
    const std::uint64_t before = done();
    ++nodes_walked_;
    const ConfigId from = open.back().at;
    const ConfigId next = automaton_.step(from, nodes[node].byte);
    if (next == from) repeats_ = next;
    const bool run = next != kNowhere && add_run(node, next, mask);
    const bool leaves = exits != nullptr && next != kNowhere && automaton_.at_hole(next);
    if (leaves && !run) add_exits_below(node, *exits);
    if (!count(before)) return;
    if (next == kNowhere || run) {
      node += nodes[node].subtree;
      continue;
    }
    if (nodes[node].tokens > 0) add_tokens(node, mask);
    // If only the hole is left, the frame is never entered again.
    if (leaves && automaton_.items(next).size() == 1) {
      node += nodes[node].subtree;
      continue;
    }
    if (nodes[node].subtree > 1) enter(node, next);
    ++node;
  }
}

NodeId TokenMasks::shared_leaf(NodeId leaf) {
  const Grammar& grammar = automaton_.grammar();
  if (leaf >= kHoleNode) return leaf;
  const Node& node = grammar.nodes[leaf];
  if (node.kind != NodeKind::kText && node.kind != NodeKind::kBytes) return leaf;
  if (node.ways_on != Node::kNone || grammar.nodes[node.next].kind != NodeKind::kEnd) return leaf;
  return leaves_.try_emplace({node.kind, grammar.automata[node.index].get()}, leaf).first->second;
}

bool TokenMasks::base_of(const Frame& frame, Frame& base) {
  const ConfigId start = automaton_.isolated(frame);
  if (automaton_.takes(start).count() < kManyBytes) return false;
  ConfigId next = kNowhere;
  for (std::size_t i = 0; i < std::size(kUsual) && next == kNowhere; ++i) {
    next = automaton_.step(start, kUsual[i]);
    // It must lead to one frame of the same rule, which it does not leave.
    if (next == kNowhere || automaton_.step(next, kUsual[i]) == next) continue;
    return false;
  }
  for (const Automaton::Item& item : automaton_.items(next)) {
    if (item.frame.node == kHoleNode) continue;
    if (automaton_.items(next).size() > (automaton_.at_hole(next) ? 2 : 1)) return false;
    if (item.frame == frame || automaton_.items(automaton_.isolated(item.frame))[0] != item)
      return false;
    base = item.frame;
    return true;
  }
  return false;
}

void TokenMasks::derive_below(std::uint32_t node, ConfigId mine, Part& made) {
  add_tokens(node, scratch_);
  const bool leaves = automaton_.at_hole(mine);
  if (leaves) add_exits_below(node, made);
  if (leaves && automaton_.items(mine).size() == 1) return;
  if (trie_->nodes()[node].subtree > 1) walk(node, mine, scratch_, &made);
}

void TokenMasks::derive(const Frame& frame, const Frame& base, Part& made) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  made.base->tokens.add_to(scratch_);
  struct Open {
    std::uint32_t end = 0;
    ConfigId mine = kNowhere, its = kNowhere;
    bool wide = false;
    std::bitset<256> takes = {};  // if wide: what one of the two takes
  };
  std::vector<Open> open;
  const auto enter = [&](std::uint32_t node, ConfigId mine, ConfigId its) {
    Open below{node + nodes[node].subtree, mine, its, nodes[node].subtree >= kWide};
    if (below.wide) below.takes = automaton_.takes(mine) | automaton_.takes(its);
    open.push_back(below);
  };
  enter(0, automaton_.isolated(frame), automaton_.isolated(base));
  for (std::uint32_t node = 1; node < nodes[0].subtree;) {
    while (open.back().end <= node)
      open.pop_back();
    const Open& at = open.back();
    // The base may lack a place where it takes all tokens, so each part has its own places where they differ.
    if (automaton_.at_hole(at.its)) made.without.emplace_back(node, node + 1);
    if (automaton_.at_hole(at.mine)) made.below.push_back(node);
    if (at.wide && !at.takes[nodes[node].byte]) {
      node += nodes[node].subtree;
      continue;
    }
    std::uint64_t before = done();
    ++nodes_walked_;
    const ConfigId mine = automaton_.step(at.mine, nodes[node].byte);
    const ConfigId its = automaton_.step(at.its, nodes[node].byte);
    const bool same = mine == its || (takes_all(node, mine, mine == at.mine) &&
                                      takes_all(node, its, its == at.its));
    if (!same && mine == kNowhere) {
      const std::span<const std::uint32_t> tokens = trie_->tokens_of(node);
      for (const std::uint32_t id : tokens)
        scratch_[id / 32] &= ~(1U << (id % 32));
      nodes_walked_ += tokens.size() / kTokensOfNode;
      made.without.emplace_back(node + 1, node + nodes[node].subtree);
    }
    if (!count(before)) return;
    if (!same && its == kNowhere) {
      before = done();
      derive_below(node, mine, made);
      if (!count(before)) return;
    }
    if (same || mine == kNowhere || its == kNowhere) {
      node += nodes[node].subtree;
      continue;
    }
    if (nodes[node].subtree > 1) enter(node, mine, its);
    ++node;
  }
}

const TokenMasks::Part& TokenMasks::part(Frame frame) {
  frame.node = shared_leaf(frame.node);
  if (const auto known = parts_.find(frame); known != parts_.end()) {
    tally_ += known->second.cost;
    return known->second;
  }
  const std::uint64_t begin = tally_;
  begin_walk();
  const std::uint64_t before = done();
  Frame base_frame;
  bool derived = base_of(frame, base_frame);
  count(before);
  const Part* base = derived ? &part(base_frame) : nullptr;
  derived = derived && base->base == nullptr;
  Part& made = parts_[frame];
  scratch_.assign(trie_->words(), 0);
  begin_walk();
  if (derived) {
    made.base = base;
    derive(frame, base_frame, made);
  } else {
    walk(0, automaton_.isolated(frame), scratch_, &made);
  }
  made.tokens = TokenSet(scratch_);
  std::ranges::sort(made.below, {},
                    [&](std::uint32_t node) { return std::pair(trie_->nodes()[node].byte, node); });
  part_bytes_ += made.bytes();
  made.cost = tally_ - begin;
  return made;
}

void TokenMasks::forget_parts() {
  parts_.clear();
  part_bytes_ = 0;
}

}  // namespace bulkhead::constrain

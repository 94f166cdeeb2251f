// The sets of automaton.hpp, and the closure over all nodes that take no byte. automaton_leaves.cpp says how a leaf
// takes one.
#include "worker/constrain/automaton.hpp"

#include <algorithm>

#include "worker/constrain/automaton_pending.hpp"
#include "worker/constrain/spelling.hpp"

namespace bulkhead::constrain {
namespace {

// Limits for one byte: the depth of a text's nesting, frames looked at, and items of united sets; kMostAtOnce bounds
// the frames at the same time. No useful schema comes near them; a hostile one ends here before it takes the memory.
constexpr std::uint32_t kMostDepth = 4'000;
constexpr std::size_t kMostPasses = 20'000;
constexpr std::size_t kMostUnited = 50'000;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDULL;
}

}  // namespace

Automaton::Automaton(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  configs_.emplace_back();  // kNowhere
  const ConfigId end = intern({{Frame{kAcceptNode}, kNowhere}});
  Pending pending;
  expand({Frame{grammar_->rules[grammar_->root]}, end}, pending);
  start_ = close(pending);
}

ConfigId Automaton::intern(std::vector<Item> items) {
  if (items.empty()) return kNowhere;
  std::uint64_t hash = items.size();
  std::uint32_t depth = 0;
  for (const Item& item : items) {
    hash = mix(hash, std::uint64_t{item.frame.node} << 32 | item.frame.state);
    hash = mix(hash, std::uint64_t{item.frame.count} << 32 | item.frame.extra);
    hash = mix(hash, std::uint64_t{item.frame.spelling} << 32 | item.parents);
    depth = std::max(depth, configs_[item.parents].depth + 1);
  }
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto known = begin; known != end; ++known) {
    if (configs_[known->second].items == items) return known->second;
  }
  const auto id = static_cast<ConfigId>(configs_.size());
  Config& made = configs_.emplace_back();
  made.depth = depth;
  bool others = false;
  for (const Item& item : items) {
    made.accepting = made.accepting || item.frame.node == kAcceptNode;
    made.hole = made.hole || item.frame.node == kHoleNode;
    others = others || item.frame.node != kAcceptNode;
  }
  made.only_end = made.accepting && !others;
  made.items = std::move(items);
  bytes_ += sizeof(Config) + made.items.size() * sizeof(Item) + 64;
  by_hash_.emplace(hash, id);
  return id;
}

ConfigId Automaton::unite(ConfigId a, ConfigId b) {
  if (a == b || b == kNowhere) return a;
  if (a == kNowhere) return b;
  if (a > b) std::swap(a, b);
  const std::uint64_t key = std::uint64_t{a} << 32 | b;
  if (const auto known = unions_.find(key); known != unions_.end()) return known->second;
  const std::vector<Item> first = configs_[a].items;
  const std::vector<Item> second = configs_[b].items;
  std::vector<Item> out;
  std::size_t i = 0, j = 0;
  while (i < first.size() || j < second.size()) {
    if (j == second.size() || (i < first.size() && first[i].frame < second[j].frame)) {
      out.push_back(first[i++]);
    } else if (i == first.size() || second[j].frame < first[i].frame) {
      out.push_back(second[j++]);
    } else {
      out.push_back({first[i].frame, unite(first[i].parents, second[j].parents)});
      ++i, ++j;
    }
  }
  const ConfigId made = intern(std::move(out));
  unions_.emplace(key, made);
  return made;
}

ConfigId Automaton::close(Pending& pending) {
  for (std::size_t passes = 0; !pending.work.empty();) {
    const Frame frame = pending.work.back();
    pending.work.pop_back();
    if (++passes > kMostPasses || pending.parents.size() > kMostAtOnce ||
        pending.united > kMostUnited)
      return kNowhere;
    expand({frame, pending.parents[frame]}, pending);
  }
  std::vector<Item> items;
  for (const Frame& frame : pending.ready)
    items.push_back({frame, pending.parents[frame]});
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.frame < b.frame; });
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return intern(std::move(items));
}

void Automaton::call(RuleId rule, Frame back, ConfigId parents, Pending& out) {
  // This frame has nothing left to do, so the automaton returns to its callers at once.
  if (grammar_->nodes[back.node].kind != NodeKind::kEnd) {
    if (configs_[parents].depth >= kMostDepth) return;
    parents = intern({{back, parents}});
  }
  out.add(Frame{grammar_->rules[rule]}, parents, *this);
}

void Automaton::expand(const Item& item, Pending& out) {
  if (item.frame.node >= kHoleNode) return out.take(item.frame, item.parents, *this);
  const Node& node = grammar_->nodes[item.frame.node];
  Frame frame = item.frame;
  switch (node.kind) {
    case NodeKind::kEnd:
      // The items are copied, because interning moves the table.
      for (const Item& back : std::vector<Item>(configs_[item.parents].items)) {
        out.add(back.frame, back.parents, *this);
      }
      return;
    case NodeKind::kSplit:
      for (const NodeId branch : node.branches) {
        frame.node = branch;
        out.add(frame, item.parents, *this);
      }
      return;
    case NodeKind::kCall:
      frame.node = node.next;
      return call(node.index, frame, item.parents, out);
    case NodeKind::kBytes:
    case NodeKind::kText: {
      const Dfa::State& state = grammar_->automata[node.index]->states[frame.state];
      if (!state.ranges.empty()) out.take(frame, item.parents, *this);
      if (state.accept && frame.spelling == 0) {
        frame.node = grammar_->after(node, frame.state);
        frame.state = 0;
        out.add(frame, item.parents, *this);
      }
      return;
    }
    case NodeKind::kLoop:
      if (frame.count >= node.min) out.add(Frame{node.next}, item.parents, *this);
      if (frame.count >= node.max || node.branches.empty()) return;
      frame.node = node.branches[0];
      if (node.max != kUnbounded || frame.count < node.min) ++frame.count;
      return out.add(frame, item.parents, *this);
    case NodeKind::kString:
    case NodeKind::kKey:
      return out.take(frame, item.parents, *this);
    case NodeKind::kObject:
    case NodeKind::kKeyStart:
      return expand_object(item, node, out);
    case NodeKind::kArray:
    case NodeKind::kItem:
      return expand_array(item, node, out);
  }
}

void Automaton::expand_object(const Item& item, const Node& node, Pending& out) {
  const ObjectShape& shape = grammar_->objects[node.index];
  Frame frame = item.frame;
  const bool others = shape.can_take_other(frame.count, frame.extra);
  bool declared = false;
  for (std::uint32_t i = frame.count; i < shape.size() && !declared; ++i) {
    if (i > shape.next_required[frame.count]) break;
    declared = shape.can_take(frame.count, i, frame.extra);
  }
  if (node.kind == NodeKind::kObject) {
    if (shape.can_close(frame.count, frame.extra)) {
      out.add(Frame{shape.close}, item.parents, *this);
    }
    if (!others && !declared) return;
    frame.node = frame.extra == 0 ? shape.first : shape.comma;
    return out.add(frame, item.parents, *this);
  }
  if (declared) {
    Frame key = frame;
    key.node = shape.key;
    key.state = 0;
    key.spelling = shape.keys == Quoting::kNone ? kInside : spelling(Spelled::kBefore);
    out.add(key, item.parents, *this);
  }
  if (!others) return;
  Frame back = frame;
  back.node = node.next;
  back.count = shape.size() + 1;
  back.extra = shape.counted(frame.extra + 1);
  for (const RuleId other : shape.others)
    call(other, back, item.parents, out);
}

void Automaton::expand_array(const Item& item, const Node& node, Pending& out) {
  const ArrayShape& shape = grammar_->arrays[node.index];
  Frame frame = item.frame;
  const bool plain = shape.can_take(frame.count, frame.extra, false);
  const bool wanted =
      frame.extra < shape.min_contains && shape.can_take(frame.count, frame.extra, true);
  if (node.kind == NodeKind::kArray) {
    if (shape.can_close(frame.count, frame.extra)) {
      out.add(Frame{shape.close}, item.parents, *this);
    }
    if (!plain && !wanted) return;
    frame.node = frame.count == 0 ? shape.first : shape.comma;
    return out.add(frame, item.parents, *this);
  }
  Frame back = frame;
  back.node = node.next;
  back.count = shape.counted(frame.count + 1);
  if (plain) call(*shape.at(frame.count, false), back, item.parents, out);
  if (!wanted) return;
  back.extra = frame.extra + 1;
  call(*shape.at(frame.count, true), back, item.parents, out);
}

ConfigId Automaton::step(ConfigId config, unsigned char byte) {
  if (config == kNowhere) return kNowhere;
  if (configs_[config].next == nullptr) {
    configs_[config].next = std::make_unique<Edges>();
    bytes_ += sizeof(Edges);
  }
  Edge& edge = (*configs_[config].next)[byte];  // this reference stays valid when the table moves
  if (edge.to == kUnknown) {
    Pending pending;
    for (const Item& item : std::vector<Item>(configs_[config].items)) {
      advance(item, byte, pending);
    }
    edge.to = close(pending);
    edge.cost = static_cast<std::uint16_t>(std::min<std::size_t>(pending.cost(), 0xFFFF));
  }
  if (edge.walk != walk_) {
    edge.walk = walk_;
    spent_ += edge.cost;
  }
  return edge.to;
}

void Automaton::begin_walk() {
  if (++walk_ != 0) return;
  walk_ = 1;
  for (Config& config : configs_) {
    config.runs_walk = 0;
    if (config.next == nullptr) continue;
    for (Edge& edge : *config.next)
      edge.walk = 0;
  }
}

ConfigId Automaton::isolated(const Frame& frame) {
  const ConfigId hole = intern({{Frame{kHoleNode}, kNowhere}});
  return intern({{frame, hole}});
}

ConfigId Automaton::returned(ConfigId parents) {
  if (configs_[parents].returned != kUnknown) {
    spent_ += configs_[parents].returned_cost;
    return configs_[parents].returned;
  }
  Pending pending;
  for (const Item& item : std::vector<Item>(configs_[parents].items)) {
    pending.add(item.frame, item.parents, *this);
  }
  const ConfigId out = close(pending);
  configs_[parents].returned = out;
  configs_[parents].returned_cost = static_cast<std::uint32_t>(pending.cost());
  spent_ += configs_[parents].returned_cost;
  return out;
}

ConfigId Automaton::entered(NodeId node, ConfigId parents) {
  Pending pending;
  pending.add(Frame{node}, parents, *this);
  const ConfigId out = close(pending);
  spent_ += pending.cost();
  return out;
}

}  // namespace bulkhead::constrain

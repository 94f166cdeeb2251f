// Builds a grammar, and removes the parts of it that can't end.
#include "worker/constrain/grammar.hpp"

#include <algorithm>

#include "worker/constrain/shared_automata.hpp"
#include "worker/constrain/smallest_set.hpp"

namespace bulkhead::constrain {

NodeId Grammar::add(Node node) {
  nodes.push_back(std::move(node));
  return static_cast<NodeId>(nodes.size() - 1);
}

RuleId Grammar::add_rule() {
  rules.push_back(kNoNode);
  return static_cast<RuleId>(rules.size() - 1);
}

std::uint32_t Grammar::add_automaton(DfaPtr dfa) {
  automata.push_back(std::move(dfa));
  return static_cast<std::uint32_t>(automata.size() - 1);
}

NodeId Grammar::add(NodeKind kind, std::uint32_t index, NodeId next) {
  Node node;
  node.kind = kind;
  node.index = index;
  node.next = next;
  return add(std::move(node));
}

NodeId Grammar::leaf(NodeKind kind, const DfaPtr& dfa, NodeId next) {
  return add(kind, add_automaton(dfa), next);
}

NodeId Grammar::bytes(std::string_view text, NodeId next) {
  return leaf(NodeKind::kBytes, shared_of(*this).bytes(std::string(text)), next);
}

bool ObjectShape::can_close(std::uint32_t index, std::uint32_t count) const {
  if (index > size()) return true;  // other items have begun: see can_take_other
  return next_required[index] == size() && count >= min;
}

bool ObjectShape::can_take(std::uint32_t from, std::uint32_t index, std::uint32_t count) const {
  if (from > size() || index < from || index > next_required[from]) return false;
  const std::uint64_t taken = std::uint64_t{count} + 1;
  const std::uint64_t most = taken + (size() - index - 1) + (others.empty() ? 0 : 1);
  return taken + required_left[index + 1] <= max && most >= min;
}

bool ObjectShape::can_take_other(std::uint32_t from, std::uint32_t count) const {
  if (others.empty() || count >= max) return false;
  if (from > size()) return true;
  return next_required[from] == size() && count + 1 >= min;
}

std::uint32_t ObjectShape::counted(std::uint32_t count) const {
  return max == kUnbounded ? std::min(count, std::max(min, 1U)) : count;
}

bool ObjectShape::possible() const {
  return required_left[0] <= max && properties.size() + (others.empty() ? 0 : 1) >= min;
}

std::optional<RuleId> ArrayShape::at(std::uint32_t count, bool containing) const {
  if (containing)
    return count < prefix_containing.size() ? prefix_containing[count] : rest_containing;
  return count < prefix.size() ? prefix[count] : rest;
}

bool ArrayShape::can_take(std::uint32_t count, std::uint32_t found, bool containing) const {
  if (count >= max || !at(count, containing)) return false;
  const std::uint32_t now = found + (containing ? 1 : 0);
  if (now >= min_contains) return true;
  if (rest_containing && max == kUnbounded) return true;
  // The number of places that are left for wanted items.
  std::uint64_t places = 0;
  const auto fixed = static_cast<std::uint32_t>(prefix_containing.size());
  for (std::uint32_t i = count + 1; i < std::min(fixed, max); ++i) {
    if (prefix_containing[i]) ++places;
  }
  const std::uint32_t from = std::max(count + 1, fixed);
  if (rest_containing && max > from) places += max - from;
  return now + places >= min_contains;
}

std::uint32_t ArrayShape::counted(std::uint32_t count) const {
  if (max != kUnbounded) return count;
  return std::min<std::uint32_t>(count, std::max<std::size_t>({min, prefix.size(), 1}));
}

bool Grammar::ends(const Node& node, const std::function<bool(NodeId)>& node_ends) const {
  const auto next_ends = [&] { return node.next != kNoNode && node_ends(node.next); };
  const auto rule_ends = [&](RuleId rule) {
    return rules[rule] != kNoNode && node_ends(rules[rule]);
  };
  switch (node.kind) {
    case NodeKind::kEnd:
    case NodeKind::kKeyStart:
    case NodeKind::kKey:
    case NodeKind::kItem:
      return true;  // kObject and kArray decide this themselves
    case NodeKind::kSplit:
      return std::any_of(node.branches.begin(), node.branches.end(), std::cref(node_ends));
    case NodeKind::kCall:
      return rule_ends(node.index) && next_ends();
    case NodeKind::kBytes:
    case NodeKind::kText:
      return !automata[node.index]->empty() && next_ends();
    case NodeKind::kString: {
      const StringShape& shape = strings[node.index];
      const bool any = shape.lengths ? shape.lengths->can_finish(0, shape.min, shape.max)
                                     : !shape.contents->empty() && shape.min <= shape.max;
      return any && next_ends();
    }
    case NodeKind::kLoop: {
      if (!next_ends() || node.min == 0) return next_ends();
      // The body leads back here, so it is asked without the nodes that follow it.
      const Node& body = nodes[node.branches[0]];
      return body.kind == NodeKind::kCall ? rule_ends(body.index) : !automata[body.index]->empty();
    }
    case NodeKind::kObject: {
      const ObjectShape& shape = objects[node.index];
      if (shape.min > shape.max) return false;
      std::uint32_t required = 0, possible = 0;
      for (const ObjectShape::Property& property : shape.properties) {
        const bool can = rule_ends(property.member);
        if (property.required && !can) return false;
        required += property.required ? 1 : 0;
        possible += can ? 1 : 0;
      }
      if (std::any_of(shape.others.begin(), shape.others.end(), rule_ends)) ++possible;
      return required <= shape.max && possible >= shape.min;
    }
    case NodeKind::kArray: {
      const ArrayShape& shape = arrays[node.index];
      if (shape.min > shape.max) return false;
      const auto can = [&](std::uint32_t place, bool containing) {
        const std::optional<RuleId> rule = shape.at(place, containing);
        return rule && rule_ends(*rule);
      };
      const auto fixed = static_cast<std::uint32_t>(shape.prefix.size());
      std::uint32_t most = 0;
      std::uint64_t wanted = 0;
      while (most < std::min(fixed, shape.max) && can(most, false)) {
        if (shape.min_contains > 0 && can(most, true)) ++wanted;
        ++most;
      }
      if (most == fixed && can(fixed, false)) most = shape.max;
      if (most > fixed && shape.min_contains > 0 && can(fixed, true)) wanted += most - fixed;
      return most >= shape.min && wanted >= shape.min_contains;
    }
  }
  return false;
}

namespace {

void make_trie(ObjectShape& shape) {
  shape.trie.assign(1, {});
  for (std::uint32_t index = 0; index < shape.size(); ++index) {
    std::uint32_t node = 0;
    shape.trie[0].below.push_back(index);
    for (const char32_t code : shape.properties[index].name) {
      auto& next = shape.trie[node].next;
      auto found = std::lower_bound(next.begin(), next.end(), std::pair(code, std::uint32_t{0}));
      if (found == next.end() || found->first != code) {
        found = next.insert(found, {code, static_cast<std::uint32_t>(shape.trie.size())});
        node = found->second;
        shape.trie.emplace_back();
      } else {
        node = found->second;
      }
      shape.trie[node].below.push_back(index);
    }
    shape.trie[node].ends = index;
  }
  shape.next_required.assign(shape.size() + 1, shape.size());
  shape.required_left.assign(shape.size() + 1, 0);
  for (std::uint32_t index = shape.size(); index-- > 0;) {
    const bool required = shape.properties[index].required;
    shape.next_required[index] = required ? index : shape.next_required[index + 1];
    shape.required_left[index] = shape.required_left[index + 1] + (required ? 1 : 0);
  }
}

// Returns the states from which plain characters (those that need no escape) lead only to such states, for ever.
std::vector<bool> safe_states(const Dfa& dfa) {
  const auto unsafe = [&dfa](std::uint32_t at, const auto& known_unsafe) {
    char32_t next = 0x20;
    for (const Dfa::Range& range : dfa.states[at].ranges) {
      if (range.high < next) continue;
      // Surrogates are not characters; a quote and a backslash are not plain.
      if (range.low > next && !(next >= 0xD800 && range.low <= 0xE000) &&
          !(next == '"' && range.low == '"' + 1) && !(next == '\\' && range.low == '\\' + 1)) {
        return true;
      }
      const bool plain = !(range.low == range.high && (range.low == '"' || range.low == '\\'));
      if (plain && known_unsafe(range.to)) return true;
      next = range.high + 1;
    }
    return next <= kLastCodePoint;
  };
  std::vector<bool> safe = smallest_set(dfa.states.size(), unsafe);
  safe.flip();
  return safe;
}

}  // namespace

void Grammar::drop(const std::vector<bool>& node_ends) {
  const auto rule_ends = [&](RuleId rule) {
    return rules[rule] != kNoNode && node_ends[rules[rule]];
  };
  for (Node& node : nodes) {
    std::erase_if(node.branches, [&](NodeId branch) { return !node_ends[branch]; });
  }
  for (ObjectShape& shape : objects) {
    std::erase_if(shape.properties, [&](const ObjectShape::Property& property) {
      return !rule_ends(property.member);
    });
    std::erase_if(shape.others, [&](RuleId rule) { return !rule_ends(rule); });
    make_trie(shape);
  }
  for (ArrayShape& shape : arrays) {
    const auto clear = [&](std::optional<RuleId>& rule) {
      if (rule && !rule_ends(*rule)) rule.reset();
    };
    for (auto& rule : shape.prefix)
      clear(rule);
    for (auto& rule : shape.prefix_containing)
      clear(rule);
    clear(shape.rest);
    clear(shape.rest_containing);
    const auto fixed = static_cast<std::uint32_t>(shape.prefix.size());
    std::uint32_t most = 0;
    while (most < fixed && shape.prefix[most])
      ++most;
    if (most < fixed || !shape.rest) shape.max = std::min(shape.max, most);
  }
}

Status Grammar::finish(std::string_view nothing_left) {
  if (nodes.size() > kMostNodes) {
    return Error(ErrorCode::kResourceExhausted, "the grammar is too large");
  }
  const std::vector<bool> node_ends = smallest_set(
      nodes.size(), [this](NodeId at, const auto& known) { return ends(nodes[at], known); });
  if (rules.empty() || rules[root] == kNoNode || !node_ends[rules[root]]) {
    return Error(ErrorCode::kInvalidArgument, std::string(nothing_left));
  }
  drop(node_ends);
  BULKHEAD_RETURN_IF_ERROR(check_width(*this));
  shared.reset();
  for (StringShape& shape : strings) {
    if (shape.safe.empty()) shape.safe = safe_states(*shape.contents);
  }
  return {};
}

}  // namespace bulkhead::constrain

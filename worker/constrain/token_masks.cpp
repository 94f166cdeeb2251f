// How masks are put together out of parts (token_parts.cpp) and strings.
#include "worker/constrain/token_masks.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::constrain {
namespace {

// The number of masks that are kept. Each takes 19 kB for a vocabulary of 150,000 tokens.
constexpr std::size_t kMostMasks = 512;
constexpr std::size_t kMostPartBytes = std::size_t{16} << 20;
constexpr std::size_t kMostStringBytes = std::size_t{32} << 20;

// Returns the classes of the characters that begin with one of the bytes.
CharClasses first_classes(const std::bitset<256>& bytes) {
  CharClasses out = 0;
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    if (bytes[byte]) out |= CharClasses{1} << class_of(static_cast<unsigned char>(byte));
  }
  return out;
}

}  // namespace

TokenMasks::TokenMasks(std::shared_ptr<const Grammar> grammar,
                       std::shared_ptr<const TokenTrie> trie, std::vector<std::uint32_t> end_tokens,
                       std::uint64_t most_work)
    : automaton_(std::move(grammar)),
      trie_(std::move(trie)),
      end_tokens_(std::move(end_tokens)),
      strings_(trie_),
      most_(most_work * kNodesOfFrame) {}

bool TokenMasks::count(std::uint64_t before) {
  tally_ += done() - before;
  return tally_ <= most_;
}

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

std::span<const std::uint32_t> TokenMasks::below(const Part& part, unsigned char byte) const {
  const auto [begin, end] = std::ranges::equal_range(
      part.below, byte, {}, [&](std::uint32_t node) { return trie_->nodes()[node].byte; });
  return {begin, end};
}

bool TokenMasks::leaves_by(const Part& part, unsigned char byte) const {
  return !below(part, byte).empty() || (part.base != nullptr && leaves_by(*part.base, byte));
}

bool TokenMasks::add_through(const Part& part, unsigned char byte, ConfigId next, TokenMask& mask) {
  const CharClasses first = first_classes(automaton_.takes(next));
  const auto add = [&](std::uint32_t node) {
    const std::uint64_t before = done();
    ++nodes_walked_;
    if (!count(before)) return false;
    add_tokens(node, mask);
    if ((trie_->below(node) & first) != 0) walk_below(node, next, mask);
    return tally_ <= most_;
  };
  // Adds the nodes of a part, except those in `without`.
  const auto add_all = [&](const Part& from, const std::vector<Run>& without) {
    auto gap = without.begin();
    const auto counts = [&](std::uint32_t node) {
      while (gap != without.end() && gap->second <= node)
        ++gap;
      return gap == without.end() || node < gap->first;
    };
    for (const std::uint32_t node : below(from, byte)) {
      if (counts(node) && !add(node)) return false;
    }
    return true;
  };
  return add_all(part, {}) && (part.base == nullptr || add_all(*part.base, part.without));
}

void TokenMasks::add_part(const Automaton::Item& item, TokenMask& mask) {
  if (part_bytes_ > kMostPartBytes) forget_parts();
  const Part& alone = part(item.frame);
  if (tally_ > most_) return;
  alone.tokens.add_to(mask);
  if (!alone.leaves()) return;
  begin_walk();
  std::uint64_t before = done();
  const ConfigId back = automaton_.returned(item.parents);
  if (!count(before)) return;
  const std::bitset<256> takes = automaton_.takes(back);
  for (std::size_t byte = 0; byte < takes.size(); ++byte) {
    if (!takes[byte] || !leaves_by(alone, static_cast<unsigned char>(byte))) continue;
    before = done();
    const ConfigId next = automaton_.step(back, static_cast<unsigned char>(byte));
    if (!count(before)) return;
    if (next != kNowhere && !add_through(alone, static_cast<unsigned char>(byte), next, mask))
      return;
  }
}

const std::vector<TokenSet>& TokenMasks::beyond(const StringTokens::Inside& inside, ConfigId back) {
  const auto [known, fresh] = beyond_.try_emplace({&inside, back});
  Beyond& made = known->second;
  if (!fresh) {
    tally_ += made.cost;
    return made.tokens;
  }
  const std::uint64_t before = tally_;
  begin_walk();
  const CharClasses first = first_classes(automaton_.takes(back));
  for (const StringTokens::Exit& exit : inside.exits) {
    scratch_.assign(trie_->words(), 0);
    for (const std::uint32_t node : exit.nodes) {
      add_tokens(node, scratch_);
      if ((trie_->below(node) & first) != 0) walk_below(node, back, scratch_);
    }
    made.tokens.emplace_back(scratch_);
    beyond_bytes_ += sizeof(TokenSet) + made.tokens.back().bytes();
  }
  made.cost = tally_ - before;
  return made.tokens;
}

void TokenMasks::add_string(const Automaton::Item& item, const StringShape& shape,
                            TokenMask& mask) {
  if (strings_.bytes() + beyond_bytes_ > kMostStringBytes) {
    strings_.clear();
    beyond_.clear();
    beyond_bytes_ = 0;
  }
  const std::uint32_t taken = item.frame.count;
  const StringTokens::Inside& inside = strings_.from(shape, item.frame.state, item.frame.spelling);
  if (inside.plain)
    trie_->add_plain(shape.max == kUnbounded ? kUnbounded : shape.max - taken, mask);
  for (const StringTokens::Group& group : inside.groups) {
    if (StringTokens::may_be(shape, group, taken)) group.tokens.add_to(mask);
  }
  if (inside.exits.empty()) return;
  const NodeId next = automaton_.grammar().nodes[item.frame.node].next;
  const std::uint64_t before = done();
  const ConfigId back = automaton_.entered(next, item.parents);
  if (!count(before)) return;
  const std::vector<TokenSet>& through = beyond(inside, back);
  for (std::size_t i = 0; i < through.size(); ++i) {
    if (StringTokens::may_close(shape, inside.exits[i], taken)) through[i].add_to(mask);
  }
}

const TokenMask* TokenMasks::mask(ConfigId at) {
  if (const auto known = masks_.find(at); known != masks_.end()) return &known->second;
  tally_ = 0;
  if (masks_.size() >= kMostMasks) masks_.clear();
  TokenMask out(trie_->words(), 0);
  if (automaton_.accepting(at)) {
    for (const std::uint32_t id : end_tokens_)
      out[id / 32] |= 1U << (id % 32);
  }
  const std::vector<Automaton::Item> items = automaton_.items(at);
  for (const Automaton::Item& item : items) {
    if (item.frame.node >= kHoleNode) continue;
    if (tally_ > most_) break;
    const Node& node = automaton_.grammar().nodes[item.frame.node];
    if (node.kind == NodeKind::kString && node.ways_on == Node::kNone) {
      add_string(item, automaton_.grammar().strings[node.index], out);
    } else {
      add_part(item, out);
    }
  }
  if (tally_ > most_) {
    // A part that was begun is incomplete.
    forget_parts();
    beyond_.clear();
    beyond_bytes_ = 0;
    return nullptr;
  }
  return &masks_.emplace(at, std::move(out)).first->second;
}

std::size_t TokenMasks::bytes() const {
  return automaton_.bytes() + strings_.bytes() + beyond_bytes_ + part_bytes_ +
         masks_.size() * trie_->words() * sizeof(std::uint32_t);
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

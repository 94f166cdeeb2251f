// The parts and walks of token_masks.hpp.
#include "worker/constrain/token_masks.hpp"

#include <bit>
#include <utility>

namespace bulkhead::constrain {
namespace {

// The number of masks that are kept. Each takes 19 kB for a vocabulary of 150,000 tokens.
constexpr std::size_t kMostMasks = 512;
constexpr std::size_t kMostParts = 2'048;
constexpr std::size_t kMostPartBytes = std::size_t{16} << 20;
constexpr std::size_t kMostStringBytes = std::size_t{32} << 20;

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

void TokenMasks::walk(std::uint32_t top, ConfigId at, TokenMask& mask,
                      std::vector<std::uint32_t>* exits) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  // The ends of the open subtrees, and the configurations at their nodes.
  std::vector<std::pair<std::uint32_t, ConfigId>> open = {{top + nodes[top].subtree, at}};
  for (std::uint32_t node = top + 1; node < top + nodes[top].subtree;) {
    while (open.back().first <= node)
      open.pop_back();
    const std::uint64_t before = done();
    ++nodes_walked_;
    const ConfigId next = automaton_.step(open.back().second, nodes[node].byte);
    if (!count(before)) return;
    if (next == kNowhere) {
      node += nodes[node].subtree;
      continue;
    }
    if (exits != nullptr && automaton_.at_hole(next)) {
      exits->push_back(node);
      // If only the hole is left, the frame is never entered again.
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

const TokenMasks::Part& TokenMasks::part(const Frame& frame) {
  const auto known = parts_.find(frame);
  if (known != parts_.end()) {
    tally_ += known->second.cost;
    return known->second;
  }
  if (parts_.size() >= kMostParts || part_bytes_ > kMostPartBytes) forget_parts();
  Part& made = parts_[frame];
  made.mask.assign(trie_->words(), 0);
  const std::uint64_t before = tally_;
  automaton_.begin_walk();
  std::vector<std::uint32_t> exits;
  walk(0, automaton_.isolated(frame), made.mask, &exits);
  made.leaves = !exits.empty();
  made.at_exits.assign(made.leaves ? trie_->words() : 0, 0);
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  for (const std::uint32_t exit : exits) {
    add_tokens(exit, made.at_exits);
    for (std::uint32_t node = exit + 1; node < exit + nodes[exit].subtree;
         node += nodes[node].subtree) {
      made.below[nodes[node].byte].push_back(node);
      ++tally_;
    }
  }
  for (const auto& list : made.below)
    part_bytes_ += list.capacity() * sizeof(std::uint32_t);
  made.cost = tally_ - before;
  return made;
}

void TokenMasks::forget_parts() {
  parts_.clear();
  part_bytes_ = 0;
}

void TokenMasks::add_part(const Automaton::Item& item, TokenMask& mask) {
  const Part& alone = part(item.frame);
  for (std::size_t word = 0; word < mask.size(); ++word)
    mask[word] |= alone.mask[word];
  if (!alone.leaves) return;
  for (std::size_t word = 0; word < mask.size(); ++word)
    mask[word] |= alone.at_exits[word];
  automaton_.begin_walk();
  std::uint64_t before = done();
  const ConfigId back = automaton_.returned(item.parents);
  for (std::size_t byte = 0; byte < alone.below.size(); ++byte) {
    if (alone.below[byte].empty()) continue;
    const ConfigId next = automaton_.step(back, static_cast<unsigned char>(byte));
    for (const std::uint32_t node : alone.below[byte]) {
      if (next == kNowhere) break;
      ++nodes_walked_;
      if (!count(before)) return;
      add_tokens(node, mask);
      if (trie_->nodes()[node].subtree > 1) walk(node, next, mask, nullptr);
      before = done();
    }
  }
  count(before);
}

const std::vector<TokenSet>& TokenMasks::beyond(const StringTokens::Inside& inside, ConfigId back) {
  const auto [known, fresh] = beyond_.try_emplace({&inside, back});
  Beyond& made = known->second;
  if (!fresh) {
    tally_ += made.cost;
    return made.tokens;
  }
  const std::uint64_t before = tally_;
  automaton_.begin_walk();
  for (const StringTokens::Exit& exit : inside.exits) {
    scratch_.assign(trie_->words(), 0);
    for (const std::uint32_t node : exit.nodes) {
      add_tokens(node, scratch_);
      if (trie_->nodes()[node].subtree > 1) walk(node, back, scratch_, nullptr);
    }
    TokenSet& tokens = made.tokens.emplace_back();
    for (std::uint32_t word = 0; word < scratch_.size(); ++word) {
      for (std::uint32_t bits = scratch_[word]; bits != 0; bits &= bits - 1)
        tokens.add(word * 32 + static_cast<std::uint32_t>(std::countr_zero(bits)), trie_->words());
    }
    beyond_bytes_ += sizeof(TokenSet) + tokens.bytes();
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
    if (node.kind == NodeKind::kString) {
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
  return automaton_.bytes() + strings_.bytes() + beyond_bytes_ +
         (parts_.size() + masks_.size()) * trie_->words() * sizeof(std::uint32_t);
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

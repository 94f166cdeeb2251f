#include "worker/constrain/string_tokens.hpp"

#include <algorithm>
#include <bit>

namespace bulkhead::constrain {
namespace {

// For this many ids, a mask is as fast as a list.
constexpr std::size_t kFewIds = 768;

std::uint32_t left_of(std::uint32_t bound, std::uint32_t taken) {
  return bound == kUnbounded ? kUnbounded : bound > taken ? bound - taken : 0;
}

// Says whether the shape's lengths can distinguish places at all.
bool is_bounded(const StringShape& shape) {
  return shape.min > 0 || shape.max != kUnbounded;
}

bool live(const StringShape& shape, std::uint32_t state, std::uint32_t taken) {
  if (taken > shape.max) return false;
  return !shape.lengths ||
         shape.lengths->can_finish(state, left_of(shape.min, taken), left_of(shape.max, taken));
}

}  // namespace

TokenSet::TokenSet(const TokenMask& mask) {
  for (std::uint32_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t bits = mask[word]; bits != 0; bits &= bits - 1)
      ids_.push_back(word * 32 + static_cast<std::uint32_t>(std::countr_zero(bits)));
    if (ids_.size() <= kFewIds) continue;
    ids_ = {};
    mask_ = mask;
    return;
  }
  ids_.shrink_to_fit();
}

void TokenSet::add(std::uint32_t token, std::size_t words) {
  if (mask_.empty() && ids_.size() < kFewIds) return ids_.push_back(token);
  if (mask_.empty()) {
    mask_.assign(words, 0);
    for (const std::uint32_t id : ids_)
      mask_[id / 32] |= 1U << (id % 32);
    ids_ = {};
  }
  mask_[token / 32] |= 1U << (token % 32);
}

void TokenSet::add_to(TokenMask& mask) const {
  for (const std::uint32_t id : ids_)
    mask[id / 32] |= 1U << (id % 32);
  for (std::size_t word = 0; word < mask_.size(); ++word)
    mask[word] |= mask_[word];
}

// One walk over the vocabulary from one place in a string.
struct StringTokens::Walk {
  struct Place {
    std::uint32_t end = 0;  // of the subtree
    std::uint32_t state = 0;
    std::uint32_t characters = 0;
    std::uint32_t begun = 0;  // bytes on the way that begin a character; an escape has several
    Spelling spelling = kInside;
    std::array<std::pair<char32_t, char32_t>, 3> ranges =
        {};  // ranges of the character that has begun
    std::uint32_t range_count = 0;
  };

  StringTokens& owner;
  const StringShape& shape;
  Inside& out;
  const bool bounded = is_bounded(shape);
  std::unordered_map<std::uint64_t, std::size_t> groups = {};
  // The groups, plus one, of tokens that end between two characters in state `near_state`: by small numbers of
  // characters.
  std::array<std::size_t, 64> near = {};
  std::uint32_t near_state = kDead;
  std::unordered_map<std::uint32_t, std::size_t> exits = {};

  // Returns false if the byte is not allowed, or closes the string.
  bool step(Place& place, std::uint32_t node, unsigned char byte) {
    const Dfa& dfa = *shape.contents;
    if (place.spelling == kInside && byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\') {
      place.state = owner.ascii_steps(dfa, place.state)[byte];
      ++place.characters;
      return place.state != kDead;
    }
    const Spell read = spell(place.spelling, byte, shape.quoting, [&](char32_t low, char32_t high) {
      return dfa.any_in(place.state, low, high);
    });
    switch (read.what) {
      case Spell::What::kReject:
        return false;
      case Spell::What::kClosed:
        if (dfa.states[place.state].accept) close(place, node);
        return false;
      case Spell::What::kPartial:
        note_ranges(place, byte);
        place.spelling = read.next;
        return true;
      case Spell::What::kCharacter:
        place.state = dfa.step(place.state, read.code);
        place.spelling = kInside;
        ++place.characters;
        place.range_count = 0;
        return place.state != kDead;
    }
    return false;
  }

  // Notes which characters may still come of the bytes so far. The speller needs no more if it is refused each time.
  // A byte that does not narrow these ranges leaves them as they are.
  void note_ranges(Place& place, unsigned char byte) const {
    std::uint32_t count = 0;
    spell(place.spelling, byte, shape.quoting, [&](char32_t low, char32_t high) {
      if (count < place.ranges.size()) place.ranges[count++] = {low, high};
      return false;
    });
    if (count > 0) place.range_count = count;
  }

  void close(const Place& place, std::uint32_t node) {
    const std::uint32_t characters = bounded ? place.characters : 0;
    const auto [known, fresh] = exits.try_emplace(characters, out.exits.size());
    if (fresh) out.exits.push_back({characters, {}});
    out.exits[known->second].nodes.push_back(node);
  }

  std::size_t group_of(const Place& place) {
    const bool partial = place.spelling != kInside;
    const std::uint32_t characters = bounded ? place.characters : 0;
    const std::uint32_t state = shape.lengths ? place.state : 0;
    const std::uint32_t spelling = shape.lengths ? place.spelling : partial;
    // Each number fits: kMostDfaStates bounds the states, and tokens are shorter than 64 KiB.
    const std::uint64_t key = (std::uint64_t{state} << 16 | (characters & 0xFFFF)) << 32 | spelling;
    const auto [known, fresh] = groups.try_emplace(key, out.groups.size());
    if (fresh) {
      Group& made = out.groups.emplace_back();
      made.state = state;
      made.characters = characters;
      made.partial = partial;
      if (partial && shape.lengths)
        made.ranges.assign(place.ranges.begin(), place.ranges.begin() + place.range_count);
    }
    return known->second;
  }

  void add(std::size_t group, std::uint32_t id) const {
    if (!out.plain || !allows(owner.trie_->plain(), id))
      out.groups[group].tokens.add(id, owner.trie_->words());
  }

  // The same as group_of() for a place between two characters.
  std::size_t group_near(const Place& place) {
    const std::uint32_t characters = bounded ? place.characters : 0;
    const std::uint32_t state = shape.lengths ? place.state : 0;
    if (near_state != state) near.fill(0);
    near_state = state;
    if (characters >= near.size()) return group_of(place);
    if (near[characters] == 0) near[characters] = group_of(place) + 1;
    return near[characters] - 1;
  }

  // Adds the tokens of the node's subtree and returns true if all of them are plain and stay inside. If the shape's
  // lengths depend on the state, they must also lead back to it.
  bool run_on(const Place& place, std::uint32_t node) {
    const TokenTrie& trie = *owner.trie_;
    if (trie.nodes()[node].subtree < TokenTrie::kLeastRun) return false;
    if (!owner.takes_all(*shape.contents, place.state, node, shape.lengths.has_value()))
      return false;
    Place end = place;
    std::size_t group = group_near(place);
    for (const std::uint32_t id : trie.tokens_of(node)) {
      if (bounded) {
        end.characters = place.characters + trie.characters(id) - place.begun;
        group = group_near(end);
      }
      add(group, id);
    }
    return true;
  }

  void run(std::uint32_t state, Spelling spelling) {
    const TokenTrie& trie = *owner.trie_;
    const std::vector<TokenTrie::Node>& nodes = trie.nodes();
    Place start;
    start.end = nodes[0].subtree;
    start.state = state;
    start.spelling = spelling;
    // After the first half of a pair, the bytes before the second half's digits do not narrow the ranges.
    const auto kind = static_cast<Spelled>(spelling & 0xF);
    if (kind == Spelled::kPairSlash || kind == Spelled::kPairU) {
      const char32_t low = 0x10000 + (((spelling >> 8) - 0xD800) << 10);
      start.ranges[0] = {low, low + 0x3FF};
      start.range_count = 1;
    }
    std::vector<Place> open = {start};
    for (std::uint32_t node = 1; node < nodes[0].subtree;) {
      while (open.back().end <= node)
        open.pop_back();
      const TokenTrie::Node& at = nodes[node];
      Place next = open.back();
      next.end = node + at.subtree;
      next.begun += (at.byte & 0xC0) != 0x80 ? 1 : 0;
      const bool skipped = out.plain && !trie.has_special(node);
      if (skipped || !step(next, node, at.byte)) {
        node = next.end;
        continue;
      }
      if (next.spelling == kInside && run_on(next, node)) {
        node = next.end;
        continue;
      }
      for (std::uint32_t i = 0; i < at.tokens; ++i)
        add(group_of(next), trie.ids()[at.first_token + i]);
      if (at.subtree > 1) open.push_back(next);
      ++node;
    }
  }
};

const StringTokens::AsciiSteps& StringTokens::ascii_steps(const Dfa& dfa, std::uint32_t state) {
  auto& steps = ascii_[&dfa];
  if (steps.empty()) steps.resize(dfa.states.size());
  std::unique_ptr<AsciiSteps>& made = steps[state];
  if (made == nullptr) {
    made = std::make_unique<AsciiSteps>();
    for (std::uint32_t code = 0; code < made->size(); ++code)
      (*made)[code] = dfa.step(state, code);
    bytes_ += sizeof(AsciiSteps);
  }
  return *made;
}

bool StringTokens::takes_all(const Dfa& dfa, std::uint32_t state, std::uint32_t node, bool back) {
  static const CharClasses plain = [] {
    CharClasses out = ~(CharClasses{1} << kNoCharacter);
    for (unsigned char byte = 0; byte < 0x20; ++byte)
      out &= ~(CharClasses{1} << class_of(byte));
    for (const unsigned char sign : {'"', '\\'})
      out &= ~(CharClasses{1} << class_of(sign));
    return out;
  }();
  const CharClasses below = trie_->below(node);
  if ((below & ~plain) != 0) return false;
  auto& known = loops_[&dfa];
  if (known.empty()) {
    known.resize(dfa.states.size());
    bytes_ += known.size() * sizeof(known[0]);
  }
  if (!known[state]) known[state] = loops(dfa, state);
  if ((below & ~*known[state]) == 0) return true;
  if (back) return false;
  const DfaRuns::Free& free = runs_.from(dfa, state);
  return (below & ~free.classes) == 0 && trie_->height(node) <= free.length;
}

const StringTokens::Inside& StringTokens::from(const StringShape& shape, std::uint32_t state,
                                               Spelling spelling) {
  const auto [known, fresh] =
      insides_.try_emplace({shape.contents.get(), shape.lengths ? &shape : nullptr, shape.quoting,
                            is_bounded(shape), state, spelling});
  Inside& inside = known->second;
  if (!fresh) return inside;
  inside.plain = spelling == kInside && shape.safe[state] && !shape.lengths;
  Walk{*this, shape, inside}.run(state, spelling);
  bytes_ += sizeof(Inside);
  for (const Group& group : inside.groups)
    bytes_ += sizeof(Group) + group.tokens.bytes();
  for (const Exit& exit : inside.exits)
    bytes_ += sizeof(Exit) + exit.nodes.capacity() * sizeof(std::uint32_t);
  return inside;
}

bool StringTokens::may_be(const StringShape& shape, const Group& group, std::uint32_t taken) {
  if (shape.max != kUnbounded && taken + group.characters > shape.max) return false;
  taken += group.characters;
  if (!group.partial) return live(shape, group.state, taken);
  if (taken >= shape.max) return false;
  if (!shape.lengths) return true;
  return std::ranges::any_of(shape.contents->states[group.state].ranges,
                             [&](const Dfa::Range& range) {
                               return std::ranges::any_of(group.ranges,
                                                          [&](const auto& wanted) {
                                                            return range.low <= wanted.second &&
                                                                   range.high >= wanted.first;
                                                          }) &&
                                      live(shape, range.to, taken + 1);
                             });
}

bool StringTokens::may_close(const StringShape& shape, const Exit& exit, std::uint32_t taken) {
  if (shape.max != kUnbounded && taken + exit.characters > shape.max) return false;
  return taken + exit.characters >= shape.min;
}

void StringTokens::clear() {
  insides_.clear();
  ascii_.clear();
  loops_.clear();
  runs_.clear();
  bytes_ = 0;
}

}  // namespace bulkhead::constrain

// How the leaves of a grammar take a byte.
#include <algorithm>

#include "worker/constrain/automaton.hpp"
#include "worker/constrain/automaton_pending.hpp"
#include "worker/constrain/spelling.hpp"

namespace bulkhead::constrain {

void Automaton::advance(const Item& item, unsigned char byte, Pending& out) {
  if (item.frame.node >= kHoleNode) return;
  const Node& node = grammar_->nodes[item.frame.node];
  switch (node.kind) {
    case NodeKind::kBytes: {
      Frame frame = item.frame;
      frame.state = grammar_->automata[node.index]->step(frame.state, byte);
      if (frame.state != kDead) out.add(frame, item.parents, *this);
      return;
    }
    case NodeKind::kText:
      return advance_text(item, node, byte, out);
    case NodeKind::kString:
      return advance_string(item, node, byte, out);
    case NodeKind::kKey:
      return advance_key(item, node, byte, out);
    case NodeKind::kEnd:
    case NodeKind::kSplit:
    case NodeKind::kCall:
    case NodeKind::kLoop:
    case NodeKind::kObject:
    case NodeKind::kKeyStart:
    case NodeKind::kArray:
    case NodeKind::kItem:
      return;  // these nodes never wait for a byte
  }
}

namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

// The characters that may still come of the beginning of a character's bytes.
struct Rest {
  std::uint32_t left = 0, length = 0;  // bytes still to come, and of the whole character
  char32_t size = 0, low = 0;          // [low, low + size) have this beginning
  char32_t least = 0, most = 0;        // of all characters of this length

  explicit Rest(Spelling part)
      : left(part >> 4 & 0xF),
        length(part >> 8 & 7),
        size(1U << (6 * left)),
        low((part >> 11) * size),
        least(length == 2   ? 0x80
              : length == 3 ? 0x800
                            : 0x10000),
        most(length == 2   ? 0x7FF
             : length == 3 ? 0xFFFF
                           : kLastCodePoint) {}
  // Returns whether all of [from, from + size) are characters of this length.
  bool whole(char32_t from) const {
    return from >= least && from + size - 1 <= most &&
           (from + size <= kFirstSurrogate || from > kLastSurrogate);
  }
};

// Returns the range of the state that has all characters of this beginning, or null.
const Dfa::Range* range_of(const Dfa::State& state, const Rest& rest) {
  const char32_t low = std::max(rest.low, rest.least);
  char32_t high = std::min<char32_t>(rest.low + rest.size - 1, rest.most);
  if (low < kFirstSurrogate && high >= kFirstSurrogate) high = kFirstSurrogate - 1;
  const auto range = std::ranges::lower_bound(state.ranges, low, {}, &Dfa::Range::high);
  return range == state.ranges.end() || range->low > low || range->high < high ? nullptr : &*range;
}

// The frame has read the beginning of a character. If all characters with this beginning lead to the same state, one
// beginning stands for all beginnings that do so. Otherwise a text would have one configuration for each beginning. A
// vocabulary with characters of many scripts has so many beginnings that a mask would exceed its limit of work. If
// they lead from that state back to it, the frame may as well be there already: so there is one configuration for many
// states, too.
void merge_beginnings(Frame& frame, const Dfa& dfa) {
  const Rest rest(frame.spelling);
  const Dfa::Range* range = range_of(dfa.states[frame.state], rest);
  if (range == nullptr) return;
  const Dfa::Range* back = range_of(dfa.states[range->to], rest);
  if (back != nullptr && back->to == range->to) {
    frame.state = range->to;
    range = back;
  }
  if (!rest.whole(rest.low)) return;
  char32_t first = (std::max(range->low, rest.least) + rest.size - 1) / rest.size * rest.size;
  if (!rest.whole(first)) first = (kLastSurrogate + rest.size) / rest.size * rest.size;
  frame.spelling = spelling(Spelled::kUtf8, rest.left, first / rest.size << 3 | rest.length);
}

}  // namespace

void Automaton::advance_text(const Item& item, const Node& node, unsigned char byte, Pending& out) {
  const Dfa& dfa = *grammar_->automata[node.index];
  Frame frame = item.frame;
  const Spelling at = frame.spelling == 0 ? kInside : frame.spelling;
  const Spell read = spell(at, byte, Quoting::kNone, [&](char32_t low, char32_t high) {
    return dfa.any_in(frame.state, low, high);
  });
  switch (read.what) {
    case Spell::What::kReject:
    case Spell::What::kClosed:
      return;
    case Spell::What::kPartial:
      frame.spelling = read.next;
      merge_beginnings(frame, dfa);
      break;
    case Spell::What::kCharacter:
      frame.state = dfa.step(frame.state, read.code);
      frame.spelling = 0;
      break;
  }
  if (frame.state != kDead) out.add(frame, item.parents, *this);
}

void Automaton::advance_string(const Item& item, const Node& node, unsigned char byte,
                               Pending& out) {
  const StringShape& shape = grammar_->strings[node.index];
  const Dfa& dfa = *shape.contents;
  Frame frame = item.frame;
  const auto rest = [](std::uint32_t bound, std::uint32_t taken) {
    return bound == kUnbounded ? kUnbounded : bound > taken ? bound - taken : 0;
  };
  // Says whether the text can still end after `taken` characters, with the automaton in `state`.
  const auto live = [&](std::uint32_t state, std::uint32_t taken) {
    if (taken > shape.max) return false;
    if (!shape.lengths) return true;
    return shape.lengths->can_finish(state, rest(shape.min, taken), rest(shape.max, taken));
  };
  const Spell read = spell(frame.spelling, byte, shape.quoting, [&](char32_t low, char32_t high) {
    if (frame.count >= shape.max) return false;
    if (!shape.lengths) return dfa.any_in(frame.state, low, high);
    for (const Dfa::Range& range : dfa.states[frame.state].ranges) {
      if (range.low <= high && range.high >= low && live(range.to, frame.count + 1)) return true;
    }
    return false;
  });
  switch (read.what) {
    case Spell::What::kReject:
      return;
    case Spell::What::kClosed:
      if (!dfa.states[frame.state].accept || frame.count < shape.min) return;
      return out.add(Frame{grammar_->after(node, frame.state)}, item.parents, *this);
    case Spell::What::kPartial:
      frame.spelling = read.next;
      return out.take(frame, item.parents, *this);
    case Spell::What::kCharacter:
      frame.state = dfa.step(frame.state, read.code);
      frame.spelling = kInside;
      if (shape.max != kUnbounded || frame.count < shape.min) ++frame.count;
      if (frame.state == kDead || !live(frame.state, frame.count)) return;
      return out.take(frame, item.parents, *this);
  }
}

void Automaton::advance_key(const Item& item, const Node& node, unsigned char byte, Pending& out) {
  const ObjectShape& shape = grammar_->objects[node.index];
  Frame frame = item.frame;
  const ObjectShape::TrieNode& at = shape.trie[frame.state];
  // Says whether any name below the trie's node may come now.
  const auto live = [&](std::uint32_t trie) {
    const std::vector<std::uint32_t>& below = shape.trie[trie].below;
    for (auto index = std::lower_bound(below.begin(), below.end(), frame.count);
         index != below.end() && *index <= shape.next_required[frame.count]; ++index) {
      if (shape.can_take(frame.count, *index, frame.extra)) return true;
    }
    return false;
  };
  const auto first_from = [&](char32_t code) {
    return std::lower_bound(at.next.begin(), at.next.end(), std::pair(code, std::uint32_t{0}));
  };
  const auto end_at = [&](const ObjectShape::TrieNode& name) {
    if (name.ends == kDead || !shape.can_take(frame.count, name.ends, frame.extra)) return;
    Frame back{node.next};
    back.count = name.ends + 1;
    back.extra = shape.counted(frame.extra + 1);
    call(shape.properties[name.ends].member, back, item.parents, out);
  };
  const Spell read = spell(frame.spelling, byte, shape.keys, [&](char32_t low, char32_t high) {
    for (auto next = first_from(low); next != at.next.end() && next->first <= high; ++next) {
      if (live(next->second)) return true;
    }
    return false;
  });
  switch (read.what) {
    case Spell::What::kReject:
      return;
    case Spell::What::kPartial:
      frame.spelling = read.next;
      return out.take(frame, item.parents, *this);
    case Spell::What::kCharacter: {
      const auto next = first_from(read.code);
      if (next == at.next.end() || next->first != read.code || !live(next->second)) return;
      frame.state = next->second;
      frame.spelling = kInside;
      const ObjectShape::TrieNode& reached = shape.trie[frame.state];
      // No character closes a bare key, so the key may have ended here or may be the beginning of a longer key.
      if (shape.keys == Quoting::kNone) end_at(reached);
      if (shape.keys == Quoting::kNone && reached.next.empty()) return;
      return out.take(frame, item.parents, *this);
    }
    case Spell::What::kClosed:
      return end_at(at);
  }
}

}  // namespace bulkhead::constrain

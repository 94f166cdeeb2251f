// Which characters lead a configuration back to itself, and which bytes lead on at all. A walk over a vocabulary asks
// this to take whole subtrees of tokens at once: inside free text, almost every character changes nothing.
#include <algorithm>

#include "worker/constrain/automaton.hpp"
#include "worker/constrain/spelling.hpp"

namespace bulkhead::constrain {
namespace {

// Configurations of more items than this are stepped byte by byte.
constexpr std::size_t kMostAlike = 16;

}  // namespace

bool Automaton::takes_alike(const Item& item, const CharClass& all) const {
  if (all.single || item.frame.node >= kHoleNode) return true;
  const Node& node = grammar_->nodes[item.frame.node];
  switch (node.kind) {
    case NodeKind::kBytes: {
      const Dfa& bytes = *grammar_->automata[node.index];
      if (!all.ascii) return !bytes.any_in(item.frame.state, all.first, all.last);
      return reached_alike(bytes.states[item.frame.state], all).has_value();
    }
    case NodeKind::kText:
      // Within a character no other can begin.
      return item.frame.spelling != 0 ||
             reached_alike(grammar_->automata[node.index]->states[item.frame.state], all)
                 .has_value();
    case NodeKind::kString:
    case NodeKind::kKey:
      return item.frame.spelling == spelling(Spelled::kBefore);
    case NodeKind::kEnd:
    case NodeKind::kSplit:
    case NodeKind::kCall:
    case NodeKind::kLoop:
    case NodeKind::kObject:
    case NodeKind::kKeyStart:
    case NodeKind::kArray:
    case NodeKind::kItem:
      return true;  // these nodes never wait for a byte
  }
  return false;
}

bool Automaton::leads_back(ConfigId config, const CharClass& all) {
  const std::vector<Item>& items = configs_[config].items;
  if (items.size() > kMostAlike) return false;
  if (!std::ranges::all_of(items, [&](const Item& item) { return takes_alike(item, all); }))
    return false;
  ConfigId at = config;
  for (const char byte : all.sample)
    at = step(at, static_cast<unsigned char>(byte));
  return at == config;
}

bool Automaton::runs_on(ConfigId config, CharClasses classes) {
  if (configs_[config].runs_walk != walk_) {
    configs_[config].runs_walk = walk_;
    configs_[config].runs = configs_[config].runs_asked = 0;
  }
  const CharClasses others = configs_[config].runs_asked & ~configs_[config].runs;
  if ((classes & (others | CharClasses{1} << kNoCharacter)) != 0) return false;
  for (std::uint32_t number = 0; number < kNoCharacter; ++number) {
    const CharClasses bit = CharClasses{1} << number;
    if ((classes & bit) == 0) continue;
    if ((configs_[config].runs_asked & bit) == 0) {
      const bool back = leads_back(config, char_class(number));
      configs_[config].runs_asked |= bit;
      if (back) configs_[config].runs |= bit;
    }
    if ((configs_[config].runs & bit) == 0) return false;
  }
  return true;
}

bool Automaton::takes_freely(ConfigId config, CharClasses classes, std::uint32_t length) {
  for (const Item& item : configs_[config].items) {
    if (item.frame.node >= kHoleNode || item.frame.spelling != 0) continue;
    const Node& node = grammar_->nodes[item.frame.node];
    if (node.kind != NodeKind::kText) continue;
    const DfaRuns::Free& free = text_runs_.from(*grammar_->automata[node.index], item.frame.state);
    if ((classes & ~free.classes) == 0 && length <= free.length) return true;
  }
  return false;
}

std::bitset<256> Automaton::takes(ConfigId config) const {
  std::bitset<256> out;
  for (const Item& item : configs_[config].items) {
    if (item.frame.node >= kHoleNode) continue;
    const Node& node = grammar_->nodes[item.frame.node];
    const bool quoted = node.kind == NodeKind::kString || node.kind == NodeKind::kKey;
    if (quoted && item.frame.spelling == spelling(Spelled::kBefore)) {
      out.set('"');
      continue;
    }
    if (node.kind != NodeKind::kBytes && (node.kind != NodeKind::kText || item.frame.spelling != 0))
      return out.set();
    const char32_t most = node.kind == NodeKind::kBytes ? 0xFF : 0x7F;
    for (const Dfa::Range& range :
         grammar_->automata[node.index]->states[item.frame.state].ranges) {
      for (char32_t byte = range.low; byte <= std::min(range.high, most); ++byte)
        out.set(byte);
      if (range.high <= most) continue;
      for (std::size_t byte = 0xC2; byte <= 0xF4; ++byte)
        out.set(byte);
      break;  // the other ranges are still higher
    }
  }
  return out;
}

}  // namespace bulkhead::constrain

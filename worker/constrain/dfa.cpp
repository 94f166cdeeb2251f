// Trimming, literals, products and lengths of the automata in dfa.hpp.
#include "worker/constrain/dfa.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

using State = Dfa::State;
using Range = Dfa::Range;

void append_range(std::vector<Range>& ranges, Range range) {
  if (!ranges.empty() && ranges.back().to == range.to && ranges.back().high + 1 == range.low) {
    ranges.back().high = range.high;
  } else {
    ranges.push_back(range);
  }
}

std::vector<bool> live_states(const Dfa& dfa) {
  std::vector<std::vector<std::uint32_t>> from(dfa.states.size());
  std::vector<std::uint32_t> work;
  std::vector<bool> live(dfa.states.size());
  for (std::uint32_t state = 0; state < dfa.states.size(); ++state) {
    for (const Range& range : dfa.states[state].ranges) {
      if (range.to != kDead) from[range.to].push_back(state);
    }
    if (dfa.states[state].accept) {
      live[state] = true;
      work.push_back(state);
    }
  }
  while (!work.empty()) {
    const std::uint32_t state = work.back();
    work.pop_back();
    for (const std::uint32_t before : from[state]) {
      if (live[before]) continue;
      live[before] = true;
      work.push_back(before);
    }
  }
  return live;
}

}  // namespace

std::uint32_t Dfa::step(std::uint32_t state, char32_t code) const {
  const std::vector<Range>& ranges = states[state].ranges;
  const auto found =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](char32_t wanted, const Range& range) { return wanted < range.low; });
  if (found == ranges.begin() || std::prev(found)->high < code) return kDead;
  return std::prev(found)->to;
}

bool Dfa::any_in(std::uint32_t state, char32_t low, char32_t high) const {
  const std::vector<Range>& ranges = states[state].ranges;
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), low,
                       [](const Range& range, char32_t wanted) { return range.high < wanted; });
  return found != ranges.end() && found->low <= high;
}

bool Dfa::matches(std::u32string_view text) const {
  std::uint32_t state = 0;
  for (const char32_t code : text) {
    state = step(state, code);
    if (state == kDead) return false;
  }
  return states[state].accept;
}

void trim(Dfa& dfa) {
  const std::vector<bool> live = live_states(dfa);
  std::vector<std::uint32_t> renamed(dfa.states.size(), kDead);
  std::vector<std::uint32_t> order = {0};
  renamed[0] = 0;
  Dfa out;
  out.states.clear();
  for (std::size_t at = 0; at < order.size(); ++at) {
    State& old = dfa.states[order[at]];
    State& made = out.states.emplace_back();
    made.accept = old.accept;
    for (const Range& range : old.ranges) {
      if (range.to == kDead || !live[range.to]) continue;
      if (renamed[range.to] == kDead) {
        renamed[range.to] = static_cast<std::uint32_t>(order.size());
        order.push_back(range.to);
      }
      append_range(made.ranges, {range.low, range.high, renamed[range.to]});
    }
  }
  dfa = std::move(out);
}

DfaPtr any_text() {
  static const DfaPtr any = [] {
    auto dfa = std::make_shared<Dfa>();
    dfa->states[0] = {true, {{0, kLastCodePoint, 0}}};
    return dfa;
  }();
  return any;
}

DfaPtr literals(std::span<const std::u32string> texts, bool inside) {
  std::vector<std::map<char32_t, std::uint32_t>> trie(1);
  std::vector<bool> ends(1);
  for (const std::u32string& text : texts) {
    std::uint32_t node = 0;
    for (const char32_t code : text) {
      const auto [entry, fresh] = trie[node].try_emplace(code, trie.size());
      node = entry->second;
      if (!fresh) continue;
      trie.emplace_back();
      ends.push_back(false);
    }
    ends[node] = true;
  }
  auto dfa = std::make_shared<Dfa>();
  const auto other = static_cast<std::uint32_t>(trie.size());  // stands for a text that is none of the literals
  dfa->states.resize(trie.size() + (inside ? 0 : 1));
  for (std::size_t node = 0; node < trie.size(); ++node) {
    State& state = dfa->states[node];
    state.accept = ends[node] == inside;
    char32_t next = 0;
    for (const auto& [code, to] : trie[node]) {
      if (!inside && next < code) append_range(state.ranges, {next, code - 1, other});
      append_range(state.ranges, {code, code, to});
      next = code + 1;
    }
    if (!inside && next <= kLastCodePoint) {
      append_range(state.ranges, {next, kLastCodePoint, other});
    }
  }
  if (!inside) dfa->states[other] = {true, {{0, kLastCodePoint, other}}};
  trim(*dfa);
  return dfa;
}

Result<DfaPtr> intersect(const DfaPtr& a, const DfaPtr& b) {
  if (a == any_text() || a == b) return b;
  if (b == any_text()) return a;
  auto out = std::make_shared<Dfa>();
  std::unordered_map<std::uint64_t, std::uint32_t> names = {{0, 0}};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs = {{0, 0}};
  std::size_t ranges = 0;
  for (std::size_t at = 0; at < pairs.size(); ++at) {
    const auto [left, right] = pairs[at];
    out->states.resize(pairs.size());
    const std::vector<Range>& first = a->states[left].ranges;
    const std::vector<Range>& second = b->states[right].ranges;
    std::vector<Range> made;
    for (std::size_t i = 0, j = 0; i < first.size() && j < second.size();) {
      const char32_t low = std::max(first[i].low, second[j].low);
      const char32_t high = std::min(first[i].high, second[j].high);
      if (low <= high) {
        const std::uint64_t key = (std::uint64_t{first[i].to} << 32) | second[j].to;
        const auto [entry, fresh] = names.try_emplace(key, pairs.size());
        if (fresh) pairs.emplace_back(first[i].to, second[j].to);
        append_range(made, {low, high, entry->second});
      }
      if (first[i].high < second[j].high) {
        ++i;
      } else {
        ++j;
      }
    }
    ranges += made.size();
    if (pairs.size() > kMostDfaStates || ranges > kMostDfaRanges) {
      return Error(ErrorCode::kResourceExhausted, "the patterns together are too complex");
    }
    out->states[at].accept = a->states[left].accept && b->states[right].accept;
    out->states[at].ranges = std::move(made);
  }
  trim(*out);
  return DfaPtr(out);
}

DfaPtr complement(const Dfa& a) {
  auto out = std::make_shared<Dfa>(a);
  const auto other = static_cast<std::uint32_t>(a.states.size());
  for (State& state : out->states) {
    std::vector<Range> filled;
    char32_t next = 0;
    for (const Range& range : state.ranges) {
      if (next < range.low) append_range(filled, {next, range.low - 1, other});
      append_range(filled, range);
      next = range.high + 1;
    }
    if (next <= kLastCodePoint) append_range(filled, {next, kLastCodePoint, other});
    state.ranges = std::move(filled);
    state.accept = !state.accept;
  }
  out->states.push_back({true, {{0, kLastCodePoint, other}}});
  trim(*out);
  return out;
}

Result<Lengths> Lengths::of(const Dfa& dfa, std::uint32_t most) {
  constexpr std::size_t kMostCells = 40'000'000;
  Lengths lengths;
  const std::size_t count = dfa.states.size();
  std::vector<bool> row(count);
  for (std::size_t state = 0; state < count; ++state)
    row[state] = dfa.states[state].accept;
  std::map<std::vector<bool>, std::uint32_t> seen;
  std::size_t edges = count;
  for (const State& state : dfa.states)
    edges += state.ranges.size();
  while (true) {
    const auto [entry, fresh] =
        seen.try_emplace(row, static_cast<std::uint32_t>(lengths.exact_.size()));
    if (!fresh) {
      lengths.cycle_ = entry->second;
      return lengths;
    }
    lengths.exact_.push_back(row);
    // Nobody asks for lengths beyond `most`; the last row may then repeat.
    if (lengths.exact_.size() > most) {
      lengths.cycle_ = static_cast<std::uint32_t>(lengths.exact_.size()) - 1;
      return lengths;
    }
    if (lengths.exact_.size() * edges > kMostCells) {
      return Error(ErrorCode::kResourceExhausted,
                   "the pattern is too complex together with the length");
    }
    std::vector<bool> before(count);
    for (std::size_t state = 0; state < count; ++state) {
      for (const Range& range : dfa.states[state].ranges) {
        if (row[range.to]) {
          before[state] = true;
          break;
        }
      }
    }
    row = std::move(before);
  }
}

bool Lengths::at(std::uint32_t state, std::uint32_t length) const {
  const auto rows = static_cast<std::uint32_t>(exact_.size());
  if (length >= rows) length = cycle_ + (length - cycle_) % (rows - cycle_);
  return exact_[length][state];
}

bool Lengths::can_finish(std::uint32_t state, std::uint32_t low, std::uint32_t high) const {
  // After one round of the cycle, the rows repeat.
  const auto rows = static_cast<std::uint32_t>(exact_.size());
  const std::uint64_t last = std::uint64_t{std::max(low, cycle_)} + (rows - cycle_);
  for (std::uint64_t length = low; length <= std::min<std::uint64_t>(high, last); ++length) {
    if (at(state, static_cast<std::uint32_t>(length))) return true;
  }
  return false;
}

bool decode_utf8(std::string_view text, std::u32string& out) {
  if (!model::valid_utf8(text)) return false;
  out.clear();
  while (!text.empty()) {
    const model::DecodedChar decoded = model::decode_char(text);
    out.push_back(decoded.code);
    text.remove_prefix(decoded.bytes);
  }
  return true;
}

}  // namespace bulkhead::constrain

// Simplifies the terms of term.hpp, derives them, and makes the automaton of a term.
#include "worker/constrain/term.hpp"

#include <algorithm>
#include <tuple>

namespace bulkhead::constrain {
namespace {

// The most work for one automaton: derivatives, parts that are sorted and steps along chains. It takes some tens of
// milliseconds.
constexpr std::uint64_t kMostTermWork = 300'000;
constexpr std::size_t kMostTerms = 200'000;
constexpr std::size_t kPartsPerWork = 8;  // parts of an alternative that are sorted

}  // namespace

CodeRanges normalise(CodeRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodeRanges out;
  for (const auto& [low, high] : ranges) {
    if (low > high) continue;
    if (!out.empty() && low <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.emplace_back(low, high);
    }
  }
  return out;
}

CodeRanges invert(const CodeRanges& ranges) {
  CodeRanges out;
  char32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (next < low) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return out;
}

bool contains(const CodeRanges& ranges, char32_t code) {
  const auto found =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](char32_t wanted, const std::pair<char32_t, char32_t>& range) {
                         return wanted < range.first;
                       });
  return found != ranges.begin() && std::prev(found)->second >= code;
}

Terms::Terms() {
  intern({Kind::kNothing, {}, 0, 0, false});
  intern({Kind::kEmpty, {}, 0, 0, true});
  anything_ = repeat(chars({{0, kLastCodePoint}}), 0, kUnbounded);
}

TermId Terms::intern(Term term) {
  const auto [entry, fresh] = ids_.try_emplace(term, static_cast<TermId>(terms_.size()));
  if (fresh) terms_.push_back(std::move(term));
  return entry->second;
}

TermId Terms::chars(CodeRanges ranges) {
  ranges = normalise(std::move(ranges));
  if (ranges.empty()) return nothing();
  const auto [entry, fresh] =
      class_ids_.try_emplace(ranges, static_cast<std::uint32_t>(classes_.size()));
  if (fresh) classes_.push_back(std::move(ranges));
  return intern({Kind::kChars, {}, entry->second, 0, false});
}

TermId Terms::text(std::u32string_view text) {
  TermId out = empty();
  for (auto code = text.rbegin(); code != text.rend(); ++code) {
    out = cat(chars({{*code, *code}}), out);
  }
  return out;
}

TermId Terms::cat(TermId a, TermId b) {
  if (a == nothing() || b == nothing()) return nothing();
  if (a == empty()) return b;
  if (b == empty()) return a;
  if (terms_[a].kind == Kind::kCat) {  // chains lean to the right, so that equal ones look equal
    const std::vector<TermId> parts = terms_[a].parts;
    return cat(parts[0], cat(parts[1], b));
  }
  return intern({Kind::kCat, {a, b}, 0, 0, terms_[a].nullable && terms_[b].nullable});
}

TermId Terms::either(std::vector<TermId> parts) {
  std::vector<TermId> flat;
  for (const TermId part : parts) {
    if (terms_[part].kind == Kind::kEither) {
      flat.insert(flat.end(), terms_[part].parts.begin(), terms_[part].parts.end());
    } else if (part != nothing()) {
      flat.push_back(part);
    }
  }
  work_ += flat.size() / kPartsPerWork;
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (std::binary_search(flat.begin(), flat.end(), anything_) && anything_ != 0) return anything_;
  if (flat.empty()) return nothing();
  if (flat.size() == 1) return flat[0];
  bool any = false;
  for (const TermId part : flat)
    any = any || terms_[part].nullable;
  return intern({Kind::kEither, std::move(flat), 0, 0, any});
}

TermId Terms::both(std::vector<TermId> parts) {
  std::vector<TermId> flat;
  for (const TermId part : parts) {
    if (part == nothing()) return nothing();
    if (terms_[part].kind == Kind::kBoth) {
      flat.insert(flat.end(), terms_[part].parts.begin(), terms_[part].parts.end());
    } else if (part != anything_) {
      flat.push_back(part);
    }
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return anything_;
  if (flat.size() == 1) return flat[0];
  bool all = true;
  for (const TermId part : flat)
    all = all && terms_[part].nullable;
  if (flat[0] == empty()) return all ? empty() : nothing();
  return intern({Kind::kBoth, std::move(flat), 0, 0, all});
}

TermId Terms::negate(TermId a) {
  if (terms_[a].kind == Kind::kNot) return terms_[a].parts[0];
  if (a == nothing()) return anything_;
  if (a == anything_) return nothing();
  return intern({Kind::kNot, {a}, 0, 0, !terms_[a].nullable});
}

TermId Terms::repeat(TermId a, std::uint32_t min, std::uint32_t max) {
  if (max == 0 || a == empty()) return empty();
  if (a == nothing()) return min == 0 ? empty() : nothing();
  if (min == 1 && max == 1) return a;
  if (terms_[a].nullable) min = 0;
  if (terms_[a].kind == Kind::kRepeat && terms_[a].min == 0 && terms_[a].max == kUnbounded) {
    return a;
  }
  return intern({Kind::kRepeat, {a}, min, max, min == 0});
}

TermId Terms::derive_cat(TermId term, char32_t code, std::map<TermId, TermId>& done) {
  // Follows the chain of a nullable head without recursion, which would be as deep as the text is long.
  std::vector<TermId> ways;
  for (; terms_[term].kind == Kind::kCat; ++work_) {
    const TermId head = terms_[term].parts[0];
    const TermId rest = terms_[term].parts[1];
    ways.push_back(cat(derive(head, code, done), rest));
    if (!terms_[head].nullable) return either(std::move(ways));
    term = rest;
  }
  ways.push_back(derive(term, code, done));
  return either(std::move(ways));
}

TermId Terms::derive(TermId id, char32_t code, std::map<TermId, TermId>& done) {
  if (const auto known = done.find(id); known != done.end()) return known->second;
  if (++work_ > kMostTermWork) return nothing();  // automaton() gives up
  const Term term = terms_[id];
  TermId out = nothing();
  switch (term.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      break;
    case Kind::kChars:
      out = contains(classes_[term.min], code) ? empty() : nothing();
      break;
    case Kind::kCat:
      out = derive_cat(id, code, done);
      break;
    case Kind::kEither:
    case Kind::kBoth: {
      std::vector<TermId> parts;
      for (const TermId part : term.parts)
        parts.push_back(derive(part, code, done));
      out = term.kind == Kind::kEither ? either(std::move(parts)) : both(std::move(parts));
      break;
    }
    case Kind::kNot:
      out = negate(derive(term.parts[0], code, done));
      break;
    case Kind::kRepeat: {
      const std::uint32_t max = term.max == kUnbounded ? kUnbounded : term.max - 1;
      const TermId rest = repeat(term.parts[0], term.min == 0 ? 0 : term.min - 1, max);
      out = cat(derive(term.parts[0], code, done), rest);
      break;
    }
  }
  done.emplace(id, out);
  return out;
}

void Terms::first_classes(TermId id, std::vector<std::uint32_t>& classes,
                          std::vector<bool>& seen) const {
  if (seen[id]) return;
  seen[id] = true;
  const Term& term = terms_[id];
  switch (term.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      break;
    case Kind::kChars:
      classes.push_back(term.min);
      break;
    case Kind::kCat:
      first_classes(term.parts[0], classes, seen);
      if (terms_[term.parts[0]].nullable) first_classes(term.parts[1], classes, seen);
      break;
    case Kind::kEither:
    case Kind::kBoth:
    case Kind::kNot:
    case Kind::kRepeat:
      for (const TermId part : term.parts)
        first_classes(part, classes, seen);
      break;
  }
}

Result<std::vector<std::pair<char32_t, char32_t>>> Terms::elementary(
    const std::vector<std::uint32_t>& classes) const {
  std::vector<char32_t> starts = {0};
  for (const std::uint32_t index : classes) {
    for (const auto& [low, high] : classes_[index]) {
      starts.push_back(low);
      if (high < kLastCodePoint) starts.push_back(high + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  std::vector<std::pair<char32_t, char32_t>> out;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    out.emplace_back(starts[i], i + 1 < starts.size() ? starts[i + 1] - 1 : kLastCodePoint);
  }
  return out;
}

Result<DfaPtr> Terms::automaton(TermId root) {
  const auto too_much = [] {
    return Error(ErrorCode::kResourceExhausted, "the expression is too complex");
  };
  auto dfa = std::make_shared<Dfa>();
  std::map<TermId, std::uint32_t> names = {{root, 0}};
  std::vector<TermId> order = {root};
  std::size_t ranges = 0;
  work_ = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const TermId term = order[at];
    std::vector<std::uint32_t> classes;
    std::vector<bool> seen(terms_.size());
    first_classes(term, classes, seen);
    work_ += terms_.size() / 64;
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    BULKHEAD_TRY(const auto pieces, elementary(classes));
    std::map<std::vector<bool>, TermId> by_side;  // the classes that a character belongs to decide
    Dfa::State state;
    state.accept = nullable(term);
    for (const auto& [low, high] : pieces) {
      std::vector<bool> side;
      side.reserve(classes.size());
      for (const std::uint32_t index : classes)
        side.push_back(contains(classes_[index], low));
      work_ += 1 + classes.size() / 8;
      auto known = by_side.find(side);
      if (known == by_side.end()) {
        std::map<TermId, TermId> done;
        known = by_side.emplace(std::move(side), derive(term, low, done)).first;
      }
      if (work_ > kMostTermWork || terms_.size() > kMostTerms) return too_much();
      if (known->second == nothing()) continue;
      const auto [entry, fresh] =
          names.try_emplace(known->second, static_cast<std::uint32_t>(order.size()));
      if (fresh) order.push_back(known->second);
      if (!state.ranges.empty() && state.ranges.back().to == entry->second &&
          state.ranges.back().high + 1 == low) {
        state.ranges.back().high = high;
      } else {
        state.ranges.push_back({low, high, entry->second});
      }
    }
    ranges += state.ranges.size();
    if (order.size() > kMostDfaStates || ranges > kMostDfaRanges) return too_much();
    dfa->states.push_back(std::move(state));
    if (at == 0) dfa->states.erase(dfa->states.begin());  // removes the state of the empty automaton
  }
  trim(*dfa);
  return DfaPtr(dfa);
}

}  // namespace bulkhead::constrain

#include "worker/constrain/dfa_runs.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace bulkhead::constrain {

DfaRuns::Row& DfaRuns::row(const Dfa& dfa, std::uint32_t state) {
  if (last_ != &dfa) {
    last_ = &dfa;
    last_rows_ = &rows_[&dfa];  // stays where it is when others are added
    if (last_rows_->empty()) last_rows_->resize(dfa.states.size());
  }
  std::unique_ptr<Row>& known = (*last_rows_)[state];
  if (known != nullptr) return *known;
  known = std::make_unique<Row>();
  bytes_ += sizeof(Row);
  std::vector<std::pair<std::uint32_t, CharClasses>> ways;
  for (std::uint32_t number = 0; number < kNoCharacter; ++number) {
    const std::uint32_t to = reached_alike(dfa.states[state], char_class(number)).value_or(kDead);
    if (to == kDead) continue;
    auto way = std::ranges::find(ways, to, &std::pair<std::uint32_t, CharClasses>::first);
    if (way == ways.end()) way = ways.insert(way, {to, 0});
    way->second |= CharClasses{1} << number;
  }
  for (const auto& [to, taken] : ways) {
    if (std::popcount(taken) <= std::popcount(known->taken)) continue;
    known->to = to;
    known->taken = taken;
  }
  return *known;
}

DfaRuns::Free DfaRuns::find(const Dfa& dfa, std::uint32_t state) {
  Free out;
  out.classes = row(dfa, state).taken;
  if (out.classes == 0) return out;
  for (std::uint32_t at = state; out.length < kMostLength; ++out.length) {
    const Row& known = row(dfa, at);
    if ((out.classes & ~known.taken) != 0) break;
    at = known.to;
  }
  return out;
}

const DfaRuns::Free& DfaRuns::from(const Dfa& dfa, std::uint32_t state) {
  Row& known = row(dfa, state);
  if (!known.free) known.free = find(dfa, state);
  return *known.free;
}

void DfaRuns::clear() {
  rows_.clear();
  last_ = nullptr;
  last_rows_ = nullptr;
  bytes_ = 0;
}

}  // namespace bulkhead::constrain

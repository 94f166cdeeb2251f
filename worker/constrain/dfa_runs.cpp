#include "worker/constrain/dfa_runs.hpp"

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
  bool one = true;
  for (std::uint32_t number = 0; number < kNoCharacter; ++number) {
    const std::uint32_t to = reached_alike(dfa.states[state], char_class(number)).value_or(kDead);
    if (to == kDead) continue;
    one = one && (known->taken == 0 || known->to == to);
    known->taken |= CharClasses{1} << number;
    known->to = to;
  }
  if (!one) known->taken = 0;
  return *known;
}

DfaRuns::Free DfaRuns::find(const Dfa& dfa, std::uint32_t state) {
  Free out;
  out.classes = row(dfa, state).taken;
  if (out.classes == 0) return out;
  bool alike = true;
  for (std::uint32_t at = state; out.length < kMostLength; ++out.length) {
    const Row& known = row(dfa, at);
    if ((out.classes & ~known.taken) != 0) break;
    at = known.to;
    alike = alike && dfa.states[at].accept == dfa.states[state].accept;
    if (alike) out.alike = out.length + 1;
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

// The automaton of number.hpp: its states are what must be remembered of the digits so far.
#include "worker/constrain/number.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

namespace bulkhead::constrain {
namespace {

constexpr std::uint32_t kMostDigits = 32;

// How the digits so far compare with a bound's digits at the same places.
enum class Side : std::uint8_t { kLess, kEqual, kGreater };

struct Progress {
  enum class Phase : std::uint8_t {
    kStart,
    kSign,
    kZero,
    kWhole,
    kPoint,
    kFraction,
    kE,
    kESign,
    kExponent
  };
  Phase phase = Phase::kStart;
  bool negative = false;
  bool whole_zero = false;
  bool nonzero_fraction = false;
  std::uint32_t digits = 0;  // of the whole part, then of the fraction, then of the exponent
  Side low = Side::kEqual, high = Side::kEqual;
  std::vector<std::uint32_t> rests;  // modulo multiples, then not_multiples

  auto key() const {
    return std::tie(phase, negative, whole_zero, nonzero_fraction, digits, low, high, rests);
  }
  bool operator<(const Progress& other) const { return key() < other.key(); }
  bool operator==(const Progress& other) const { return key() == other.key(); }
};

Side against(char digit, char bound) {
  return digit < bound ? Side::kLess : digit > bound ? Side::kGreater : Side::kEqual;
}

class Builder {
 public:
  explicit Builder(const NumberRange& range) : range_(range) {
    free_ = !range.low && !range.high && range.multiples.empty() && range.not_multiples.empty() &&
            !range.integer && !range.fraction;
    most_whole_ = kMostDigits;
    if (range.low)
      most_whole_ = std::max<std::uint32_t>(most_whole_, range.low->value.whole.size());
    if (range.high)
      most_whole_ = std::max<std::uint32_t>(most_whole_, range.high->value.whole.size());
    most_fraction_ = kMostDigits;
    if (range.low)
      most_fraction_ =
          std::max<std::uint32_t>(most_fraction_, range.low->value.fraction.size() + 1);
    if (range.high)
      most_fraction_ =
          std::max<std::uint32_t>(most_fraction_, range.high->value.fraction.size() + 1);
    // Each remainder multiplies the number of states. If there are remainders, digits are counted only for the
    // bounds.
    count_digits_ =
        (range.multiples.empty() && range.not_multiples.empty()) || range.low || range.high;
    if (count_digits_) fit_digits();
  }

  Result<DfaPtr> build() {
    auto dfa = std::make_shared<Dfa>();
    dfa->states.clear();
    std::map<Progress, std::uint32_t> names;
    std::vector<Progress> order(1);
    order[0].rests.assign(range_.multiples.size() + range_.not_multiples.size(), 0);
    names.emplace(order[0], 0);
    for (std::size_t at = 0; at < order.size(); ++at) {
      Dfa::State state;
      state.accept = accepts(order[at]);
      // Where the last character leads. Most digits lead where the digit before them does.
      std::uint32_t to = 0;
      for (const char c : std::string_view("+-.0123456789Ee")) {
        std::optional<Progress> next = step(order[at], c);
        if (!next || !possible(*next)) continue;
        if (state.ranges.empty() || !(*next == order[to])) {
          const auto [entry, fresh] =
              names.try_emplace(*next, static_cast<std::uint32_t>(order.size()));
          to = entry->second;
          if (fresh) order.push_back(*std::move(next));
        }
        const auto code = static_cast<char32_t>(c);
        state.ranges.push_back({code, code, to});
      }
      dfa->states.push_back(std::move(state));
      if (order.size() > kMostDfaStates) {
        return Error(ErrorCode::kResourceExhausted, "the bounds of the number are too complex");
      }
    }
    trim(*dfa);
    return DfaPtr(dfa);
  }

 private:
  using Phase = Progress::Phase;

  // Leaves out the longest numbers if each remainder of each length would take too many states.
  void fit_digits() {
    constexpr std::uint64_t kFewestDigits = 9;
    std::uint64_t remainders = 1;
    for (const std::vector<std::uint32_t>* divisors : {&range_.multiples, &range_.not_multiples}) {
      for (const std::uint32_t divisor : *divisors)
        remainders = std::min<std::uint64_t>(remainders * divisor, kMostDfaStates);
    }
    if (remainders * most_whole_ < kMostDfaStates) return;
    std::uint64_t least = kFewestDigits;
    for (const auto& bound : {range_.low, range_.high}) {
      if (bound) least = std::max<std::uint64_t>(least, bound->value.whole.size() + 1);
    }
    const std::uint64_t fitting = kMostDfaStates / 2 / remainders;
    if (fitting >= least) most_whole_ = static_cast<std::uint32_t>(fitting);
  }

  std::optional<Progress> step(Progress at, char c) const {
    const bool digit = c >= '0' && c <= '9';
    switch (at.phase) {
      case Phase::kStart:
        if (c == '-') {
          at.negative = true;
          at.phase = Phase::kSign;
          return at;
        }
        [[fallthrough]];
      case Phase::kSign:
        if (!digit) return std::nullopt;
        at.phase = c == '0' ? Phase::kZero : Phase::kWhole;
        at.whole_zero = c == '0';
        return whole_digit(std::move(at), c);
      case Phase::kZero:
      case Phase::kWhole:
        if (digit) {
          if (at.phase == Phase::kZero || at.digits >= most_whole_) return std::nullopt;
          return whole_digit(std::move(at), c);
        }
        if (c == '.' && !range_.integer && range_.multiples.empty()) {
          end_whole(at);
          at.phase = Phase::kPoint;
          at.digits = 0;
          return at;
        }
        return exponent(std::move(at), c);
      case Phase::kPoint:
      case Phase::kFraction:
        if (digit) {
          if (at.digits >= most_fraction_) return std::nullopt;
          compare_fraction(at.low, range_.low, at.digits, c);
          compare_fraction(at.high, range_.high, at.digits, c);
          if (c != '0') at.nonzero_fraction = true;
          ++at.digits;
          at.phase = Phase::kFraction;
          return at;
        }
        if (at.phase == Phase::kPoint) return std::nullopt;
        return exponent(std::move(at), c);
      case Phase::kE:
        if (c == '+' || c == '-') {
          at.phase = Phase::kESign;
          return at;
        }
        [[fallthrough]];
      case Phase::kESign:
      case Phase::kExponent:
        if (!digit || at.digits >= 2) return std::nullopt;
        at.phase = Phase::kExponent;
        ++at.digits;
        return at;
    }
    return std::nullopt;
  }

  std::optional<Progress> exponent(Progress at, char c) const {
    if (!free_ || (c != 'e' && c != 'E')) return std::nullopt;
    at.phase = Phase::kE;
    at.digits = 0;
    at.nonzero_fraction = false;
    return at;
  }

  Progress whole_digit(Progress at, char c) const {
    compare_whole(at.low, range_.low, at.digits, c);
    compare_whole(at.high, range_.high, at.digits, c);
    for (std::size_t i = 0; i < at.rests.size(); ++i) {
      const std::uint32_t divisor = i < range_.multiples.size()
                                        ? range_.multiples[i]
                                        : range_.not_multiples[i - range_.multiples.size()];
      at.rests[i] =
          static_cast<std::uint32_t>((std::uint64_t{at.rests[i]} * 10 + (c - '0')) % divisor);
    }
    if (count_digits_) ++at.digits;
    return at;
  }

  static void compare_whole(Side& side, const std::optional<NumberRange::Bound>& bound,
                            std::uint32_t place, char c) {
    if (!bound || side != Side::kEqual || place >= bound->value.whole.size()) return;
    side = against(c, bound->value.whole[place]);
  }

  static void compare_fraction(Side& side, const std::optional<NumberRange::Bound>& bound,
                               std::uint32_t place, char c) {
    if (!bound || side != Side::kEqual) return;
    side = against(c, place < bound->value.fraction.size() ? bound->value.fraction[place] : '0');
  }

  // A number with fewer digits than the bound is less, whatever its digits are.
  static Side with_length(Side side, const std::optional<NumberRange::Bound>& bound,
                          std::uint32_t digits) {
    if (!bound || digits == bound->value.whole.size()) return side;
    return digits < bound->value.whole.size() ? Side::kLess : Side::kGreater;
  }

  void end_whole(Progress& at) const {
    at.low = with_length(at.low, range_.low, at.digits);
    at.high = with_length(at.high, range_.high, at.digits);
  }

  // Says whether some number that begins so may be within the bounds. Forgets what no longer matters, so that there are
  // fewer states: a number with more digits than a bound is greater, whatever its digits are.
  bool possible(Progress& at) const {
    const bool whole = at.phase == Phase::kZero || at.phase == Phase::kWhole;
    const bool fraction = at.phase == Phase::kPoint || at.phase == Phase::kFraction;
    if (!whole && !fraction) return true;
    for (const bool low : {true, false}) {
      const std::optional<NumberRange::Bound>& bound = low ? range_.low : range_.high;
      Side& side = low ? at.low : at.high;
      if (!bound) continue;
      if (whole && at.digits <= bound->value.whole.size()) continue;
      if (whole) side = Side::kGreater;
      if (side == Side::kEqual) continue;
      const int order = place(at, side, *bound);
      if (low ? order < 0 : order > 0) return false;
    }
    return true;
  }

  // Returns how the number's magnitude compares with the bound's; then the comparison with both signs.
  static int place(const Progress& at, Side side, const NumberRange::Bound& bound) {
    const bool zero_bound = bound.value.whole == "0" && bound.value.fraction.empty();
    int order = side == Side::kLess ? -1 : side == Side::kGreater ? 1 : 0;
    // The digits are equal so far, and the bound has more: a bound's fraction has no trailing zeros.
    if (order == 0) {
      const bool in_fraction = at.phase == Phase::kFraction || at.phase == Phase::kPoint;
      const std::size_t seen = in_fraction ? at.digits : 0;
      if (seen < bound.value.fraction.size()) order = -1;
    }
    if (zero_bound) return order == 0 ? 0 : (at.negative ? -1 : 1);
    if (at.negative != bound.value.negative) {
      return at.negative ? -1 : 1;  // the caller handles -0 against a negative bound
    }
    return at.negative ? -order : order;
  }

  bool accepts(Progress at) const {
    switch (at.phase) {
      case Phase::kStart:
      case Phase::kSign:
      case Phase::kPoint:
      case Phase::kE:
      case Phase::kESign:
        return false;
      case Phase::kExponent:
        return true;
      case Phase::kZero:
      case Phase::kWhole:
        end_whole(at);
        break;
      case Phase::kFraction:
        break;
    }
    if (range_.fraction && !at.nonzero_fraction) return false;
    for (std::size_t i = 0; i < at.rests.size(); ++i) {
      const bool divides = at.rests[i] == 0 && !at.nonzero_fraction;
      if (divides != (i < range_.multiples.size())) return false;
    }
    // A bounded number never writes zero as -0, because the comparison would have to ignore the sign.
    const bool bounded = range_.low || range_.high;
    if (bounded && at.negative && is_zero(at)) return false;
    if (range_.low) {
      const int order = place(at, at.low, *range_.low);
      if (order < 0 || (order == 0 && range_.low->exclusive)) return false;
    }
    if (range_.high) {
      const int order = place(at, at.high, *range_.high);
      if (order > 0 || (order == 0 && range_.high->exclusive)) return false;
    }
    return true;
  }

  static bool is_zero(const Progress& at) { return at.whole_zero && !at.nonzero_fraction; }

  const NumberRange& range_;
  bool free_ = false;
  bool count_digits_ = true;
  std::uint32_t most_whole_ = 0, most_fraction_ = 0;
};

// Splits a text such as "-12.5e-3" into its digits.
Result<Decimal> of_text(std::string text) {
  Decimal out;
  long exponent = 0;
  if (const std::size_t e = text.find_first_of("eE"); e != text.npos) {
    exponent = std::strtol(text.c_str() + e + 1, nullptr, 10);
    text.resize(e);
  }
  if (!text.empty() && text[0] == '-') {
    out.negative = true;
    text.erase(0, 1);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point);
  if (point < text.size()) digits += text.substr(point + 1);
  long whole = static_cast<long>(point) + exponent;
  if (exponent > 400 || exponent < -400) {
    return Error(ErrorCode::kUnsupported, "a number of more than 400 digits");
  }
  if (whole < 0) {
    digits.insert(0, static_cast<std::size_t>(-whole), '0');
    whole = 0;
  }
  if (static_cast<std::size_t>(whole) > digits.size()) {
    digits.append(static_cast<std::size_t>(whole) - digits.size(), '0');
  }
  out.whole = digits.substr(0, static_cast<std::size_t>(whole));
  out.fraction = digits.substr(static_cast<std::size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (!out.fraction.empty() && out.fraction.back() == '0')
    out.fraction.pop_back();
  if (out.whole == "0" && out.fraction.empty()) out.negative = false;
  return out;
}

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);
}

}  // namespace

Result<Decimal> Decimal::of(const nlohmann::json& number) {
  if (!number.is_number()) return Error(ErrorCode::kInvalidArgument, "not a number");
  return of_text(number.dump());
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_magnitudes(b, a) : compare_magnitudes(a, b);
}

Result<DfaPtr> number_automaton(const NumberRange& range) {
  return Builder(range).build();
}

}  // namespace bulkhead::constrain

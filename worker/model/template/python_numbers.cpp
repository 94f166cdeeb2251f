// Numbers: kinds, order, arithmetic, reading and writing.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/python.hpp"
#include "worker/model/template/python_arithmetic.hpp"

namespace bulkhead::jinja {
namespace {

Ordering order(bool less, bool greater) {
  return less ? Ordering::kLess : greater ? Ordering::kGreater : Ordering::kEqual;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

// Removes underscores between digits; returns nothing if an underscore is anywhere else.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() ||
               !std::isxdigit(static_cast<unsigned char>(text[i - 1])) ||
               !std::isxdigit(static_cast<unsigned char>(text[i + 1]))) {
      return std::nullopt;
    }
  }
  return out;
}

bool fits(const Integer& value) {
  return value >= std::numeric_limits<std::int64_t>::min() &&
         value <= std::numeric_limits<std::int64_t>::max();
}

std::int64_t small_of(const Value& value) {
  return value.as_bool() != nullptr ? static_cast<std::int64_t>(*value.as_bool()) : *value.as_int();
}

}  // namespace

bool is_number(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
      return true;
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kText:
    case Kind::kList:
    case Kind::kDict:
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop:
      break;
  }
  return false;
}

bool is_integer(const Value& value) {
  return is_number(value) && value.as_float() == nullptr;
}

double to_double(const Value& number) {
  if (const double* value = number.as_float()) return *value;
  if (const BigInteger* big = number.as_big()) {
    const double value = big->value.convert_to<double>();
    if (std::isinf(value)) fail("computes with an integer too large for a float");
    return value;
  }
  return static_cast<double>(small_of(number));
}

Integer to_integer(const Value& integer) {
  if (const BigInteger* big = integer.as_big()) return big->value;
  return Integer(small_of(integer));
}

std::int64_t to_int64(const Value& integer, std::string_view what) {
  require_defined(integer);
  if (!is_integer(integer))
    fail(std::string(what) + " has to be an integer, and is " + a_type(integer));
  if (const BigInteger* big = integer.as_big())
    return big->value < 0 ? std::numeric_limits<std::int64_t>::min()
                          : std::numeric_limits<std::int64_t>::max();
  return small_of(integer);
}

Ordering compare_numbers(const Value& a, const Value& b) {
  if (a.as_float() == nullptr && b.as_float() == nullptr) {
    if (a.as_big() == nullptr && b.as_big() == nullptr)
      return order(small_of(a) < small_of(b), small_of(a) > small_of(b));
    const Integer left = to_integer(a);
    const Integer right = to_integer(b);
    return order(left<right, left> right);
  }
  if (a.as_big() != nullptr || b.as_big() != nullptr) {
    const double left = a.as_big() ? a.as_big()->value.convert_to<double>() : to_double(a);
    const double right = b.as_big() ? b.as_big()->value.convert_to<double>() : to_double(b);
    if (std::isnan(left) || std::isnan(right)) return Ordering::kUnordered;
    return order(left<right, left> right);
  }
  // A mantissa of 64 bits holds every int64 exactly.
  const auto wide = [](const Value& value) {
    return value.as_float() != nullptr ? static_cast<long double>(*value.as_float())
                                       : static_cast<long double>(small_of(value));
  };
  if (std::isnan(wide(a)) || std::isnan(wide(b))) return Ordering::kUnordered;
  return order(wide(a) < wide(b), wide(a) > wide(b));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  const std::string_view power = text.substr(e + 1 + (text[e + 1] == '+' ? 1 : 0));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    const std::string size = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (size.size() < 2 ? "0" : "") + size;
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  const auto whole = static_cast<std::size_t>(exponent + 1);
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<double> parse_float(std::string_view raw) {
  const std::optional<std::string> clean = without_underscores(trimmed(raw));
  if (!clean || clean->empty()) return std::nullopt;
  std::string text = lowered(*clean);
  const bool negative = text.front() == '-';
  if (text.front() == '+' || text.front() == '-') text.erase(0, 1);
  double value = 0;
  if (text == "inf" || text == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (text == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (text.empty() || text.find_first_not_of("0123456789.e+-") != text.npos) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end != text.data() + text.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range) {
      const std::size_t e = text.find('e');
      const bool tiny = e != text.npos && text[e + 1] == '-';
      value = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    } else if (error != std::errc()) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

std::optional<Integer> parse_integer(std::string_view raw, int base) {
  const std::optional<std::string> clean = without_underscores(trimmed(raw));
  if (!clean || clean->empty() || clean->size() > 4300) return std::nullopt;
  std::string text = lowered(*clean);
  const bool negative = text.front() == '-';
  if (text.front() == '+' || text.front() == '-') text.erase(0, 1);
  const auto prefix = [&text](std::string_view wanted) {
    if (text.size() <= 2 || !text.starts_with(wanted)) return false;
    text.erase(0, 2);
    return true;
  };
  if (base == 16 || base == 0) {
    if (prefix("0x")) base = 16;
  }
  if (base == 8 || base == 0) {
    if (prefix("0o")) base = 8;
  }
  if (base == 2 || base == 0) {
    if (prefix("0b")) base = 2;
  }
  if (base == 0) base = 10;
  if (text.empty() || base < 2 || base > 36) return std::nullopt;
  Integer value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    value = value * base + digit;
  }
  return negative ? Integer(-value) : value;
}

namespace {

std::optional<std::int64_t> small_result(Operation operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (operation) {
    case Operation::kAdd:
      return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operation::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operation::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case Operation::kFloorDivide:
    case Operation::kModulo: {
      if (b == 0 || b == -1) return std::nullopt;
      const std::int64_t quotient = a / b;
      const std::int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      return operation == Operation::kModulo ? (adjust ? rest + b : rest)
                                             : quotient - (adjust ? 1 : 0);
    }
    case Operation::kDivide:
    case Operation::kPower:
    case Operation::kNegate:
    case Operation::kPlus:
    case Operation::kNot:
    case Operation::kEqual:
    case Operation::kNotEqual:
    case Operation::kLess:
    case Operation::kLessEqual:
    case Operation::kGreater:
    case Operation::kGreaterEqual:
    case Operation::kIn:
    case Operation::kNotIn:
      break;
  }
  return std::nullopt;
}

Integer floor_divided(const Integer& a, const Integer& b, Integer& rest) {
  if (b == 0) fail("divides by zero");
  Integer quotient = a / b;
  rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    --quotient;
  }
  return quotient;
}

Value integer_power(Run& run, const Value& a, const Value& b) {
  const Integer base = to_integer(a);
  const Integer exponent = to_integer(b);
  if (exponent < 0) {
    if (base == 0) fail("divides by zero: 0 to a negative power");
    return std::pow(to_double(a), to_double(b));
  }
  if (base == 0 || base == 1 || base == -1) {
    const bool odd = (exponent & 1) != 0;
    return make_integer(run.heap(), exponent == 0        ? Integer(1)
                                    : base == -1 && !odd ? Integer(1)
                                                         : base);
  }
  if (exponent > kMaxIntegerBits ||
      (msb(Integer(abs(base))) + 1) * exponent.convert_to<unsigned>() > 2 * kMaxIntegerBits)
    throw TemplateError(TemplateError::Kind::kLimit, "computes an integer of over 4,000 digits");
  run.tick(100);
  return make_integer(run.heap(),
                      boost::multiprecision::pow(base, exponent.convert_to<unsigned>()));
}

Value float_result(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSubtract:
      return a - b;
    case Operation::kMultiply:
      return a * b;
    case Operation::kDivide:
      if (b == 0) fail("divides by zero");
      return a / b;
    case Operation::kFloorDivide:
    case Operation::kModulo: {
      if (b == 0) fail("divides by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        quotient -= 1;
      } else if (rest == 0) {
        rest = std::copysign(0.0, b);
      }
      return operation == Operation::kModulo ? rest : std::floor(quotient + 0.25);
    }
    case Operation::kPower:
      if (a == 0 && b < 0) fail("divides by zero: 0 to a negative power");
      return std::pow(a, b);
    case Operation::kNegate:
    case Operation::kPlus:
    case Operation::kNot:
    case Operation::kEqual:
    case Operation::kNotEqual:
    case Operation::kLess:
    case Operation::kLessEqual:
    case Operation::kGreater:
    case Operation::kGreaterEqual:
    case Operation::kIn:
    case Operation::kNotIn:
      break;
  }
  fail("computes what is no arithmetic");
}

}  // namespace

Value arithmetic(Run& run, Operation operation, const Value& a, const Value& b) {
  const bool integers = is_integer(a) && is_integer(b);
  if (!integers || operation == Operation::kDivide)
    return operation == Operation::kPower && integers
               ? integer_power(run, a, b)
               : float_result(operation, to_double(a), to_double(b));
  if (operation == Operation::kPower) return integer_power(run, a, b);
  if (a.as_big() == nullptr && b.as_big() == nullptr)
    if (const auto result = small_result(operation, small_of(a), small_of(b))) return *result;
  run.tick(20);
  const Integer left = to_integer(a);
  const Integer right = to_integer(b);
  if (operation == Operation::kAdd) return make_integer(run.heap(), left + right);
  if (operation == Operation::kSubtract) return make_integer(run.heap(), left - right);
  if (operation == Operation::kMultiply) return make_integer(run.heap(), left * right);
  Integer rest;
  const Integer quotient = floor_divided(left, right, rest);
  return make_integer(run.heap(), operation == Operation::kModulo ? rest : quotient);
}

Value negate(Run& run, const Value& value) {
  require_defined(value);
  if (!is_number(value)) fail("puts a '-' before " + a_type(value));
  if (const double* number = value.as_float()) return -*number;
  const Integer negated = -to_integer(value);
  if (fits(negated)) return negated.convert_to<std::int64_t>();
  return make_integer(run.heap(), negated);
}

}  // namespace bulkhead::jinja

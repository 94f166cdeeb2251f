// The strings and numbers of schema_limits.hpp.
#include "worker/constrain/schema_limits.hpp"

#include <algorithm>
#include <cmath>

#include "worker/constrain/formats.hpp"
#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {

void Types::meet(const Types& other) {
  null = null && other.null;
  boolean = boolean && other.boolean;
  string = string && other.string;
  array = array && other.array;
  object = object && other.object;
  integer = integer && other.integer;
  fraction = fraction && other.fraction;
}

Types Types::only_object() {
  return {false, false, false, false, true, false, false};
}

Result<Types> Types::of(const Json& names) {
  Types out{false, false, false, false, false, false, false};
  const auto add = [&](const Json& name) -> Status {
    const std::string text = name.is_string() ? name.get<std::string>() : name.dump();
    const bool named = name.is_string();  // JSON's null is no name
    if (named && text == "null")
      out.null = true;
    else if (text == "boolean")
      out.boolean = true;
    else if (text == "string")
      out.string = true;
    else if (text == "array")
      out.array = true;
    else if (text == "object")
      out.object = true;
    else if (text == "integer")
      out.integer = true;
    else if (text == "number")
      out.integer = out.fraction = true;
    else {
      return Error(ErrorCode::kInvalidArgument, "\"type\": " + shortened(name.dump()) +
                                                    " is not a type; use null, boolean, integer, "
                                                    "number, string, array or object");
    }
    return {};
  };
  if (!names.is_array()) {
    BULKHEAD_RETURN_IF_ERROR(add(names));
    return out;
  }
  for (const Json& name : names)
    BULKHEAD_RETURN_IF_ERROR(add(name));
  return out;
}

Status Complaints::unsupported(const std::string& keyword, const std::string& path,
                               const std::string& why) {
  const std::string message = "\"" + keyword + "\" at " + path + ": " + why;
  switch (mode_) {
    case Mode::kStrict:
      return Error(ErrorCode::kUnsupported, message);
    case Mode::kLenient:
      if (told_.insert(message).second) warnings_.push_back(message);
      break;
    case Mode::kQuiet:
      break;
  }
  return {};
}

Result<std::uint32_t> count_of(const Json& value, const char* keyword) {
  constexpr double kMost = 4'000'000'000.0;
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number < 0 || number != std::floor(number)) {
    return Error(ErrorCode::kInvalidArgument,
                 "\"" + std::string(keyword) + "\" must be a whole number from 0 on, not " +
                     shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return static_cast<std::uint32_t>(std::min(number, kMost));
}

// Returns whether a text may end everywhere, and may also go on everywhere. Then its length needs no more than a count.
bool ends_at_any_length(const Dfa& dfa) {
  return std::ranges::all_of(
      dfa.states, [](const Dfa::State& state) { return state.accept && !state.ranges.empty(); });
}

Result<StringShape> with_lengths(DfaPtr contents, std::uint32_t min, std::uint32_t max) {
  StringShape shape;
  shape.min = min;
  shape.max = max;
  // Where the automaton and the counts are enough, nothing else is needed.
  const bool enough =
      contents == any_text() || contents->empty() || (min <= max && ends_at_any_length(*contents));
  if (!enough && (min > 0 || max != kUnbounded)) {
    BULKHEAD_TRY(shape.lengths, Lengths::of(*contents, max));
  }
  shape.contents = std::move(contents);
  return shape;
}

namespace {

struct StringReader {
  const SchemaDocument& document;
  Complaints& complaints;
  DfaPtr contents = any_text();
  std::uint32_t min = 0, max = kUnbounded;
  const Json* schema = nullptr;

  Status meet(const Result<DfaPtr>& other, const std::string& keyword, bool negative) {
    if (!other.ok()) {
      return complaints.unsupported(keyword, document.path(schema), other.error().message());
    }
    Result<DfaPtr> both = intersect(contents, negative ? complement(**other) : *other);
    if (!both.ok()) {
      return complaints.unsupported(keyword, document.path(schema), both.error().message());
    }
    contents = *both;
    return {};
  }

  Status pattern(const Json& value, bool negative) {
    if (!value.is_string()) {
      return Error(ErrorCode::kInvalidArgument, "\"pattern\" must be a string");
    }
    const Reading reading = negative ? Reading::kEither : Reading::kBoth;
    return meet(regex_automaton(value.get<std::string>(), Match::kAnywhere, reading), "pattern",
                negative);
  }

  Status format(const Json& value, bool negative) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    const Format* known = find_format(name);
    if (known == nullptr) {
      return complaints.unsupported(
          "format", document.path(schema),
          "\"" + shortened(name) + "\" is no format that can be enforced");
    }
    if (known->expression.empty()) return {};
    return meet(regex_automaton(known->expression, Match::kWhole), "format", negative);
  }

  Status not_enum(const Json& members) {
    std::vector<std::u32string> texts;
    for (const Json& member : members) {
      std::u32string text;
      if (member.is_string() && decode_utf8(member.get<std::string>(), text)) texts.push_back(text);
    }
    if (texts.empty()) return {};
    return meet(literals(texts, false), "not", false);
  }

  Status read(const std::string& key, const Json& value) {
    if (key == "minLength") {
      BULKHEAD_TRY(const std::uint32_t least, count_of(value, "minLength"));
      min = std::max(min, least);
    } else if (key == "maxLength") {
      BULKHEAD_TRY(const std::uint32_t most, count_of(value, "maxLength"));
      max = std::min(max, most);
    } else if (key == "pattern" || key == kNotPattern) {
      return pattern(value, key != "pattern");
    } else if (key == "format" || key == kNotFormat) {
      return format(value, key != "format");
    } else if (key == kNotEnum) {
      return not_enum(value);
    }
    return {};
  }
};

Status read_bound(const Json& value, const std::string& key, bool low, bool exclusive,
                  NumberRange& range) {
  Result<Decimal> number = Decimal::of(value);
  if (!number.ok()) return number.error().within("\"" + key + "\"");
  std::optional<NumberRange::Bound>& bound = low ? range.low : range.high;
  const int order = bound ? compare(*number, bound->value) : 0;
  const bool tighter =
      !bound || (low ? order > 0 : order < 0) || (order == 0 && exclusive && !bound->exclusive);
  if (tighter) bound = NumberRange::Bound{*std::move(number), exclusive};
  return {};
}

// OpenAPI 3.0 (JSON Schema draft 4) has a boolean beside the bound.
bool made_exclusive(const Json& schema, const std::string& key) {
  const char* const other = key == "minimum"   ? "exclusiveMinimum"
                            : key == "maximum" ? "exclusiveMaximum"
                                               : nullptr;
  return other != nullptr && schema.value(other, Json()) == true;
}

}  // namespace

Result<StringShape> string_shape(const std::vector<const Json*>& schemas,
                                 const SchemaDocument& document, Complaints& complaints) {
  StringReader reader{document, complaints};
  for (const Json* schema : schemas) {
    reader.schema = schema;
    for (const auto& [key, value] : schema->items()) {
      BULKHEAD_RETURN_IF_ERROR(reader.read(key, value));
    }
  }
  if (reader.min > reader.max) reader.contents = literals({}, true);
  Result<StringShape> shape = with_lengths(reader.contents, reader.min, reader.max);
  if (shape.ok()) return shape;
  BULKHEAD_RETURN_IF_ERROR(complaints.unsupported("pattern", document.path(schemas, "pattern"),
                                                  shape.error().message()));
  return with_lengths(any_text(), reader.min, reader.max);
}

Result<NumberRange> number_range(const std::vector<const Json*>& schemas, bool integer,
                                 bool fraction, const SchemaDocument& document,
                                 Complaints& complaints) {
  NumberRange range;
  range.integer = !fraction;
  range.fraction = !integer;
  for (const Json* schema : schemas) {
    for (const auto& [key, value] : schema->items()) {
      const bool low = key == "minimum" || key == "exclusiveMinimum";
      const bool exclusive =
          key == "exclusiveMinimum" || key == "exclusiveMaximum" || made_exclusive(*schema, key);
      if (exclusive && value.is_boolean()) continue;  // it says something of `minimum` or `maximum`
      if (low || key == "maximum" || key == "exclusiveMaximum") {
        BULKHEAD_RETURN_IF_ERROR(read_bound(value, key, low, exclusive, range));
      } else if (key == "multipleOf" || key == kNotMultiple) {
        const double divisor = value.is_number() ? value.get<double>() : 0;
        if (divisor <= 0) {
          return Error(ErrorCode::kInvalidArgument, "\"multipleOf\" must be a number over 0");
        }
        if (divisor != std::floor(divisor) || divisor > 2'000) {
          BULKHEAD_RETURN_IF_ERROR(
              complaints.unsupported("multipleOf", document.path(schema),
                                     "only whole numbers up to 2000 can be enforced"));
          continue;
        }
        auto& list = key == "multipleOf" ? range.multiples : range.not_multiples;
        list.push_back(static_cast<std::uint32_t>(divisor));
      } else if (key == "format" && value == "int32") {
        BULKHEAD_RETURN_IF_ERROR(read_bound(Json(-2147483648LL), key, true, false, range));
        BULKHEAD_RETURN_IF_ERROR(read_bound(Json(2147483647LL), key, false, false, range));
      } else if (key == "format" && value == "int64") {
        BULKHEAD_RETURN_IF_ERROR(read_bound(Json(INT64_MIN), key, true, false, range));
        BULKHEAD_RETURN_IF_ERROR(read_bound(Json(INT64_MAX), key, false, false, range));
      }
    }
  }
  // A divisor of another divisor would multiply the automaton's states without any effect.
  auto& all = range.multiples;
  std::sort(all.rbegin(), all.rend());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = all.size(); j-- > i + 1;) {
      if (all[i] % all[j] == 0) all.erase(all.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
  return range;
}

}  // namespace bulkhead::constrain

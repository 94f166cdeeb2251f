#include "orchestrator/http/request_fields.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// Bounds the depth and the number of values. It counts them in the bytes, before a parser spends stack or memory on
// them.
std::optional<ApiError> check_size(std::string_view body) {
  int depth = 0;
  std::size_t values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > kMaxJsonDepth) {
        return invalid(
            fmt::format("The body nests deeper than {} levels at byte {}.", kMaxJsonDepth, i), "",
            "json_too_deep");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
  }
  if (values > kMaxJsonValues) {
    return invalid(fmt::format("The body has more than {} values.", kMaxJsonValues), "",
                   "json_too_large");
  }
  return std::nullopt;
}

}  // namespace

ApiError invalid(std::string message, std::string parameter, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.parameter = std::move(parameter);
  error.code = std::move(code);
  return error;
}

Parsed<json> parse_object(std::string_view body) {
  if (body.empty()) return invalid("The body is empty; send a JSON object.", "", "invalid_json");
  if (auto error = check_size(body)) return *error;
  try {
    json object = json::parse(body);
    if (!object.is_object()) {
      return invalid(
          fmt::format("The body is a JSON {}, but an object is needed.", object.type_name()), "",
          "invalid_json");
    }
    return object;
  } catch (const json::parse_error& error) {
    return invalid(fmt::format("The body is not valid JSON (UTF-8) at byte {}.", error.byte), "",
                   "invalid_json");
  } catch (const json::exception&) {
    return invalid("The body has a number that no double can hold.", "", "invalid_json");
  }
}

bool is_empty(const json& value) {
  if (value.is_string())
    return value.get_ref<const std::string&>().empty();  // never empty() to nlohmann
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

namespace {

std::size_t cost_of_order(const json& value) {
  std::size_t cost = 0;
  if (value.is_object() && value.size() > kSmallObjectMembers) cost = value.size() * value.size();
  if (value.is_structured()) {
    for (const json& each : value)
      cost += cost_of_order(each);
  }
  return cost;
}

constexpr std::size_t kLongestNameInError = 60;

struct Widest {
  std::string name;  // empty: the object has none
  std::size_t members = 0;
};

void find_widest(const json& value, const std::string& name, Widest& widest) {
  if (value.is_object() && value.size() > widest.members) widest = {name, value.size()};
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      find_widest(member, key, widest);
  } else if (value.is_array()) {
    for (const json& item : value)
      find_widest(item, "", widest);
  }
}

}  // namespace

bool has_wide_objects(const json& value) {
  return cost_of_order(value) > kMaxOrderedMembers * kMaxOrderedMembers;
}

std::string too_many_members(const json& value) {
  Widest widest;
  find_widest(value, "", widest);
  const bool named = !widest.name.empty() && widest.name.size() <= kLongestNameInError;
  return fmt::format("has objects of too many members: {} has {}; one object may have up to {}.",
                     named ? fmt::format("\"{}\"", widest.name) : "one", widest.members,
                     kMaxOrderedMembers);
}

Parsed<nlohmann::ordered_json> parse_ordered_object(std::string_view body) {
  Parsed<json> checked = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&checked)) return *error;
  if (has_wide_objects(std::get<json>(checked)))
    return invalid("The body " + too_many_members(std::get<json>(checked)));
  return parse_exact(body);
}

void pass_on(const nlohmann::ordered_json& body, std::span<const std::string_view> own,
             nlohmann::ordered_json& out) {
  std::unordered_set<std::string> known;
  for (const std::string_view name : own)
    known.emplace(name);
  for (const auto& [name, value] : out.items())
    known.insert(name);
  // The members that are added have different names, so no name needs to be searched in `out`.
  auto& members = out.get_ref<nlohmann::ordered_json::object_t&>();
  members.reserve(members.size() + body.size());
  for (const auto& [name, value] : body.items()) {
    if (!known.contains(name)) members.emplace_back(name, value);
  }
}

void Translating::refuse(const std::string& name, const std::string& what,
                         const std::string& code) {
  if (!error_) error_ = invalid(fmt::format("'{}' {}", name, what), name, code);
}

const Translating::Ordered* Translating::find(const Ordered& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string Translating::text_of(const Ordered& object, const char* name) {
  const Ordered* value = find(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

void Translating::check_name(const std::string& name, const std::string& where) {
  if (name.empty()) refuse(where + ".name", "must be a string that is not empty.");
  if (name.size() > kMaxNameBytes) {
    refuse(where + ".name", fmt::format("must have 1 to {} bytes.", kMaxNameBytes), "out_of_range");
  }
}

const json* Fields::get(const char* name) const {
  auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::refuse(const std::string& name, const std::string& what, const std::string& code) {
  if (!error_)
    error_ = invalid(fmt::format("'{}{}' {}", prefix_, name, what), prefix_ + name, code);
}

void Fields::wrong_type(const std::string& name, const char* wanted, const json& value) {
  refuse(name, fmt::format("must be {}, not {}.", wanted, value.type_name()), "invalid_type");
}

bool Fields::boolean(const char* name, bool fallback) {
  const json* value = get(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    wrong_type(name, "a boolean", *value);
    return fallback;
  }
  return value->get<bool>();
}

float Fields::number(const char* name, float fallback, double least, double most) {
  const json* value = get(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    wrong_type(name, "a number", *value);
    return fallback;
  }
  double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    refuse(name, fmt::format("must be between {} and {}.", least, most), "out_of_range");
    return fallback;
  }
  return static_cast<float>(number);
}

std::int64_t Fields::integer(const char* name, std::int64_t fallback, std::int64_t least,
                             std::int64_t most) {
  const json* value = get(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    wrong_type(name, "an integer", *value);
    return fallback;
  }
  std::optional<std::int64_t> whole = whole_number(*value);
  if (!whole) {
    // A whole number that is too large for 64 bits is out of range; its type is not wrong.
    const double number = value->get<double>();
    if (std::trunc(number) == number) {
      refuse(name, fmt::format("must be between {} and {}.", least, most), "out_of_range");
    } else {
      refuse(name, "must be an integer.", "invalid_type");
    }
    return fallback;
  }
  if (*whole < least || *whole > most) {
    refuse(name, fmt::format("must be between {} and {}.", least, most), "out_of_range");
    return fallback;
  }
  return *whole;
}

std::string Fields::text(const char* name, std::string fallback) {
  const json* value = get(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    wrong_type(name, "a string", *value);
    return fallback;
  }
  return value->get<std::string>();
}

std::optional<std::int64_t> Fields::whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    std::uint64_t number = value.get<std::uint64_t>();
    return static_cast<std::int64_t>(
        std::min<std::uint64_t>(number, std::numeric_limits<std::int64_t>::max()));
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  double number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > 9.0e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

// Reads the token ids of an array. Returns false after a refusal.
bool read_ids(Fields& fields, const char* name, const json& array, std::vector<ipc::TokenId>& ids) {
  ids.reserve(array.size());
  for (const json& item : array) {
    std::optional<std::int64_t> id = Fields::whole_number(item);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max()) {
      fields.refuse(name, fmt::format("has an element {} that is not a token id.", ids.size()),
                    "invalid_type");
      return false;
    }
    ids.push_back(static_cast<ipc::TokenId>(*id));
  }
  return true;
}

}  // namespace bulkhead::orchestrator

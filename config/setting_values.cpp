// Reads a setting's value from its text form, checks it against the setting's row, and writes it as text.
#include <algorithm>
#include <charconv>
#include <utility>

#include "config/base/overloaded.hpp"
#include "config/base/text.hpp"
#include "config/settings_table.hpp"

namespace bulkhead::config {
namespace {

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

Error wrong(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

std::string joined(const std::vector<const char*>& words) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) result += i + 1 == words.size() ? " or " : ", ";
    result += words[i];
  }
  return result;
}

Result<bool> parse_flag(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return wrong(quoted(text) + " is not true or false");
}

template <typename Owner>
Result<std::uint32_t> parse_number(const Field<Owner>& field, std::string_view text) {
  const std::string range = field.most == UINT32_MAX
                                ? "a whole number from " + std::to_string(field.least)
                                : "a whole number from " + std::to_string(field.least) + " to " +
                                      std::to_string(field.most);
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size() || failure == std::errc::invalid_argument) {
    return wrong(quoted(text) + " is not " + range);
  }
  if (failure != std::errc{} || value < field.least || value > field.most) {
    return wrong(std::string(text) + " is out of range; it must be " + range);
  }
  if (field.power_of_two && (value & (value - 1)) != 0) {
    std::uint64_t above = 1;
    while (above < value)
      above *= 2;
    return wrong(std::string(text) + " is not a power of two; the nearest are " +
                 std::to_string(above / 2) + " and " + std::to_string(above));
  }
  return static_cast<std::uint32_t>(value);
}

template <typename Owner>
Result<std::uint32_t> parse_choice(const Field<Owner>& field, std::string_view text) {
  const std::string word = lower(text);
  for (std::size_t i = 0; i < field.choices.size(); ++i) {
    if (word == field.choices[i]) return static_cast<std::uint32_t>(i);
  }
  // A flag with a third choice may be written like any flag.
  if (const Result<bool> flag = parse_flag(text); flag.ok()) {
    for (std::size_t i = 0; i < field.choices.size(); ++i) {
      if (field.choices[i] == std::string_view(*flag ? "true" : "false"))
        return static_cast<std::uint32_t>(i);
    }
  }
  return wrong(quoted(text) + " is not " + joined(field.choices));
}

template <typename Owner>
Status store_in(const Field<Owner>& field, Owner& owner, const Written& written) {
  if (written.is_list && !wants_list(field)) return wrong("takes one value, not a list");
  const std::string& text = written.items.empty() ? std::string() : written.items.front();
  return std::visit(Overloaded{
                        [&](Reach<Owner, bool> reach) -> Status {
                          BULKHEAD_TRY(reach(owner), parse_flag(text));
                          return {};
                        },
                        [&](Reach<Owner, std::uint32_t> reach) -> Status {
                          BULKHEAD_TRY(reach(owner), parse_number(field, text));
                          return {};
                        },
                        [&](Reach<Owner, std::string> reach) -> Status {
                          if (field.choices.empty()) {
                            reach(owner) = text;
                            return {};
                          }
                          BULKHEAD_TRY(const std::uint32_t choice, parse_choice(field, text));
                          reach(owner) = field.choices[choice];
                          return {};
                        },
                        [&](Reach<Owner, std::vector<std::uint32_t>> reach) -> Status {
                          std::vector<std::uint32_t> numbers;
                          for (const std::string& item : written.items) {
                            BULKHEAD_TRY(const std::uint32_t number, parse_number(field, item));
                            numbers.push_back(number);
                          }
                          reach(owner) = std::move(numbers);
                          return {};
                        },
                        [&](Reach<Owner, std::vector<std::string>> reach) -> Status {
                          if (std::ranges::find(written.items, "") != written.items.end())
                            return wrong("has an empty entry");
                          reach(owner) = written.items;
                          return {};
                        },
                        [&](const EnumReach<Owner>& reach) -> Status {
                          BULKHEAD_TRY(const std::uint32_t choice, parse_choice(field, text));
                          reach.set(owner, choice);
                          return {};
                        },
                    },
                    field.reach);
}

template <typename Owner>
std::string text_in(const Field<Owner>& field, const Owner& const_owner) {
  Owner& owner =
      const_cast<Owner&>(const_owner);  // the accessors can read and write; this only reads
  return std::visit(
      Overloaded{
          [&](Reach<Owner, bool> reach) -> std::string { return reach(owner) ? "true" : "false"; },
          [&](Reach<Owner, std::uint32_t> reach) { return std::to_string(reach(owner)); },
          [&](Reach<Owner, std::string> reach) { return reach(owner); },
          [&](Reach<Owner, std::vector<std::uint32_t>> reach) {
            std::vector<std::string> numbers;
            for (const std::uint32_t number : reach(owner))
              numbers.push_back(std::to_string(number));
            return "[" + bulkhead::joined(numbers) + "]";
          },
          [&](Reach<Owner, std::vector<std::string>> reach) {
            return "[" + bulkhead::joined(reach(owner)) + "]";
          },
          [&](const EnumReach<Owner>& reach) -> std::string {
            return field.choices[reach.get(owner)];
          },
      },
      field.reach);
}

}  // namespace

Status store(const Setting& field, Settings& owner, const Written& written) {
  return store_in(field, owner, written);
}
Status store(const ModelSetting& field, ModelSettings& owner, const Written& written) {
  return store_in(field, owner, written);
}
std::string text_of(const Setting& field, const Settings& owner) {
  return text_in(field, owner);
}
std::string text_of(const ModelSetting& field, const ModelSettings& owner) {
  return text_in(field, owner);
}

}  // namespace bulkhead::config

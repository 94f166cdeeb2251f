// Log lines for programs to read: a word that says what happened, then named values. The text format gives `request
// status=200 endpoint="/v1/models"`; with log.format json each value is a member of the line's object.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>

namespace bulkhead::log {

// One named value. In a line of text, quoted() puts quotes around the value and word() does not.
struct Field {
  enum class Kind { kWord, kQuoted, kNumber };

  std::string_view name;
  std::string value;
  Kind kind = Kind::kWord;

  static Field word(std::string_view name, std::string_view value) {
    return {name, std::string(value), Kind::kWord};
  }
  static Field quoted(std::string_view name, std::string_view value) {
    return {name, std::string(value), Kind::kQuoted};
  }
  static Field number(std::string_view name, std::integral auto value) {
    return {name, std::to_string(value), Kind::kNumber};
  }
  static Field flag(std::string_view name, bool value) {
    return {name, value ? "true" : "false", Kind::kNumber};
  }
  // Writes one digit after the decimal point, which is enough for milliseconds.
  static Field milliseconds(std::string_view name, double value);
};

// Writes the line at level info. The names must be constants of the program; values may come from clients and
// workers.
void event(std::string_view what, std::span<const Field> fields);

}  // namespace bulkhead::log

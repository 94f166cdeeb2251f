// JSON as text that arrives in pieces: it finds where a value ends, and turns other notations into JSON. Nothing here
// builds a tree, so neither depth nor length costs more than the bytes themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::model::answer {

// Finds the end of one JSON value. Counts brackets outside strings and checks nothing else.
class JsonEnd {
 public:
  // Returns how many bytes at the start of `text` still belong to the value. The value begins with the first byte
  // ever given, which must not be a blank.
  std::size_t take(std::string_view text);
  bool done() const { return done_; }
  // Returns whether the value is complete if the text ends here: a number or a word ends with the text.
  bool done_at_end() const { return done_ || bare_; }

 private:
  std::uint64_t depth_ = 0;
  bool started_ = false;
  bool bare_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool done_ = false;
};

inline constexpr std::string_view kBlanks = " \t\r\n\f\v";
std::string_view trimmed(std::string_view text);

// Appends `text` in the form that it has inside a JSON string.
void append_escaped(std::string& out, std::string_view text);
std::string json_quoted(std::string_view text);

// Decodes the inside of a JSON string; returns false if an escape is invalid. A lone surrogate becomes U+FFFD.
bool unescape(std::string_view inside, std::string& out);

bool is_json(std::string_view text);
bool is_json_object(std::string_view text);

// Returns a value that need not be a text as JSON: JSON stays as it is, True, False and None become JSON, and
// anything else becomes a string.
std::string typed_value(std::string_view text);

// Returns a call's arguments if they may be any JSON value: the text of an object, or of an object inside a string;
// empty for null and for an empty string. Anything else stays as it is, so that the client sees that it is no object.
std::string arguments_of(std::string_view value);

}  // namespace bulkhead::model::answer

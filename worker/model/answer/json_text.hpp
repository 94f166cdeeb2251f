// JSON as text that arrives in pieces: where a value ends, and how other notations become JSON.
// Nothing here builds a tree, so neither depth nor length costs more than the bytes themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::model::answer {

// Finds the end of one JSON value. Counts brackets outside strings and checks nothing else.
class JsonEnd {
 public:
  // How many bytes at the start of `text` still belong to the value, which begins with the first
  // byte ever given (no blank).
  std::size_t take(std::string_view text);
  bool done() const { return done_; }
  // A number or a word ends where the text ends.
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

// Appends `text` as the inside of a JSON string.
void append_escaped(std::string& out, std::string_view text);
std::string json_quoted(std::string_view text);

// The text that the inside of a JSON string stands for; false where an escape is none. A lone
// surrogate becomes U+FFFD.
bool unescape(std::string_view inside, std::string& out);

bool is_json(std::string_view text);
bool is_json_object(std::string_view text);

// A value that is not text alone: itself where it is JSON; True, False and None as JSON has them;
// anything else as a string.
std::string typed_value(std::string_view text);

// What a call's arguments are when they are given by any JSON value: an object's text, the text of
// an object inside a string; empty for anything else.
std::string arguments_of(std::string_view value);

}  // namespace bulkhead::model::answer

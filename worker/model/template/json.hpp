// Converts JSON to values and back, as Python's json module does: it keeps the order of keys and the kinds of
// numbers, and supports integers of any size.
#pragma once

#include <optional>
#include <string_view>

#include "worker/model/template/run.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

constexpr int kMaxJsonDepth = 150;

// The error of read_json() begins so.
inline constexpr std::string_view kNoJson = "reads a text as JSON that is none: ";
// Every string in it, keys included, gets `origin`. Fails, with the reason and the byte, if the text is not JSON.
Value read_json(Run& run, std::string_view json, Origin origin);

struct JsonStyle {
  bool ascii = false;     // \u escapes for everything but ASCII
  bool sorted = false;    // keys
  bool indented = false;  // on separate lines, each level indented by `indent`
  Text indent;
  Text item_separator;  // ", "
  Text key_separator;   // ": "
};
JsonStyle default_json_style();
void write_json(Run& run, const Value& value, const JsonStyle& style, TextBuilder& out);

}  // namespace bulkhead::jinja

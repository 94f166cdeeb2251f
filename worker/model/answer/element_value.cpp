#include "worker/model/answer/element_value.hpp"

#include <vector>

#include "worker/model/answer/json_text.hpp"

namespace bulkhead::model::answer {
namespace {

constexpr std::string_view kItem = "item";

// An element whose end has not been read.
struct Open {
  std::string_view name;
  ValueSchema schema;
  std::string json = {};  // the members so far, or nothing
  std::size_t begin = 0;  // where its text begins
  bool any = false;       // it has members
  bool list = true;       // all of them are called `item`
};

// Says whether an element is a list; its first member has this name.
bool is_list(const Open& element, std::string_view first) {
  return first == kItem && !element.schema.object();
}

// Adds a member to the JSON of `parent`, behind which a bracket is still missing.
void add(Open& parent, std::string_view name, std::string_view value) {
  if (!parent.any) parent.list = is_list(parent, name);
  parent.json += parent.any ? ", " : "";
  if (!parent.list) parent.json += json_quoted(name) + ": ";
  parent.json += value;
  parent.any = true;
}

std::string closed(const Open& element, std::string_view text) {
  if (!element.any && element.schema.text()) return json_quoted(text);
  if (!element.any && trimmed(text).empty()) {
    if (element.schema.list()) return "[]";
    if (element.schema.object()) return "{}";
  }
  if (!element.any) return typed_value(text);
  return (element.list ? "[" : "{") + element.json + (element.list ? "]" : "}");
}

}  // namespace

std::string element_value(std::string_view text, std::string_view open, const ValueSchema& schema) {
  std::vector<Open> stack(1);
  stack[0].schema = schema;
  for (std::size_t at = text.find(open); at != text.npos; at = text.find(open, at)) {
    const std::size_t tag = at;
    at += open.size();
    const std::size_t end = text.find('>', at);
    if (end == text.npos) return json_quoted(text);
    std::string_view name = text.substr(at, end - at);
    at = end + 1;
    if (!name.starts_with('/')) {
      const Open& parent = stack.back();
      const bool list = parent.any ? parent.list : is_list(parent, name);
      ValueSchema inner = list ? parent.schema.item() : parent.schema.member(name);
      stack.push_back({.name = name, .schema = std::move(inner), .begin = at});
      continue;
    }
    name.remove_prefix(1);
    const bool fits = stack.size() > 1 && stack.back().name == name &&
                      (!stack[stack.size() - 2].any ||
                       stack[stack.size() - 2].list == is_list(stack[stack.size() - 2], name));
    if (!fits) return json_quoted(text);
    const Open element = std::move(stack.back());
    stack.pop_back();
    add(stack.back(), name, closed(element, text.substr(element.begin, tag - element.begin)));
  }
  return stack.size() == 1 ? closed(stack[0], text) : json_quoted(text);
}

}  // namespace bulkhead::model::answer

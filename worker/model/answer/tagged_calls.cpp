// Reads calls with a pair of tags for each argument (Qwen3-Coder, GLM, MiniMax, DeepSeek V3.2, Kimi K3), and turns
// plain text into JSON. If a value is text by its schema, it is passed on as it comes; any other value is passed on
// when it is complete.
#include "worker/model/answer/element_value.hpp"
#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/machine.hpp"

namespace bulkhead::model::answer {
namespace {

constexpr std::string_view kCdata = "<![CDATA[";

}  // namespace

Routine Machine::tagged_call() {
  CallName name;
  if (!co_await call_name(name)) co_return false;
  const Tool& tool = *tools_.find(name.name);
  const Tags& tags = family_.calls.tags;
  if (const std::string& tail = family_.calls.name_tail; !tail.empty())
    co_await text_up_to(tail, nullptr);
  const Marks marks = {tags.param_open, tags.call_close};
  bool first = true;
  while (co_await blanks()) {
    Scan next = scan(marks);
    while (next.found == Found::kUndecided) {
      co_await input();
      next = scan(marks);
    }
    const bool begins_parameter = next.found == Found::kPartial &&
                                  tags.param_open.starts_with(next.text) &&
                                  !tags.call_close.starts_with(next.text);
    if (next.found == Found::kPartial && (cut() || begins_parameter || first))
      take(next.text.size());
    if (begins_parameter) co_return true;
    if (next.found != Found::kMark) break;
    take(marks[next.index].size());
    if (next.index == 1) {
      if (!first) out_.arguments("}");
      end_call();
      co_return true;
    }
    const bool whole = co_await parameter(tool, first);
    if (!whole && ended_ && at_end())
      co_return true;  // half a value must not look like a whole one
    if (!whole) break;
  }
  if (!arguments_over()) co_return true;
  if (!first) out_.arguments("}");
  end_call();
  co_return true;
}

// Reads what follows param_open. Gives false if the answer ended within it, or the syntax is wrong.
Routine Machine::parameter(const Tool& tool, bool& first) {
  const Tags& tags = family_.calls.tags;
  std::string key;
  bool is_text = false;
  bool type_given = false;
  if (!co_await parameter_key(key, is_text, type_given)) co_return false;
  if (!type_given) is_text = text_alone(tool, key);
  std::string close = tags.value_close;
  if (tags.elements) close += key + ">";
  if (tags.cdata) co_await cdata(close);
  const std::string begin = (first ? "{" : ", ") + json_quoted(key) + ": ";
  if (is_text) {
    out_.arguments(begin + "\"");
    first = false;
    const bool whole = co_await text_value(close);
    if (whole) out_.arguments("\"");
    co_return whole;
  }
  std::string value;
  if (!co_await other_value(value, close)) co_return false;
  out_.arguments(begin + (tags.elements
                              ? element_value(value, tags.param_open, ValueSchema(tool, key))
                              : typed_value(value)));
  first = false;
  co_return true;
}

// Reads text up to `mark`, and the mark; gives false if the answer ended before it. `text` may be null.
Routine Machine::text_up_to(std::string_view mark, std::string* text) {
  const Marks marks = {mark};
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kText) {
      if (text != nullptr) *text += next.text;
      take(next.text.size());
    } else if (next.found == Found::kMark) {
      take(mark.size());
      co_return true;
    } else if (next.found == Found::kUndecided) {
      co_await input();
    } else {
      take(next.text.size());
      co_return false;
    }
  }
}

Routine Machine::parameter_key(std::string& key, bool& is_text, bool& type_given) {
  const Tags& tags = family_.calls.tags;
  if (!co_await text_up_to(tags.key_close, &key)) co_return false;
  key = std::string(trimmed(key));
  if (!tags.type_end.empty()) {
    std::string attributes;
    if (!co_await text_up_to(tags.type_end, &attributes)) co_return false;
    const std::string_view type = trimmed(tags.text_type);
    const std::size_t value = type.find('=') + 1;
    is_text = attributes.find(type.substr(value)) != std::string::npos;
    type_given = attributes.find(type.substr(0, value)) != std::string::npos;
  }
  if (tags.value_open.empty()) co_return true;
  if (!co_await blanks()) co_return false;
  const Marks marks = {tags.value_open};
  Scan next = scan(marks);
  while (next.found == Found::kUndecided) {
    co_await input();
    next = scan(marks);
  }
  if (next.found == Found::kPartial) take(next.text.size());
  if (next.found != Found::kMark) co_return false;
  take(tags.value_open.size());
  co_return true;
}

// Reads <![CDATA[ if it begins the value. Then ]]> stands before the value's closing tag.
Routine Machine::cdata(std::string& close) {
  const Marks marks = {kCdata};
  Scan next = scan(marks);
  while (next.found == Found::kUndecided) {
    co_await input();
    next = scan(marks);
  }
  if (next.found == Found::kPartial && cut()) take(next.text.size());
  if (next.found != Found::kMark) co_return false;
  take(kCdata.size());
  close = "]]>" + close;
  co_return true;
}

// Reads the inside of a string, and passes it on as it comes.
Routine Machine::text_value(const std::string& close) {
  const Tags& tags = family_.calls.tags;
  const Marks marks = {close};
  bool at_front = tags.strip_newlines;
  bool newline_held = false;
  for (;;) {
    const Scan next = scan(marks);
    if (next.found == Found::kUndecided) {
      co_await input();
      continue;
    }
    if (next.found != Found::kText) {
      const bool whole = next.found == Found::kMark;
      take(whole ? marks[0].size() : next.text.size());
      co_return whole;
    }
    std::string_view piece = next.text;
    if (at_front && piece[0] == '\n') piece.remove_prefix(1);
    at_front = false;
    std::string out;
    if (newline_held && !piece.empty()) out = "\\n";
    if (!piece.empty()) newline_held = tags.strip_newlines && piece.back() == '\n';
    if (newline_held && !piece.empty()) piece.remove_suffix(1);
    append_escaped(out, piece);
    out_.arguments(out);
    take(next.text.size());
  }
}

Routine Machine::other_value(std::string& value, const std::string& close) {
  const Tags& tags = family_.calls.tags;
  const bool whole = co_await text_up_to(close, &value);
  if (tags.strip_newlines) {
    if (value.starts_with('\n')) value.erase(0, 1);
    if (value.ends_with('\n')) value.pop_back();
  }
  co_return whole;
}

}  // namespace bulkhead::model::answer

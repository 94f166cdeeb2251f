#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/json.hpp"
#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {
namespace {

class Writer {
 public:
  Writer(Run& run, const JsonStyle& style, TextBuilder& out)
      : run_(run), style_(style), out_(out) {}

  void value(const Value& value) {
    const Deeper deeper(run_);
    run_.tick();
    switch (value.kind()) {
      case Kind::kNone:
        plain("null");
        return;
      case Kind::kBool:
        plain(*value.as_bool() ? "true" : "false");
        return;
      case Kind::kFloat:
        plain(number(*value.as_float()));
        return;
      case Kind::kInt:
      case Kind::kBigInt:
        append_str(run_, value, out_);
        return;
      case Kind::kText:
        string(*value.as_text());
        return;
      case Kind::kDict:
        object(*value.as_dict());
        return;
      case Kind::kList:
        if (value.as_list()->flavour == Flavour::kList ||
            value.as_list()->flavour == Flavour::kTuple) {
          array(*value.as_list());
          return;
        }
        break;
      case Kind::kUndefined:
        require_defined(value);
        break;
      case Kind::kNamespace:
      case Kind::kCallable:
      case Kind::kLoop:
        break;
    }
    fail("writes " + a_type(value) + " as JSON, which has nothing like it");
  }

 private:
  void plain(std::string_view text) { out_.append(text, Origin::kTemplate); }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  std::string escaped(char32_t code) const {
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
    }
    char text[16] = {};
    const auto unit = static_cast<unsigned>(code);
    if (code < 0x20 || (style_.ascii && code >= 0x7f && code < 0x10000))
      std::snprintf(text, sizeof text, "\\u%04x", unit);
    else if (style_.ascii && code >= 0x10000)
      std::snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((unit - 0x10000) >> 10),
                    0xdc00 + ((unit - 0x10000) & 0x3ff));
    return text;
  }

  void string(const Text& text) {
    run_.tick(scan_steps(text.size()));
    plain("\"");
    text.for_runs([this](std::string_view run, Origin origin) {
      std::size_t done = 0;
      for_chars(run, [&](char32_t code, std::size_t at, std::size_t bytes) {
        if (code >= 0x20 && code != '"' && code != '\\' && (code < 0x7f || !style_.ascii)) return;
        run_.tick();
        out_.append(run.substr(done, at - done), origin);
        out_.append(escaped(code), origin);
        done = at + bytes;
      });
      out_.append(run.substr(done), origin);
    });
    plain("\"");
  }

  void new_line() {
    if (!style_.indented) return;
    plain("\n");
    run_.tick(1 + copy_steps(style_.indent.size() * depth_));
    for (std::size_t i = 0; i < depth_; ++i)
      out_.append(style_.indent);
  }

  void array(const List& list) {
    if (list.items.empty()) return plain("[]");
    plain("[");
    ++depth_;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      value(list.items[i]);
    }
    --depth_;
    new_line();
    plain("]");
  }

  // Keys in JSON are strings, so keys of other kinds are written as strings.
  void key(const Value& key) {
    if (key.as_text() != nullptr) return string(*key.as_text());
    if (key.as_list() != nullptr || key.as_namespace() != nullptr || key.undefined())
      fail("writes a dict as JSON whose key is " + a_type(key));
    plain("\"");
    value(key);
    plain("\"");
  }

  void object(const Dict& dict) {
    if (dict.entries.empty()) return plain("{}");
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries)
      entries.push_back(&entry);
    if (style_.sorted)
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return compare(run_, a->key, b->key) == Ordering::kLess;
      });
    plain("{");
    ++depth_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      key(entries[i]->key);
      out_.append(style_.key_separator);
      value(entries[i]->value);
    }
    --depth_;
    new_line();
    plain("}");
  }

  Run& run_;
  const JsonStyle& style_;
  TextBuilder& out_;
  std::size_t depth_ = 0;
};

}  // namespace

JsonStyle default_json_style() {
  JsonStyle style;
  style.item_separator = Text(", ", Origin::kTemplate);
  style.key_separator = Text(": ", Origin::kTemplate);
  return style;
}

void write_json(Run& run, const Value& value, const JsonStyle& style, TextBuilder& out) {
  Writer(run, style, out).value(value);
}

}  // namespace bulkhead::jinja

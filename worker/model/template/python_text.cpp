// str() and repr() of values, and how errors describe them.
#include <algorithm>
#include <cstdio>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/characters.hpp"
#include "worker/model/template/native.hpp"
#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {
namespace {

const char* flavour_name(Flavour flavour) {
  switch (flavour) {
    case Flavour::kList:
      return "list";
    case Flavour::kTuple:
      return "tuple";
    case Flavour::kRange:
      return "range";
    case Flavour::kView:
      return "dict view";
    case Flavour::kGenerator:
      return "generator";
  }
  return "list";
}

void append(TextBuilder& out, std::string_view text) {
  out.append(text, Origin::kTemplate);
}

// Python prefers single quotes. It takes double quotes if the text has single ones and no double ones.
void append_quoted(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool double_quotes = view.find('\'') != view.npos && view.find('"') == view.npos;
  const char quote = double_quotes ? '"' : '\'';
  append(out, {&quote, 1});
  text.for_runs([&](std::string_view run, Origin origin) {
    std::size_t plain = 0;  // start of the text that needs no escape
    for_chars(run, [&](char32_t code, std::size_t at, std::size_t bytes) {
      char escape[16] = {};
      if (code == '\n' || code == '\r' || code == '\t')
        std::snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
      else if (code == '\\' || code == static_cast<char32_t>(quote))
        std::snprintf(escape, sizeof escape, "\\%c", static_cast<char>(code));
      else if (!is_kind(code, CharKind::kUnprintable) || code == ' ')
        return;
      else if (code < 0x100)
        std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(code));
      else if (code < 0x10000)
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code));
      else
        std::snprintf(escape, sizeof escape, "\\U%08x", static_cast<unsigned>(code));
      Run::tick_of_thread(1);
      out.append(run.substr(plain, at - plain), origin);
      out.append(escape, origin);
      plain = at + bytes;
    });
    out.append(run.substr(plain), origin);
  });
  append(out, {&quote, 1});
}

void append_items(Run& run, const List& list, TextBuilder& out) {
  const bool tuple = list.flavour == Flavour::kTuple;
  append(out, tuple ? "(" : "[");
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) append(out, ", ");
    append_repr(run, list.items[i], out);
  }
  append(out, tuple ? (list.items.size() == 1 ? ",)" : ")") : "]");
}

void append_list(Run& run, const List& list, TextBuilder& out) {
  switch (list.flavour) {
    case Flavour::kList:
    case Flavour::kTuple:
      append_items(run, list, out);
      return;
    case Flavour::kView:
      append(out, std::string(list.view_name) + "(");
      append_items(run, list, out);
      append(out, ")");
      return;
    case Flavour::kRange: {
      const auto& range = static_cast<const Range&>(list);
      append(out, "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop) +
                      (range.step == 1 ? "" : ", " + std::to_string(range.step)) + ")");
      return;
    }
    case Flavour::kGenerator:
      append(out, "<generator object>");
      return;
  }
}

void append_dict(Run& run, const Dict& dict, TextBuilder& out) {
  append(out, "{");
  for (const Dict::Entry& entry : dict.entries) {
    if (&entry != dict.entries.data()) append(out, ", ");
    append_repr(run, entry.key, out);
    append(out, ": ");
    append_repr(run, entry.value, out);
  }
  append(out, "}");
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "undefined value";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "string";
    case Kind::kList:
      return flavour_name(value.as_list()->flavour);
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "loop";
  }
  return "value";
}

}  // namespace

std::string a_type(const Value& value) {
  if (value.none()) return "null";
  const std::string name = type_name(value);
  return (std::string_view("aeiou").find(name[0]) == std::string_view::npos ? "a " : "an ") + name;
}

// Returns the origin as the template writes it, as far as it consists of names: messages[...].content.
static std::string written(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kName:
      return expr.name;
    case ExprKind::kAttribute:
      return written(*expr.children[0]) + "." + expr.name;
    case ExprKind::kItem: {
      const Expr& index = *expr.children[1];
      const Text* key = index.kind == ExprKind::kConstant ? index.constant.as_text() : nullptr;
      const std::int64_t* number =
          index.kind == ExprKind::kConstant ? index.constant.as_int() : nullptr;
      return written(*expr.children[0]) + "[" +
             (key != nullptr      ? "'" + std::string(key->view()) + "'"
              : number != nullptr ? std::to_string(*number)
                                  : "...") +
             "]";
    }
    case ExprKind::kConstant:
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
    case ExprKind::kSlice:
    case ExprKind::kCall:
    case ExprKind::kFilter:
    case ExprKind::kTest:
    case ExprKind::kUnary:
    case ExprKind::kBinary:
    case ExprKind::kAnd:
    case ExprKind::kOr:
    case ExprKind::kCompare:
    case ExprKind::kConditional:
    case ExprKind::kConcat:
      break;
  }
  return "(...)";
}

std::string describe_undefined(const Undefined& undefined) {
  if (undefined.origin == nullptr) return "an undefined value is used";
  std::string text = "'" + written(*undefined.origin) + "'";
  if (undefined.forbidden)
    return text + " is used, which changes a value: transformers' templates may not do that";
  return text + " is undefined; test it with `is defined`, or give it by `| default(...)`";
}

void require_defined(const Value& value) {
  if (const Undefined* undefined = value.as_undefined()) fail(describe_undefined(*undefined));
}

void append_repr(Run& run, const Value& value, TextBuilder& out) {
  const Deeper deeper(run);
  run.tick();
  switch (value.kind()) {
    case Kind::kText:
      run.tick(scan_steps(value.as_text()->size()));
      append_quoted(*value.as_text(), out);
      return;
    case Kind::kUndefined:
      append(out, "Undefined");
      return;
    case Kind::kList:
      append_list(run, *value.as_list(), out);
      return;
    case Kind::kDict:
      append_dict(run, *value.as_dict(), out);
      return;
    case Kind::kNamespace:
      append(out, "<Namespace ");
      append_dict(run, value.as_namespace()->attributes, out);
      append(out, ">");
      return;
    case Kind::kCallable:
      append(out, "<" + value.as_callable()->describe() + ">");
      return;
    case Kind::kLoop:
      append(out, "<LoopContext>");
      return;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
      append_str(run, value, out);
      return;
  }
}

void append_str(Run& run, const Value& value, TextBuilder& out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      if (value.as_undefined()->forbidden) require_defined(value);
      return;
    case Kind::kNone:
      append(out, "None");
      return;
    case Kind::kBool:
      append(out, *value.as_bool() ? "True" : "False");
      return;
    case Kind::kInt:
      append(out, std::to_string(*value.as_int()));
      return;
    case Kind::kFloat:
      append(out, float_text(*value.as_float()));
      return;
    case Kind::kBigInt: {
      run.tick(2000);
      const std::string text = value.as_big()->value.str();
      if (text.size() > 4300) fail("prints an integer of over 4,300 digits");
      append(out, text);
      return;
    }
    case Kind::kText:
      run.tick(copy_steps(value.as_text()->size()));
      out.append(*value.as_text());
      return;
    case Kind::kList:
    case Kind::kDict:
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop:
      append_repr(run, value, out);
      return;
  }
}

Text str(Run& run, const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  TextBuilder out;
  append_str(run, value, out);
  return out.take();
}

}  // namespace bulkhead::jinja

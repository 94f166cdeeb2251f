// Truth, order, operators, membership, iteration.
#include <algorithm>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/loop.hpp"
#include "worker/model/template/python.hpp"
#include "worker/model/template/python_arithmetic.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

const char* sign(Operation operation) {
  switch (operation) {
    case Operation::kAdd:
      return "+";
    case Operation::kSubtract:
    case Operation::kNegate:
      return "-";
    case Operation::kMultiply:
      return "*";
    case Operation::kDivide:
      return "/";
    case Operation::kFloorDivide:
      return "//";
    case Operation::kModulo:
      return "%";
    case Operation::kPower:
      return "**";
    case Operation::kPlus:
      return "+";
    case Operation::kNot:
      return "not";
    case Operation::kEqual:
      return "==";
    case Operation::kNotEqual:
      return "!=";
    case Operation::kLess:
      return "<";
    case Operation::kLessEqual:
      return "<=";
    case Operation::kGreater:
      return ">";
    case Operation::kGreaterEqual:
      return ">=";
    case Operation::kIn:
      return "in";
    case Operation::kNotIn:
      return "not in";
  }
  return "?";
}

Value text_sum(Run& run, const Text& a, const Text& b) {
  if (a.markup() != b.markup()) {
    const Text left = a.markup() ? a : escaped_html(run, a).as_markup();
    const Text right = b.markup() ? b : escaped_html(run, b).as_markup();
    return text_sum(run, left, right);
  }
  if (a.empty()) return b;
  if (b.empty()) return a;
  run.tick(copy_steps(a.size() + b.size()));
  TextBuilder out;
  out.reserve(a.size() + b.size());
  out.append(a);
  out.append(b);
  return a.markup() ? out.take().as_markup() : out.take();
}

Value list_sum(Run& run, const List& a, const List& b) {
  List* sum = run.heap().list(a.flavour);
  run.tick((a.items.size() + b.items.size()) / 4);
  sum->items.reserve(a.items.size() + b.items.size());
  sum->items.insert(sum->items.end(), a.items.begin(), a.items.end());
  sum->items.insert(sum->items.end(), b.items.begin(), b.items.end());
  return sum;
}

bool repeatable(const Value& value) {
  const List* list = value.as_list();
  return value.as_text() != nullptr ||
         (list != nullptr && (list->flavour == Flavour::kList || list->flavour == Flavour::kTuple));
}

Value repeated(Run& run, const Value& value, const Value& times) {
  const auto count =
      static_cast<std::size_t>(std::max<std::int64_t>(0, to_int64(times, "a factor")));
  const auto charge = [&](std::size_t size) {
    if (size > 0 && count > (std::size_t{1} << 40) / size)
      throw TemplateError(TemplateError::Kind::kLimit, "multiplies a text or list too often");
    charge_memory(size * count);  // fails before the work is done
    refund_memory(size * count);
    run.tick(copy_steps(size * count) + count / 4);
  };
  if (const Text* text = value.as_text()) {
    charge(text->size());
    TextBuilder out;
    out.reserve(text->size() * count);
    for (std::size_t i = 0; !text->empty() && i < count; ++i)
      out.append(*text);
    return out.take();
  }
  const List& list = *value.as_list();
  charge(list.items.size() * sizeof(Value));
  List* out = run.heap().list(list.flavour);
  for (std::size_t i = 0; !list.items.empty() && i < count; ++i)
    out->items.insert(out->items.end(), list.items.begin(), list.items.end());
  return out;
}

Ordering compare_lists(Run& run, const List& a, const List& b) {
  const std::size_t common = std::min(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < common; ++i)
    if (!equal(a.items[i], b.items[i])) return compare(run, a.items[i], b.items[i]);
  return a.items.size() < b.items.size()   ? Ordering::kLess
         : a.items.size() > b.items.size() ? Ordering::kGreater
                                           : Ordering::kEqual;
}

}  // namespace

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      require_defined(value.as_undefined()->forbidden ? value : Value(None{}));
      return false;
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return *value.as_bool();
    case Kind::kInt:
      return *value.as_int() != 0;
    case Kind::kFloat:
      return *value.as_float() != 0;
    case Kind::kText:
      return !value.as_text()->empty();
    case Kind::kList:
      return value.as_list()->flavour == Flavour::kGenerator || !value.as_list()->items.empty();
    case Kind::kDict:
      return !value.as_dict()->entries.empty();
    case Kind::kBigInt:
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop:
      return true;
  }
  return false;
}

Ordering compare(Run& run, const Value& a, const Value& b) {
  const Deeper deeper(run);
  run.tick_lightly();
  require_defined(a);
  require_defined(b);
  if (is_number(a) && is_number(b)) return compare_numbers(a, b);
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    run.tick(copy_steps(std::min(a.as_text()->size(), b.as_text()->size())));
    const int order = a.as_text()->view().compare(b.as_text()->view());
    return order < 0 ? Ordering::kLess : order > 0 ? Ordering::kGreater : Ordering::kEqual;
  }
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (left != nullptr && right != nullptr && left->flavour == right->flavour &&
      (left->flavour == Flavour::kList || left->flavour == Flavour::kTuple))
    return compare_lists(run, *left, *right);
  fail("compares " + a_type(a) + " with " + a_type(b) + " by '<' or '>'");
}

Value operate(Run& run, Operation operation, const Value& a, const Value& b) {
  if (is_number(a) && is_number(b))
    run.tick_lightly();
  else
    run.tick();
  if (operation == Operation::kModulo && a.as_text() != nullptr)
    return format_percent(run, *a.as_text(), b);
  require_defined(a);
  require_defined(b);
  if (is_number(a) && is_number(b)) return arithmetic(run, operation, a, b);
  if (operation == Operation::kAdd) {
    if (a.as_text() != nullptr && b.as_text() != nullptr)
      return text_sum(run, *a.as_text(), *b.as_text());
    if (repeatable(a) && repeatable(b) && a.as_list() != nullptr && b.as_list() != nullptr &&
        a.as_list()->flavour == b.as_list()->flavour)
      return list_sum(run, *a.as_list(), *b.as_list());
  }
  if (operation == Operation::kMultiply) {
    if (repeatable(a) && is_integer(b)) return repeated(run, a, b);
    if (is_integer(a) && repeatable(b)) return repeated(run, b, a);
  }
  fail(std::string("can't do '") + sign(operation) + "' with " + a_type(a) + " and " + a_type(b));
}

bool contains(Run& run, const Value& item, const Value& container) {
  run.tick();
  switch (container.kind()) {
    case Kind::kUndefined:
      if (container.as_undefined()->forbidden) require_defined(container);
      return false;
    case Kind::kText: {
      const Text* part = item.as_text();
      if (part == nullptr)
        fail("looks for " + a_type(item) + " in a string with 'in'; only a string can be in one");
      return find_text(run, container.as_text()->view(), part->view()) != std::string_view::npos;
    }
    case Kind::kList: {
      const auto& items = container.as_list()->items;
      run.tick(items.size() / 4);
      return std::any_of(items.begin(), items.end(),
                         [&item](const Value& each) { return equal(each, item); });
    }
    case Kind::kDict:
      return container.as_dict()->find(item) != nullptr;
    case Kind::kLoop: {
      const List* items = iterate(run, container);
      return contains(run, item, const_cast<List*>(items));
    }
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
    case Kind::kNamespace:
    case Kind::kCallable:
      break;
  }
  fail("looks with 'in' into " + a_type(container) + ", which has no items");
}

bool has_length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kText:
    case Kind::kDict:
    case Kind::kLoop:
      return true;
    case Kind::kList:
      return value.as_list()->flavour != Flavour::kGenerator;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
    case Kind::kNamespace:
    case Kind::kCallable:
      break;
  }
  return false;
}

std::int64_t length(const Value& value) {
  if (!has_length(value)) fail("asks for the length of " + a_type(value) + ", which has none");
  if (const Text* text = value.as_text()) return static_cast<std::int64_t>(char_count(*text));
  if (const List* list = value.as_list()) return static_cast<std::int64_t>(list->items.size());
  if (const Dict* dict = value.as_dict()) return static_cast<std::int64_t>(dict->entries.size());
  if (Loop* loop = value.as_loop()) return static_cast<std::int64_t>(loop->length());
  return 0;
}

List* iterate(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kList: {
      List* list = value.as_list();
      if (list->flavour != Flavour::kGenerator) return list;
      List* once = run.heap().list();
      once->items.swap(list->items);
      return once;
    }
    case Kind::kDict: {
      List* keys = run.heap().list();
      run.tick(value.as_dict()->entries.size() / 4);
      for (const Dict::Entry& entry : value.as_dict()->entries)
        keys->items.push_back(entry.key);
      return keys;
    }
    case Kind::kText: {
      const Text& text = *value.as_text();
      List* chars = run.heap().list();
      run.tick(text.size());
      chars->items.reserve(char_count(text));
      for_chars(text.view(), [&](char32_t, std::size_t at, std::size_t bytes) {
        chars->items.emplace_back(text.sub(at, bytes));
      });
      return chars;
    }
    case Kind::kUndefined:
      if (value.as_undefined()->forbidden) require_defined(value);
      return run.heap().list();
    case Kind::kLoop: {
      List* rest = run.heap().list();
      while (auto item = value.as_loop()->advance())
        rest->items.push_back(*std::move(item));
      return rest;
    }
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBigInt:
    case Kind::kNamespace:
    case Kind::kCallable:
      break;
  }
  fail("loops over " + a_type(value) + ", which has no items");
}

}  // namespace bulkhead::jinja

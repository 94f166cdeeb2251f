// Global functions, and the tests of `is`.
#include <algorithm>
#include <cstdio>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"

namespace bulkhead::jinja {
namespace {

// ---- functions ----

// jinja2's sandbox allows no more.
constexpr std::int64_t kMaxRange = 100'000;

Value make_range(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const bool one = bound[1] == nullptr;
  const std::int64_t start = one ? 0 : to_int64(*bound[0], "range's start");
  const std::int64_t stop = to_int64(one ? *bound[0] : *bound[1], "range's stop");
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) fail("makes a range with step 0; use another");
  const bool empty = step > 0 ? start >= stop : start <= stop;
  Range* list = run.heap().make<Range>();
  list->start = start;
  list->stop = stop;
  list->step = step;
  if (empty) return list;
  const auto span = static_cast<long double>(stop) - static_cast<long double>(start);
  if (span / static_cast<long double>(step) > static_cast<long double>(kMaxRange))
    throw TemplateError(TemplateError::Kind::kLimit,
                        "makes a range of over 100,000 numbers; that many are not allowed");
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    run.tick();
    list->items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return list;
}

void fill_dict(Interpreter& run, Dict& dict, const Arguments& arguments) {
  for (const Value& from : arguments.positional) {
    if (const Dict* other = from.as_dict()) {
      for (const Dict::Entry& entry : other->entries)
        dict.set(entry.key, entry.value);
      continue;
    }
    for (const Value& pair : iterate(run, from)->items) {
      const List* parts = iterate(run, pair);
      if (parts->items.size() != 2) fail("makes a dict of items that are no pairs");
      dict.set(parts->items[0], parts->items[1]);
    }
  }
  for (const auto& [name, value] : arguments.keyword)
    dict.set(Text(name, Origin::kTemplate), value);
}

Value make_dict(Interpreter& run, const Value&, Arguments& arguments) {
  Dict* dict = run.heap().make<Dict>();
  fill_dict(run, *dict, arguments);
  return dict;
}

Value make_namespace(Interpreter& run, const Value&, Arguments& arguments) {
  Namespace* space = run.heap().make<Namespace>();
  fill_dict(run, space->attributes, arguments);
  return space;
}

Value raise(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  const Text message = str(run, *bound[0]);
  throw TemplateError(TemplateError::Kind::kRaised, std::string(message.view()));
}

Value strftime_now(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  const Text format = bound.text(0);
  run.tick(4 + format.size() / 2);
  if (format.size() > 1000) fail("gives strftime_now a format of over 1,000 bytes");
  // The trailing mark distinguishes an empty result from one that does not fit. %f is Python's own.
  std::string pattern(format.view());
  for (std::size_t at = pattern.find('%'); at != pattern.npos && at + 1 < pattern.size();
       at = pattern.find('%', at + 2))
    if (pattern[at + 1] == 'f') pattern.replace(at, 2, "000000");
  pattern += '|';
  char buffer[16384];
  const std::size_t size =
      std::strftime(buffer, sizeof buffer, pattern.c_str(), &run.environment().now);
  if (size == 0) fail("gives strftime_now a format that fills too much");
  return Text({buffer, size - 1}, Origin::kTemplate);
}

struct Cycler : Callable {
  CountedVector<Value> items;
  std::size_t at = 0;
  Value call(Interpreter&, Arguments&) override { fail("calls a cycler; call its next()"); }
  std::optional<Value> attribute(Interpreter& run, std::string_view name) override;
  std::string describe() const override { return "cycler"; }
};

struct CyclerMethod : Callable {
  Cycler* cycler = nullptr;
  bool next = false;
  Value call(Interpreter&, Arguments&) override {
    if (!next) {
      cycler->at = 0;
      return None{};
    }
    Value item = cycler->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items.size();
    return item;
  }
};

std::optional<Value> Cycler::attribute(Interpreter& run, std::string_view name) {
  if (name == "current") return items[at];
  if (name != "next" && name != "reset") return std::nullopt;
  auto* method = run.heap().make<CyclerMethod>();
  method->cycler = this;
  method->next = name == "next";
  return static_cast<Callable*>(method);
}

Value make_cycler(Interpreter& run, const Value&, Arguments& arguments) {
  if (arguments.positional.empty()) fail("makes a cycler() of nothing; give it items");
  Cycler* cycler = run.heap().make<Cycler>();
  cycler->items = arguments.positional;
  return static_cast<Callable*>(cycler);
}

struct Joiner : Callable {
  Text separator;
  bool used = false;
  Value call(Interpreter&, Arguments&) override {
    return std::exchange(used, true) ? separator : Text();
  }
  std::string describe() const override { return "joiner"; }
};

Value make_joiner(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  Joiner* joiner = run.heap().make<Joiner>();
  joiner->separator = bound.text(0, ", ");
  return static_cast<Callable*>(joiner);
}

constexpr NativeFunction kGlobals[] = {
    {"range", make_range},          {"dict", make_dict},
    {"namespace", make_namespace},  {"raise_exception", raise},
    {"strftime_now", strftime_now}, {"cycler", make_cycler},
    {"joiner", make_joiner},
};

// ---- tests ----

template <Kind... kinds>
Value is_of_kind(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("test", arguments, {});
  return ((self.kind() == kinds) || ...);
}

Value is_defined(Interpreter&, const Value& self, Arguments&) {
  return !self.undefined();
}
template <bool wanted>
Value is_bool(Interpreter&, const Value& self, Arguments&) {
  return self.as_bool() != nullptr && *self.as_bool() == wanted;
}
Value is_integer_test(Interpreter&, const Value& self, Arguments&) {
  return self.as_int() != nullptr || self.as_big() != nullptr;
}
Value is_number_test(Interpreter&, const Value& self, Arguments&) {
  return is_number(self);
}

Value is_sequence(Interpreter&, const Value& self, Arguments&) {
  if (const List* list = self.as_list())
    return list->flavour != Flavour::kGenerator && list->flavour != Flavour::kView;
  return self.as_text() != nullptr || self.as_dict() != nullptr || self.undefined();
}
Value is_iterable(Interpreter&, const Value& self, Arguments&) {
  return self.as_list() != nullptr || self.as_text() != nullptr || self.as_dict() != nullptr ||
         self.as_loop() != nullptr || self.undefined();
}

template <bool odd>
Value is_parity(Interpreter& run, const Value& self, Arguments&) {
  const Value rest = operate(run, Operation::kModulo, self, Value(std::int64_t{2}));
  return equal(rest, Value(std::int64_t{odd ? 1 : 0}));
}

Value is_divisible(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return equal(operate(run, Operation::kModulo, self, *bound[0]), Value(std::int64_t{0}));
}

template <Operation operation>
Value is_compared(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("comparison", arguments, {"other"}, 1);
  const Value& other = *bound[0];
  if constexpr (operation == Operation::kEqual) return equal(self, other);
  if constexpr (operation == Operation::kNotEqual) return !equal(self, other);
  if constexpr (operation == Operation::kIn) return contains(run, self, other);
  const Ordering order = compare(run, self, other);
  const bool same = order == Ordering::kEqual;
  if constexpr (operation == Operation::kLess) return order == Ordering::kLess;
  if constexpr (operation == Operation::kLessEqual) return order == Ordering::kLess || same;
  if constexpr (operation == Operation::kGreater) return order == Ordering::kGreater;
  return order == Ordering::kGreater || same;
}

Value is_same(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("sameas", arguments, {"other"}, 1);
  if (self.kind() != bound[0]->kind()) return false;
  if (self.as_list() != nullptr) return self.as_list() == bound[0]->as_list();
  if (self.as_dict() != nullptr) return self.as_dict() == bound[0]->as_dict();
  return equal(self, *bound[0]);
}

template <Case wanted>
Value is_cased(Interpreter& run, const Value& self, Arguments&) {
  const Text text = str(run, self);
  bool cased = false;
  bool other = false;
  for_chars(text.view(), [&](char32_t code, std::size_t, std::size_t) {
    const bool upper = is_kind(code, CharKind::kUpper);
    const bool lower = is_kind(code, CharKind::kLower);
    cased |= wanted == Case::kUpper ? upper : lower;
    other |= wanted == Case::kUpper ? lower : upper;
  });
  return cased && !other;
}

template <bool (*known)(std::string_view)>
Value names_known(Interpreter& run, const Value& self, Arguments&) {
  return known(str(run, self).view());
}
bool filter_known(std::string_view name) {
  return find_filter(name) != nullptr;
}
bool test_known(std::string_view name) {
  return find_test(name) != nullptr;
}
Value is_escaped(Interpreter&, const Value& self, Arguments&) {
  return self.as_text() != nullptr && self.as_text()->markup();
}
Value is_callable(Interpreter&, const Value& self, Arguments&) {
  return self.as_callable() != nullptr || self.as_loop() != nullptr || self.undefined();
}

constexpr NativeFunction kTests[] = {
    {"defined", is_defined},
    {"undefined", is_of_kind<Kind::kUndefined>},
    {"none", is_of_kind<Kind::kNone>},
    {"boolean", is_of_kind<Kind::kBool>},
    {"true", is_bool<true>},
    {"false", is_bool<false>},
    {"integer", is_integer_test},
    {"float", is_of_kind<Kind::kFloat>},
    {"number", is_number_test},
    {"string", is_of_kind<Kind::kText>},
    {"mapping", is_of_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"odd", is_parity<true>},
    {"even", is_parity<false>},
    {"divisibleby", is_divisible},
    {"eq", is_compared<Operation::kEqual>},
    {"equalto", is_compared<Operation::kEqual>},
    {"==", is_compared<Operation::kEqual>},
    {"ne", is_compared<Operation::kNotEqual>},
    {"!=", is_compared<Operation::kNotEqual>},
    {"lt", is_compared<Operation::kLess>},
    {"lessthan", is_compared<Operation::kLess>},
    {"<", is_compared<Operation::kLess>},
    {"le", is_compared<Operation::kLessEqual>},
    {"<=", is_compared<Operation::kLessEqual>},
    {"gt", is_compared<Operation::kGreater>},
    {"greaterthan", is_compared<Operation::kGreater>},
    {">", is_compared<Operation::kGreater>},
    {"ge", is_compared<Operation::kGreaterEqual>},
    {">=", is_compared<Operation::kGreaterEqual>},
    {"in", is_compared<Operation::kIn>},
    {"sameas", is_same},
    {"upper", is_cased<Case::kUpper>},
    {"lower", is_cased<Case::kLower>},
    {"filter", names_known<filter_known>},
    {"test", names_known<test_known>},
    {"escaped", is_escaped},
};

const NativeFunction* find_row(std::span<const NativeFunction> rows, std::string_view name) {
  const auto at = std::find_if(rows.begin(), rows.end(),
                               [name](const NativeFunction& row) { return row.name == name; });
  return at == rows.end() ? nullptr : &*at;
}

}  // namespace

const NativeFunction* find_global(std::string_view name) {
  return find_row(kGlobals, name);
}
const NativeFunction* find_test(std::string_view name) {
  return find_row(kTests, name);
}

}  // namespace bulkhead::jinja

// Methods of lists and dicts, and the members of loops. Methods that change a value are extensions: transformers'
// sandbox refuses them, but two templates in use need them.
#include <algorithm>

#include "worker/model/template/interpreter.hpp"

namespace bulkhead::jinja {
namespace {

// ---- lists ----

List& list_of(const Value& self) {
  return *self.as_list();
}

std::size_t position(const List& list, std::int64_t at, const char* what) {
  const auto size = static_cast<std::int64_t>(list.items.size());
  if (at < 0) at += size;
  if (at < 0 || at >= size) fail(std::string(what) + " of a list at an index that it doesn't have");
  return static_cast<std::size_t>(at);
}

Value list_count(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"value"}, 1);
  const auto& items = list_of(self).items;
  run.tick(items.size());
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, *bound[0]); }));
}

Value list_index(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("index", arguments, {"value"}, 1);
  const auto& items = list_of(self).items;
  run.tick(items.size());
  const auto at = std::find_if(items.begin(), items.end(),
                               [&](const Value& item) { return equal(item, *bound[0]); });
  if (at == items.end()) fail("'index' does not find the value in the list");
  return static_cast<std::int64_t>(at - items.begin());
}

Value list_copy(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("copy", arguments, {});
  List* copy = run.heap().list();
  copy->items = list_of(self).items;
  run.tick(copy->items.size() / 4);
  return copy;
}

Value append(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("append", arguments, {"value"}, 1);
  list_of(self).items.push_back(*bound[0]);
  return None{};
}

Value extend(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("extend", arguments, {"items"}, 1);
  const CountedVector<Value> more = iterate(run, *bound[0])->items;  // the argument may be the list itself
  run.tick(more.size() / 4);
  list_of(self).items.insert(list_of(self).items.end(), more.begin(), more.end());
  return None{};
}

Value insert(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("insert", arguments, {"index", "value"}, 2);
  auto& items = list_of(self).items;
  const auto size = static_cast<std::int64_t>(items.size());
  std::int64_t at = bound.integer(0, 0);
  if (at < 0) at = std::max<std::int64_t>(0, at + size);
  run.tick(items.size() / 16);
  const Value value = *bound[1];
  items.insert(items.begin() + std::min(at, size), value);
  return None{};
}

Value list_pop(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("pop", arguments, {"index"});
  auto& items = list_of(self).items;
  const std::size_t at = position(list_of(self), bound.integer(0, -1), "'pop'");
  run.tick((items.size() - at) / 16);
  Value value = items[at];
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  return value;
}

Value remove(Interpreter& run, const Value& self, Arguments& arguments) {
  const Value at = list_index(run, self, arguments);
  list_of(self).items.erase(list_of(self).items.begin() + *at.as_int());
  return None{};
}

Value reverse(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  auto& items = list_of(self).items;
  run.tick(items.size() / 4);
  std::reverse(items.begin(), items.end());
  return None{};
}

Value sort(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse"});
  Arguments sorting;
  sorting.keyword.emplace_back("reverse", bound.flag(0, false));
  sorting.keyword.emplace_back("case_sensitive", true);
  const Value sorted = run.filter("sort", self, sorting);
  list_of(self).items = sorted.as_list()->items;
  return None{};
}

Value list_clear(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("clear", arguments, {});
  list_of(self).items.clear();
  return None{};
}

constexpr NativeFunction kList[] = {
    {"count", list_count},
    {"index", list_index},
    {"copy", list_copy},
    {"append", append, Standing::kExtension},
    {"extend", extend, Standing::kExtension},
    {"insert", insert, Standing::kExtension},
    {"pop", list_pop, Standing::kExtension},
    {"remove", remove, Standing::kExtension},
    {"reverse", reverse, Standing::kExtension},
    {"sort", sort, Standing::kExtension},
    {"clear", list_clear, Standing::kExtension},
};

// ---- dicts ----

Value dict_get(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("get", arguments, {"key", "default"}, 1);
  const Value* found = self.as_dict()->find(*bound[0]);
  return found != nullptr ? *found : bound.at(1, None{});
}

enum class Part : std::uint8_t { kKeys, kValues, kItems };

template <Part part>
Value dict_view(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("keys, values or items", arguments, {});
  List* view = run.heap().list(Flavour::kView);
  view->view_name = part == Part::kKeys     ? "dict_keys"
                    : part == Part::kValues ? "dict_values"
                                            : "dict_items";
  view->items.reserve(self.as_dict()->entries.size());
  for (const Dict::Entry& entry : self.as_dict()->entries) {
    run.tick();
    if (part == Part::kKeys) view->items.push_back(entry.key);
    if (part == Part::kValues) view->items.push_back(entry.value);
    if (part == Part::kItems) {
      List* pair = run.heap().list(Flavour::kTuple);
      pair->items = {entry.key, entry.value};
      view->items.emplace_back(pair);
    }
  }
  return view;
}

Value dict_copy(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("copy", arguments, {});
  Dict* copy = run.heap().make<Dict>();
  *copy = *self.as_dict();
  run.tick(copy->entries.size());
  return copy;
}

Value dict_pop(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("pop", arguments, {"key", "default"}, 1);
  run.tick(self.as_dict()->entries.size());
  if (auto value = self.as_dict()->erase(*bound[0])) return *value;
  if (bound[1] == nullptr) fail("'pop' does not find the key in the dict");
  return *bound[1];
}

Value update(Interpreter& run, const Value& self, Arguments& arguments) {
  const Value from = find_global("dict")->call(run, None{}, arguments);
  for (const Dict::Entry& entry : from.as_dict()->entries) {
    run.tick();
    self.as_dict()->set(entry.key, entry.value);
  }
  return None{};
}

Value setdefault(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("setdefault", arguments, {"key", "default"}, 1);
  if (const Value* found = self.as_dict()->find(*bound[0])) return *found;
  self.as_dict()->set(*bound[0], bound.at(1, None{}));
  return bound.at(1, None{});
}

Value dict_clear(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("clear", arguments, {});
  self.as_dict()->clear();
  return None{};
}

constexpr NativeFunction kDict[] = {
    {"get", dict_get},
    {"keys", dict_view<Part::kKeys>},
    {"values", dict_view<Part::kValues>},
    {"items", dict_view<Part::kItems>},
    {"copy", dict_copy},
    {"pop", dict_pop, Standing::kExtension},
    {"update", update, Standing::kExtension},
    {"setdefault", setdefault, Standing::kExtension},
    {"clear", dict_clear, Standing::kExtension},
};

// ---- loops ----

Loop& loop_of(const Value& self) {
  return *self.as_loop();
}

template <std::int64_t add>
Value index(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).index0 + add;
}
template <std::int64_t add>
Value reverse_index(Interpreter& run, const Value& self, Arguments&) {
  run.tick();
  return loop_of(self).length() - loop_of(self).index0 - 1 + add;
}
template <std::int64_t add>
Value depth(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).depth0 + add;
}
Value is_first(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).index0 == 0;
}
Value is_last(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).peek() == nullptr;
}
Value loop_length(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).length();
}
Value previous_item(Interpreter&, const Value& self, Arguments&) {
  return loop_of(self).previous.value_or(Undefined{});
}
Value next_item(Interpreter&, const Value& self, Arguments&) {
  const Value* next = loop_of(self).peek();
  return next == nullptr ? Value(Undefined{}) : *next;
}
Value cycle(Interpreter&, const Value& self, Arguments& arguments) {
  const auto& items = arguments.positional;
  if (items.empty()) fail("'loop.cycle' has nothing to choose from; give it values");
  return items[static_cast<std::size_t>(loop_of(self).index0) % items.size()];
}
Value changed(Interpreter& run, const Value& self, Arguments& arguments) {
  List* now = run.heap().list(Flavour::kTuple);
  now->items = arguments.positional;
  std::optional<Value>& before = loop_of(self).changed;
  const bool same = before && equal(*before, now);
  before = now;
  return !same;
}

constexpr NativeFunction kLoop[] = {
    {"index", index<1>},
    {"index0", index<0>},
    {"revindex", reverse_index<1>},
    {"revindex0", reverse_index<0>},
    {"first", is_first},
    {"last", is_last},
    {"length", loop_length},
    {"depth", depth<1>},
    {"depth0", depth<0>},
    {"previtem", previous_item},
    {"nextitem", next_item},
    {"cycle", cycle},
    {"changed", changed},
};

}  // namespace

std::span<const NativeFunction> list_methods() {
  return kList;
}
std::span<const NativeFunction> dict_methods() {
  return kDict;
}
std::span<const NativeFunction> loop_methods() {
  return kLoop;
}

}  // namespace bulkhead::jinja

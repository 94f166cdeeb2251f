// Filters that choose, order and group items.
#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"
#include "worker/model/template/text_tools.hpp"

namespace bulkhead::jinja {
namespace {

List* generator(Interpreter& run) {
  return run.heap().list(Flavour::kGenerator);
}

// Gets "a.b.0" of an item, or the item itself if there is no `path`.
class Getter {
 public:
  Getter(Interpreter& run, const Value* path, const Value* otherwise = nullptr)
      : run_(run), otherwise_(otherwise) {
    if (path == nullptr || path->none()) return;
    if (path->as_text() == nullptr) {
      parts_.push_back(*path);
      return;
    }
    const Text& text = *path->as_text();
    for (std::size_t at = 0; at <= text.size();) {
      run.tick(1);
      const std::size_t dot = std::min(text.view().find('.', at), text.size());
      const Text part = text.sub(at, dot - at);
      std::int64_t number = 0;
      const char* end = part.view().data() + part.size();
      const bool digits = !part.empty() &&
                          part.view().find_first_not_of("0123456789") == std::string_view::npos &&
                          std::from_chars(part.view().data(), end, number).ptr == end;
      parts_.push_back(digits ? Value(number) : Value(part));
      at = dot + 1;
    }
  }
  Value operator()(const Value& item) const {
    run_.tick();
    Value value = item;
    for (const Value& part : parts_) {
      value = run_.item(value, part);
      if (value.undefined() && otherwise_ != nullptr) value = *otherwise_;
    }
    return value;
  }

 private:
  Interpreter& run_;
  const Value* otherwise_;
  CountedVector<Value> parts_;
};

// Returns the value by which items are compared: text in small letters, unless case counts.
Value key_of(const Value& value, bool case_sensitive) {
  if (case_sensitive || value.as_text() == nullptr) return value;
  return with_case(*value.as_text(), Case::kLower);
}

struct Keyed {
  Value key;
  Value item;
};

void sort_keyed(Interpreter& run, CountedVector<Keyed>& items, bool reverse) {
  const auto less = [&run](const Keyed& a, const Keyed& b) {
    return compare(run, a.key, b.key) == Ordering::kLess;
  };
  if (!reverse) return std::stable_sort(items.begin(), items.end(), less);
  std::stable_sort(items.begin(), items.end(),
                   [&less](const Keyed& a, const Keyed& b) { return less(b, a); });
}

Value sort(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.flag(1, false);
  CountedVector<Getter> getters;  // "a,b" sorts by a, then by b
  if (bound[2] != nullptr && bound[2]->as_text() != nullptr) {
    const Text paths = *bound[2]->as_text();
    for (std::size_t at = 0; at <= paths.size();) {
      const std::size_t comma = std::min(paths.view().find(',', at), paths.size());
      const Value path = paths.sub(at, comma - at);
      getters.emplace_back(run, &path);
      at = comma + 1;
    }
  } else {
    getters.emplace_back(run, bound[2]);
  }
  CountedVector<Keyed> keyed;
  for (const Value& item : iterate(run, self)->items) {
    if (getters.size() == 1) {
      const Value key = getters[0](item);
      if (!key.undefined()) {
        keyed.push_back({key_of(key, case_sensitive), item});
        continue;
      }
    }
    // In a list, two undefined values are equal, and nothing asks which one is less.
    List* key = run.heap().list();
    for (const Getter& getter : getters)
      key->items.push_back(key_of(getter(item), case_sensitive));
    keyed.push_back({key, item});
  }
  sort_keyed(run, keyed, bound.flag(0, false));
  List* out = run.heap().list();
  for (Keyed& each : keyed)
    out->items.push_back(std::move(each.item));
  return out;
}

List* pair_of(Interpreter& run, const Value& first, const Value& second) {
  List* pair = run.heap().list(Flavour::kTuple);
  pair->items.push_back(first);
  pair->items.push_back(second);
  return pair;
}

Value dictsort(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const bool case_sensitive = bound.flag(0, false);
  const Text by = bound.text(1, "key");
  if (by.view() != "key" && by.view() != "value") fail("'dictsort' sorts by \"key\" or \"value\"");
  require_defined(self);
  if (self.as_dict() == nullptr) fail("'dictsort' needs a dict, and gets " + a_type(self));
  CountedVector<Keyed> keyed;
  for (const Dict::Entry& entry : self.as_dict()->entries)
    keyed.push_back({key_of(by.view() == "key" ? entry.key : entry.value, case_sensitive),
                     pair_of(run, entry.key, entry.value)});
  sort_keyed(run, keyed, bound.flag(2, false));
  List* out = run.heap().list();
  for (Keyed& each : keyed)
    out->items.push_back(std::move(each.item));
  return out;
}

Value groupby(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const Getter getter(run, bound[0], bound[1]);
  const bool case_sensitive = bound.flag(2, false);
  CountedVector<Keyed> keyed;
  for (const Value& item : iterate(run, self)->items)
    keyed.push_back({key_of(getter(item), case_sensitive), item});
  sort_keyed(run, keyed, false);
  List* groups = run.heap().list();
  List* members = nullptr;
  for (std::size_t i = 0; i < keyed.size(); ++i) {
    if (i == 0 || !equal(keyed[i - 1].key, keyed[i].key)) {
      members = run.heap().list();
      List* group = pair_of(run, getter(keyed[i].item), members);
      group->is_group = true;
      groups->items.emplace_back(group);
    }
    members->items.push_back(keyed[i].item);
  }
  return groups;
}

Value unique(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const Getter getter(run, bound[1]);
  Dict* seen = run.heap().make<Dict>();
  List* out = generator(run);
  for (const Value& item : iterate(run, self)->items) {
    const Value key = key_of(getter(item), bound.flag(0, false));
    if (seen->find(key) != nullptr) continue;
    seen->set(key, true);
    out->items.push_back(item);
  }
  return out;
}

template <Ordering wanted>
Value extreme(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("min or max", arguments, {"case_sensitive", "attribute"});
  const Getter getter(run, bound[1]);
  const List* items = iterate(run, self);
  if (items->items.empty()) return Undefined{};
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    Value key = key_of(getter(item), bound.flag(0, false));
    if (best != nullptr && compare(run, key, best_key) != wanted) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const Getter getter(run, bound[0]);
  Value total = bound.at(1, std::int64_t{0});
  if (total.as_text() != nullptr) fail("'sum' adds no strings; use 'join'");
  for (const Value& item : iterate(run, self)->items)
    total = operate(run, Operation::kAdd, total, getter(item));
  return total;
}

Value join(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const Text separator = bound[0] == nullptr ? Text() : str(run, *bound[0]);
  const List* items = iterate(run, self);
  if (bound[1] == nullptr) return joined(run, separator, *items);
  const Getter getter(run, bound[1]);
  List* parts = run.heap().list();
  for (const Value& item : items->items)
    parts->items.push_back(getter(item));
  return joined(run, separator, *parts);
}

Value to_list(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("list", arguments, {});
  const List* items = iterate(run, self);
  List* out = run.heap().list();
  run.tick(items->items.size() / 4);
  out->items = items->items;
  return out;
}

Value first(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("first", arguments, {});
  if (const Text* text = self.as_text())
    return text->empty() ? Value(Undefined{}) : Value(char_slice(*text, 0, 1));
  const List* items = iterate(run, self);
  return items->items.empty() ? Value(Undefined{}) : items->items.front();
}

Value last(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("last", arguments, {});
  if (self.as_list() != nullptr && self.as_list()->flavour == Flavour::kGenerator)
    fail("takes the last of a generator; put '| list' before it");
  const List* items = iterate(run, self);
  return items->items.empty() ? Value(Undefined{}) : items->items.back();
}

Value count(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("length", arguments, {});
  if (self.as_undefined() != nullptr && self.as_undefined()->forbidden) require_defined(self);
  return length(self);
}

Value reverse(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  const List* items = iterate(run, self);
  List* out = generator(run);
  out->items.assign(items->items.rbegin(), items->items.rend());
  run.tick(items->items.size() / 4);
  return self.as_text() != nullptr ? Value(joined(run, {}, *out)) : Value(out);
}

Value items_of(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("items", arguments, {});
  List* out = generator(run);
  if (self.undefined()) return out;
  if (self.as_dict() == nullptr) fail("'items' needs a dict, and gets " + a_type(self));
  for (const Dict::Entry& entry : self.as_dict()->entries)
    out->items.emplace_back(pair_of(run, entry.key, entry.value));
  run.tick(out->items.size());
  return out;
}

Value random(Interpreter&, const Value&, Arguments&) {
  fail("uses 'random'; a prompt has to be the same each time, so take '| first' or an index");
}

Value batch(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  const std::int64_t size = bound.integer(0, 1);
  if (size > 100'000) fail("'batch' makes rows of over 100,000");
  List* rows = generator(run);
  List* row = run.heap().list();
  for (const Value& item : iterate(run, self)->items) {
    run.tick();
    if (static_cast<std::int64_t>(row->items.size()) == size) {
      rows->items.emplace_back(row);
      row = run.heap().list();
    }
    row->items.push_back(item);
  }
  if (row->items.empty()) return rows;
  const bool fills = bound[1] != nullptr && !bound[1]->none();
  while (fills && static_cast<std::int64_t>(row->items.size()) < size)
    row->items.push_back(*bound[1]);
  rows->items.emplace_back(row);
  return rows;
}

Value slice(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  const std::int64_t slices = bound.integer(0, 1);
  if (slices < 1 || slices > 100'000) fail("'slice' makes between 1 and 100,000 columns");
  const List* items = iterate(run, self);
  const auto total = static_cast<std::int64_t>(items->items.size());
  const std::int64_t each = total / slices;
  const std::int64_t longer = total % slices;
  const bool fills = bound[1] != nullptr && !bound[1]->none();
  List* columns = generator(run);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::int64_t size = each + (i < longer ? 1 : 0);
    run.tick(1 + static_cast<std::uint64_t>(size) / 4);
    List* column = run.heap().list();
    column->items.assign(items->items.begin() + at, items->items.begin() + at + size);
    if (fills && i >= longer) column->items.push_back(*bound[1]);
    columns->items.emplace_back(column);
    at += size;
  }
  return columns;
}

// ---- choosing ----

Arguments after(const Arguments& arguments, std::size_t skip) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(skip),
                         arguments.positional.end());
  rest.keyword = arguments.keyword;
  return rest;
}

enum class Wanted : bool { kFails, kPasses };

template <Wanted wanted, bool by_attribute>
Value choose(Interpreter& run, const Value& self, Arguments& arguments) {
  constexpr std::size_t kTestAt = by_attribute ? 1 : 0;
  const auto& given = arguments.positional;
  if (by_attribute && given.empty()) fail("'selectattr' and 'rejectattr' need an attribute's name");
  const Getter getter(run, by_attribute ? &given[0] : nullptr);
  const bool tests = given.size() > kTestAt;
  Text name;
  Arguments rest;
  if (tests) {
    if (given[kTestAt].as_text() == nullptr) fail("a test's name has to be a string");
    name = *given[kTestAt].as_text();
    rest = after(arguments, kTestAt + 1);
  }
  List* out = generator(run);
  if (!truthy(self)) return out;  // also if it is none
  for (const Value& item : iterate(run, self)->items) {
    const Value value = getter(item);
    const bool passes = tests ? run.test(name.view(), value, rest) : truthy(value);
    if (passes == (wanted == Wanted::kPasses)) out->items.push_back(item);
  }
  return out;
}

Value map(Interpreter& run, const Value& self, Arguments& arguments) {
  List* out = generator(run);
  if (!truthy(self)) return out;  // also if it is none
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    const Getter getter(run, bound[0], bound[1]);
    for (const Value& item : iterate(run, self)->items)
      out->items.push_back(getter(item));
    return out;
  }
  if (arguments.positional[0].as_text() == nullptr) fail("'map' needs a filter's name");
  const Text name = *arguments.positional[0].as_text();
  Arguments rest = after(arguments, 1);
  for (const Value& item : iterate(run, self)->items)
    out->items.push_back(run.filter(name.view(), item, rest));
  return out;
}

constexpr NativeFunction kRows[] = {
    {"sort", sort},
    {"dictsort", dictsort},
    {"groupby", groupby},
    {"unique", unique},
    {"min", extreme<Ordering::kLess>},
    {"max", extreme<Ordering::kGreater>},
    {"sum", sum},
    {"join", join},
    {"list", to_list},
    {"first", first},
    {"last", last},
    {"length", count},
    {"count", count},
    {"reverse", reverse},
    {"items", items_of},
    {"random", random},
    {"batch", batch},
    {"slice", slice},
    {"select", choose<Wanted::kPasses, false>},
    {"reject", choose<Wanted::kFails, false>},
    {"selectattr", choose<Wanted::kPasses, true>},
    {"rejectattr", choose<Wanted::kFails, true>},
    {"map", map},
};

}  // namespace

std::span<const NativeFunction> sequence_filters() {
  return kRows;
}

}  // namespace bulkhead::jinja

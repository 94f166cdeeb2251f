#include "worker/model/template/native.hpp"

#include <algorithm>
#include <unordered_map>

#include "worker/model/template/python.hpp"

namespace bulkhead::jinja {
namespace {

using Table = std::unordered_map<std::string_view, const NativeFunction*>;

Table table_of(std::initializer_list<std::span<const NativeFunction>> parts) {
  Table table;
  for (const auto& rows : parts)
    for (const NativeFunction& row : rows)
      table.emplace(row.name, &row);
  return table;
}

const NativeFunction* find_in(const Table& table, std::string_view name) {
  Run::tick_of_thread(scan_steps(name.size()));
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

}  // namespace

const NativeFunction* find_filter(std::string_view name) {
  static const Table table = table_of({text_filters(), sequence_filters(), value_filters()});
  return find_in(table, name);
}

const NativeFunction* find_method(const Value& self, std::string_view name) {
  static const Table of_text = table_of({text_methods()});
  static const Table of_list = table_of({list_methods()});
  static const Table of_dict = table_of({dict_methods()});
  static const Table of_loop = table_of({loop_methods()});
  static const Table of_float = table_of({float_methods()});
  switch (self.kind()) {
    case Kind::kText:
      return find_in(of_text, name);
    case Kind::kList: {
      const Flavour flavour = self.as_list()->flavour;
      const NativeFunction* found = find_in(of_list, name);
      if (flavour == Flavour::kList) return found;
      const bool of_tuples = name == "count" || name == "index";
      return flavour == Flavour::kTuple && of_tuples ? found : nullptr;
    }
    case Kind::kDict:
      return find_in(of_dict, name);
    case Kind::kLoop:
      return find_in(of_loop, name);
    case Kind::kFloat:
      return find_in(of_float, name);
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kNamespace:
    case Kind::kCallable:
      break;
  }
  return nullptr;
}

Bound::Bound(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names, std::size_t required)
    : function_(function) {
  const std::string who = "'" + std::string(function) + "'";
  std::copy(names.begin(), names.end(), names_);
  if (arguments.positional.size() > names.size())
    fail(who + " takes at most " + std::to_string(names.size()) + " arguments, and gets " +
         std::to_string(arguments.positional.size()));
  for (std::size_t i = 0; i < arguments.positional.size(); ++i)
    values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto at =
        static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) fail(who + " takes no argument '" + std::string(name) + "'");
    if (values_[at] != nullptr) fail(who + " gets its argument '" + std::string(name) + "' twice");
    values_[at] = &value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (values_[i] == nullptr) fail(who + " lacks its argument '" + std::string(names_[i]) + "'");
}

Value Bound::at(std::size_t i, Value otherwise) const {
  return values_[i] == nullptr ? std::move(otherwise) : *values_[i];
}

bool Bound::flag(std::size_t i, bool otherwise) const {
  return values_[i] == nullptr ? otherwise : truthy(*values_[i]);
}

std::int64_t Bound::integer(std::size_t i, std::int64_t otherwise) const {
  if (values_[i] == nullptr || values_[i]->none()) return otherwise;
  return to_int64(*values_[i], std::string(names_[i]) + " of '" + std::string(function_) + "'");
}

Text Bound::text(std::size_t i, std::string_view otherwise) const {
  if (values_[i] == nullptr) return Text(otherwise, Origin::kTemplate);
  require_defined(*values_[i]);
  if (values_[i]->as_text() == nullptr)
    fail("'" + std::string(function_) + "' needs a string as " + std::string(names_[i]) +
         ", and gets " + a_type(*values_[i]));
  return *values_[i]->as_text();
}

}  // namespace bulkhead::jinja

// Filters, tests, methods and global functions: rows with a name and a function, found by name.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "worker/model/template/memory.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

class Interpreter;

struct Arguments {
  CountedVector<Value> positional;
  CountedVector<std::pair<std::string_view, Value>> keyword;  // names outlive the call
};

// `self` is what the filter, test or method is applied to; none for a global function.
using NativeCall = Value (*)(Interpreter& interpreter, const Value& self, Arguments& arguments);

// Whether transformers has it, too. Two templates in use need more than transformers offers.
enum class Standing : bool { kStandard, kExtension };

struct NativeFunction {
  std::string_view name;
  NativeCall call;
  Standing standing = Standing::kStandard;
};

// Return null if there is none.
const NativeFunction* find_filter(std::string_view name);
const NativeFunction* find_test(std::string_view name);
const NativeFunction* find_global(std::string_view name);
// Returns a method or computed attribute of such a value.
const NativeFunction* find_method(const Value& self, std::string_view name);

// The rows; each list is in a file of its own.
std::span<const NativeFunction> text_filters();
std::span<const NativeFunction> sequence_filters();
std::span<const NativeFunction> value_filters();
std::span<const NativeFunction> text_methods();
std::span<const NativeFunction> list_methods();
std::span<const NativeFunction> dict_methods();
std::span<const NativeFunction> loop_methods();
std::span<const NativeFunction> float_methods();

struct Callable : Object {
  virtual Value call(Interpreter& interpreter, Arguments& arguments) = 0;
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual std::string describe() const { return "function"; }
  // Returns the built-in function that a call reaches; null for a macro or another callable.
  virtual const NativeFunction* native() const { return nullptr; }
};

struct BoundFunction : Callable {
  const NativeFunction* function = nullptr;
  Value self = None{};
  Value call(Interpreter& interpreter, Arguments& arguments) override {
    return function->call(interpreter, self, arguments);
  }
  std::string describe() const override { return "function " + std::string(function->name); }
  const NativeFunction* native() const override { return function; }
};

// Arguments assigned to parameters. Fails for too many arguments, an unknown name, or a missing required argument.
class Bound {
 public:
  // The first `required` of `names` must be given.
  Bound(std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> names, std::size_t required = 0);

  const Value* operator[](std::size_t i) const { return values_[i]; }  // null: not given
  // Returns `otherwise` for an argument that is not given, or (except in at()) is none.
  Value at(std::size_t i, Value otherwise) const;
  bool flag(std::size_t i, bool otherwise) const;
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  Text text(std::size_t i, std::string_view otherwise = {}) const;

 private:
  static constexpr std::size_t kMost = 8;
  std::string_view function_;
  std::string_view names_[kMost];
  const Value* values_[kMost] = {};
};

}  // namespace bulkhead::jinja

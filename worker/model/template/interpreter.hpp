// Runs a Program and writes its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/model/template/loop.hpp"
#include "worker/model/template/native.hpp"
#include "worker/model/template/python.hpp"
#include "worker/model/template/run.hpp"
#include "worker/model/template/syntax.hpp"

namespace bulkhead::jinja {

// The names of a loop, a macro or a {% with %}. A macro keeps the scope in which it was defined.
struct Scope : Object {
  Scope* outer = nullptr;
  bool captured = false;
  CountedVector<std::pair<Symbol, Value>> names;

  Value* find(Symbol symbol) {
    for (auto& [name, value] : names)
      if (name == symbol) return &value;
    return nullptr;
  }
  void set(Symbol symbol, Value value) {
    if (Value* known = find(symbol))
      *known = std::move(value);
    else
      names.emplace_back(symbol, std::move(value));
  }
};

struct Environment {
  std::tm now = {};  // the time for strftime_now
  // Enables what two templates in use need beyond transformers: changing lists and dicts, from_json.
  bool extensions = true;
};

class Interpreter : public Run {
 public:
  Interpreter(const Program& program, const Environment& environment, const Limits& limits);

  // Defines a variable of the template.
  void define(std::string_view name, Value value);
  Text render();
  std::uint32_t line() const { return line_; }  // where it is, or where it failed

  const Environment& environment() const { return environment_; }
  bool allowed(const NativeFunction& function) const {
    return environment_.extensions || function.standing == Standing::kStandard;
  }

  Value call(const Value& callee, Arguments& arguments);
  // value.name and value[index]; undefined, with `origin`, if there is none
  Value attribute(const Value& value, std::string_view name, const Expr* origin = nullptr);
  Value item(const Value& value, const Value& index, const Expr* origin = nullptr);
  Value filter(std::string_view name, const Value& self, Arguments& arguments);
  bool test(std::string_view name, const Value& self, Arguments& arguments);
  Value call_macro(const MacroNode& macro, Scope* closure, Arguments& arguments);

 private:
  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };
  class Captured;

  // ---- execute.cpp ----
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow if_statement(const Statement& statement);
  Flow for_statement(const Statement& statement);
  // Runs a loop over items; runs its `otherwise` if there are none.
  Flow run_loop(const Statement& statement, const Value& items, std::int64_t depth0);
  // Returns whether nothing else can hold `source`, the items of a loop over `expr`.
  bool only_loops_over(const Expr& expr, const Value& items, const List& source) const;
  void set_block(const Statement& statement);
  void call_block(const Statement& statement);
  Flow with_statement(const Statement& statement);
  Flow scoped_body(const Body& body);
  void assign(const Target& target, const Value& value);
  void define_macro(const Statement& statement);
  Scope* enter_scope(Scope* outer);
  void leave_scope(Scope* scope);
  Loop* enter_loop();
  void leave_loop(Loop* loop);
  void set_name(Symbol symbol, Value value);
  void capture_scopes();

  // ---- evaluate.cpp ----
  Value evaluate(const Expr& expr);
  Value name_value(const Expr& expr);
  const Value* known_name(Symbol symbol) const;
  Value attribute_value(const Expr& expr);
  Value item_value(const Expr& expr);
  // Returns null if the expression is no constant.
  static const Value* constant(const Expr& expr);
  // Returns the left one of two operands: a variable's own value if `right`, the other operand, is a constant, so that
  // nothing can change the variable; otherwise a value that is kept in `made`.
  const Value& left_operand(const Expr& expr, const Value* right, Value& made);
  Value list_value(const Expr& expr);
  Value dict_value(const Expr& expr);
  Value slice_value(const Expr& expr);
  Value call_value(const Expr& expr);
  Value filter_value(const Expr& expr, const Value* block_text);
  Value test_value(const Expr& expr);
  Value unary_value(const Expr& expr);
  Value compare_value(const Expr& expr);
  Value conditional_value(const Expr& expr);
  Value concat_value(const Expr& expr);
  bool holds(Operation operation, const Value& a, const Value& b);
  void collect(const CallArguments& from, Arguments& to);

  struct RootName {
    bool defined = false;
    Value value;
  };

  const Program& program_;
  const Environment& environment_;
  std::vector<RootName> root_;  // by symbol
  Symbol loop_symbol_ = 0;      // beyond the end if the template has no `loop`
  Symbol caller_symbol_ = 0;
  Symbol varargs_symbol_ = 0;
  Symbol kwargs_symbol_ = 0;
  Scope* scope_ = nullptr;  // null: the root scope
  std::vector<Scope*> free_scopes_;
  std::vector<Loop*> free_loops_;
  TextBuilder* out_ = nullptr;
  std::uint32_t line_ = 0;
};

struct Macro : Callable {
  const MacroNode* node = nullptr;
  Scope* closure = nullptr;  // null: the root scope
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  std::string describe() const override { return "macro " + node->name; }
};

}  // namespace bulkhead::jinja

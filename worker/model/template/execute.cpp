// Statements, scopes and macros.
#include <algorithm>

#include "worker/model/template/interpreter.hpp"

namespace bulkhead::jinja {

// While this object lives, output is collected in a text of its own.
class Interpreter::Captured {
 public:
  explicit Captured(Interpreter& interpreter)
      : interpreter_(interpreter), outer_(std::exchange(interpreter.out_, &text_)) {}
  ~Captured() { interpreter_.out_ = outer_; }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  Text take() { return text_.take(); }
  TextBuilder* outer() const { return outer_; }

 private:
  Interpreter& interpreter_;
  TextBuilder text_;
  TextBuilder* outer_;
};

Interpreter::Interpreter(const Program& program, const Environment& environment,
                         const Limits& limits)
    : Run(limits), program_(program), environment_(environment), root_(program.names.size()) {
  const auto symbol = [&program](std::string_view name) {
    return static_cast<Symbol>(std::find(program.names.begin(), program.names.end(), name) -
                               program.names.begin());
  };
  loop_symbol_ = symbol("loop");
  caller_symbol_ = symbol("caller");
  varargs_symbol_ = symbol("varargs");
  kwargs_symbol_ = symbol("kwargs");
  for (Symbol i = 0; i < root_.size(); ++i) {
    const NativeFunction* global = find_global(program.names[i]);
    if (global == nullptr) continue;
    auto* function = heap().make<BoundFunction>();
    function->function = global;
    root_[i] = {true, static_cast<Callable*>(function)};
  }
}

void Interpreter::define(std::string_view name, Value value) {
  const auto at = std::find(program_.names.begin(), program_.names.end(), name);
  if (at == program_.names.end()) return;  // the template doesn't use this name
  root_[static_cast<std::size_t>(at - program_.names.begin())] = {true, std::move(value)};
}

Text Interpreter::render() {
  Captured output(*this);
  execute(program_.body);
  return output.take();
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const auto& statement : body)
    if (const Flow flow = execute(*statement); flow != Flow::kOn) return flow;
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Deeper deeper(*this);
  if (statement.kind == StatementKind::kIf || statement.kind == StatementKind::kSet)
    tick_lightly();
  else
    tick();
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      tick(copy_steps(statement.text.size()));
      out_->append(statement.text);
      return Flow::kOn;
    case StatementKind::kOutput: {
      const Value value = evaluate(*statement.expr);
      line_ = statement.line;
      append_str(*this, value, *out_);
      return Flow::kOn;
    }
    case StatementKind::kFor:
      return for_statement(statement);
    case StatementKind::kIf:
      return if_statement(statement);
    case StatementKind::kSet:
      assign(statement.target, evaluate(*statement.expr));
      return Flow::kOn;
    case StatementKind::kSetBlock:
      set_block(statement);
      return Flow::kOn;
    case StatementKind::kMacro:
      define_macro(statement);
      return Flow::kOn;
    case StatementKind::kCallBlock:
      call_block(statement);
      return Flow::kOn;
    case StatementKind::kFilterBlock: {
      Captured captured(*this);
      const Flow flow = scoped_body(statement.body);
      const Value text = captured.take();
      const Value filtered = filter_value(*statement.expr, &text);
      append_str(*this, filtered, *captured.outer());
      return flow;
    }
    case StatementKind::kWith:
      return with_statement(statement);
    case StatementKind::kScope:
      return scoped_body(statement.body);
    case StatementKind::kDo:
      (void)evaluate(*statement.expr);
      return Flow::kOn;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::if_statement(const Statement& statement) {
  for (const Branch& branch : statement.branches)
    if (truthy(evaluate(*branch.condition))) return execute(branch.body);
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::for_statement(const Statement& statement) {
  const Value items = evaluate(*statement.expr);
  line_ = statement.line;
  return run_loop(statement, items, 0);
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, const Value& items,
                                        std::int64_t depth0) {
  Scope* const outer = scope_;
  Loop* loop = enter_loop();
  loop->source = iterate(*this, items);
  loop->depth0 = depth0;
  if (statement.condition != nullptr)
    loop->passes = [this, &statement, outer](const Value& item) {
      Scope* const was = std::exchange(scope_, enter_scope(outer));
      assign(statement.target, item);
      const bool passes = truthy(evaluate(*statement.condition));
      leave_scope(std::exchange(scope_, was));
      return passes;
    };
  if (statement.recursive)
    loop->recurse = [this, &statement, outer, depth0](const Value& inner) -> Value {
      const Deeper deeper(*this);
      Scope* const was = std::exchange(scope_, outer);
      Captured captured(*this);
      run_loop(statement, inner, depth0 + 1);
      scope_ = was;
      return captured.take();
    };

  bool reached_end = false;  // of the body, once; jinja2 takes {% else %} unless that has happened
  Scope* scope = enter_scope(outer);
  while (const std::optional<Value> item = loop->advance()) {
    tick_lightly();
    loop->kept = loop->kept || scope->captured;
    if (scope->captured)
      scope = enter_scope(outer);
    else
      scope->names.clear();
    scope_ = scope;
    if (loop_symbol_ < root_.size()) scope->set(loop_symbol_, loop);
    assign(statement.target, *item);
    const Flow flow = execute(statement.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kOn) reached_end = true;
  }
  scope_ = outer;
  loop->kept = loop->kept || scope->captured;
  if (!loop->kept && depth0 == 0 && only_loops_over(*statement.expr, items, *loop->source))
    CountedVector<Value>().swap(loop->source->items);
  leave_scope(scope);
  leave_loop(loop);
  if (reached_end) return Flow::kOn;
  return scoped_body(statement.otherwise);
}

// A template that makes a range or a slice of all messages for each message would fill the memory with them.
bool Interpreter::only_loops_over(const Expr& expr, const Value& items, const List& source) const {
  if (items.as_list() != &source || expr.kind == ExprKind::kSlice) return true;
  const bool call = expr.kind == ExprKind::kCall && expr.children[0]->kind == ExprKind::kName;
  const Value* callee = call ? known_name(expr.children[0]->symbol) : nullptr;
  const Callable* const function = callee != nullptr ? callee->as_callable() : nullptr;
  return function != nullptr && function->native() == find_global("range");
}

void Interpreter::set_block(const Statement& statement) {
  Value text;
  {
    Captured captured(*this);
    (void)scoped_body(statement.body);
    text = captured.take();
  }
  if (statement.expr != nullptr) text = filter_value(*statement.expr, &text);
  assign(statement.target, text);
}

Interpreter::Flow Interpreter::with_statement(const Statement& statement) {
  Scope* const outer = scope_;
  Scope* scope = enter_scope(outer);
  for (const auto& [target, value] : statement.assignments)
    scope->set(target.symbol, evaluate(*value));
  scope_ = scope;
  const Flow flow = execute(statement.body);
  scope_ = outer;
  leave_scope(scope);
  return flow;
}

Interpreter::Flow Interpreter::scoped_body(const Body& body) {
  Scope* const outer = scope_;
  scope_ = enter_scope(outer);
  const Flow flow = execute(body);
  leave_scope(std::exchange(scope_, outer));
  return flow;
}

void Interpreter::assign(const Target& target, const Value& value) {
  switch (target.form) {
    case Target::Form::kName:
      set_name(target.symbol, value);
      return;
    case Target::Form::kAttribute: {
      Expr name;
      name.kind = ExprKind::kName;
      name.symbol = target.symbol;
      const Value space = name_value(name);
      if (space.as_namespace() == nullptr)
        fail("sets '" + target.attribute + "' of '" + program_.names[target.symbol] +
             "', which is no namespace; make it by namespace()");
      space.as_namespace()->attributes.set(Text(target.attribute, Origin::kTemplate), value);
      return;
    }
    case Target::Form::kTuple: {
      require_defined(value);
      const List* items = iterate(*this, value);
      if (items->items.size() != target.parts.size())
        fail("assigns " + std::to_string(items->items.size()) + " values to " +
             std::to_string(target.parts.size()) + " names");
      for (std::size_t i = 0; i < target.parts.size(); ++i)
        assign(target.parts[i], items->items[i]);
      return;
    }
  }
}

void Interpreter::set_name(Symbol symbol, Value value) {
  if (scope_ != nullptr)
    scope_->set(symbol, std::move(value));
  else
    root_[symbol] = {true, std::move(value)};
}

Scope* Interpreter::enter_scope(Scope* outer) {
  Scope* scope = nullptr;
  if (free_scopes_.empty()) {
    scope = heap().make<Scope>();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->outer = outer;
  return scope;
}

void Interpreter::leave_scope(Scope* scope) {
  if (scope->captured) return;
  scope->names.clear();
  free_scopes_.push_back(scope);
}

Loop* Interpreter::enter_loop() {
  if (free_loops_.empty()) return heap().make<Loop>();
  Loop* loop = free_loops_.back();
  free_loops_.pop_back();
  return loop;
}

void Interpreter::leave_loop(Loop* loop) {
  if (loop->kept) return;
  loop->reset();
  free_loops_.push_back(loop);
}

void Interpreter::capture_scopes() {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->outer)
    scope->captured = true;
}

void Interpreter::define_macro(const Statement& statement) {
  capture_scopes();
  Macro* macro = heap().make<Macro>();
  macro->node = statement.macro.get();
  macro->closure = scope_;
  set_name(statement.macro->symbol, static_cast<Callable*>(macro));
}

void Interpreter::call_block(const Statement& statement) {
  capture_scopes();
  Macro* caller = heap().make<Macro>();
  caller->node = statement.macro.get();
  caller->closure = scope_;
  const Value callee = evaluate(*statement.expr->children[0]);
  Arguments arguments;
  collect(statement.expr->arguments, arguments);
  arguments.keyword.emplace_back("caller", static_cast<Callable*>(caller));
  line_ = statement.line;
  append_str(*this, call(callee, arguments), *out_);
}

Value Macro::call(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.call_macro(*node, closure, arguments);
}

std::optional<Value> Macro::attribute(Interpreter& interpreter, std::string_view name) {
  if (name == "name") return Text(node->name, Origin::kTemplate);
  if (name == "caller") return node->uses.caller;
  if (name == "catch_varargs") return node->uses.varargs;
  if (name == "catch_kwargs") return node->uses.kwargs;
  (void)interpreter;
  return std::nullopt;
}

Value Interpreter::call_macro(const MacroNode& macro, Scope* closure, Arguments& arguments) {
  const Deeper deeper(*this);
  tick();
  const std::uint32_t line = line_;
  Scope* scope = enter_scope(closure);
  const std::size_t count = macro.parameters.size();
  const auto parameter = [&](std::string_view name) {
    return static_cast<std::size_t>(
        std::find_if(macro.parameters.begin(), macro.parameters.end(),
                     [&](Symbol symbol) { return program_.names[symbol] == name; }) -
        macro.parameters.begin());
  };
  const std::size_t given = std::min(count, arguments.positional.size());
  for (std::size_t i = 0; i < given; ++i)
    scope->set(macro.parameters[i], arguments.positional[i]);
  Dict* extra = macro.uses.kwargs ? heap().make<Dict>() : nullptr;
  std::optional<Value> caller;
  for (const auto& [name, value] : arguments.keyword) {
    const std::size_t at = parameter(name);
    if (at < count) {
      if (at < given) fail("gives '" + std::string(name) + "' of macro '" + macro.name + "' twice");
      scope->set(macro.parameters[at], value);
    } else if (name == "caller" && macro.uses.caller) {
      caller = value;
    } else if (extra != nullptr && name != "caller") {
      extra->set(Text(name, Origin::kTemplate), value);
    } else {
      fail("macro '" + macro.name + "' takes no argument '" + std::string(name) + "'");
    }
  }
  if (extra != nullptr) scope->set(kwargs_symbol_, extra);
  if (macro.uses.caller) scope->set(caller_symbol_, caller.value_or(Undefined{}));
  if (macro.uses.varargs) {
    List* rest = heap().list(Flavour::kTuple);
    rest->items.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                       arguments.positional.end());
    scope->set(varargs_symbol_, rest);
  } else if (arguments.positional.size() > count) {
    fail("macro '" + macro.name + "' takes " + std::to_string(count) + " arguments, not " +
         std::to_string(arguments.positional.size()));
  }

  Scope* const outer = std::exchange(scope_, scope);
  const std::size_t first_default = count - macro.defaults.size();
  for (std::size_t i = given; i < count; ++i)
    if (scope->find(macro.parameters[i]) == nullptr)
      scope->set(macro.parameters[i], i < first_default
                                          ? Value(Undefined{})
                                          : evaluate(*macro.defaults[i - first_default]));
  Captured captured(*this);
  (void)execute(macro.body);
  scope_ = outer;
  leave_scope(scope);
  line_ = line;
  return captured.take();
}

}  // namespace bulkhead::jinja

// Expressions.
#include <algorithm>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/characters.hpp"
#include "worker/model/template/interpreter.hpp"

namespace bulkhead::jinja {
namespace {

struct SliceBounds {
  std::int64_t from, to, step;
};

// Returns a range with the bounds of the part, and without items yet. Bounds past 64 bits wrap.
Range* part_of_range(Heap& heap, const Range& whole, const SliceBounds& part) {
  const auto bound = [&whole](std::int64_t place) {
    std::int64_t product = 0, sum = 0;
    (void)__builtin_mul_overflow(place, whole.step, &product);
    (void)__builtin_add_overflow(whole.start, product, &sum);
    return sum;
  };
  Range* range = heap.make<Range>();
  range->start = bound(part.from);
  range->stop = bound(part.to);
  (void)__builtin_mul_overflow(whole.step, part.step, &range->step);
  return range;
}

bool is_light(ExprKind kind) {
  switch (kind) {
    case ExprKind::kConstant:
    case ExprKind::kName:
    case ExprKind::kAttribute:
    case ExprKind::kItem:
    case ExprKind::kUnary:
    case ExprKind::kAnd:
    case ExprKind::kOr:
    case ExprKind::kCompare:
    case ExprKind::kConditional:
    case ExprKind::kBinary:  // operate() counts the operation
      return true;
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
    case ExprKind::kSlice:
    case ExprKind::kCall:
    case ExprKind::kFilter:
    case ExprKind::kTest:
    case ExprKind::kConcat:
      break;
  }
  return false;
}

}  // namespace

Value Interpreter::evaluate(const Expr& expr) {
  const Deeper deeper(*this);
  if (is_light(expr.kind))
    tick_lightly();
  else
    tick();
  switch (expr.kind) {
    case ExprKind::kConstant:
      if (expr.constant.undefined()) return make_integer(heap(), Integer(expr.name));
      return expr.constant;
    case ExprKind::kName:
      return name_value(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return list_value(expr);
    case ExprKind::kDict:
      return dict_value(expr);
    case ExprKind::kAttribute:
      return attribute_value(expr);
    case ExprKind::kItem:
      return item_value(expr);
    case ExprKind::kSlice:
      return slice_value(expr);
    case ExprKind::kCall:
      return call_value(expr);
    case ExprKind::kFilter:
      return filter_value(expr, nullptr);
    case ExprKind::kTest:
      return test_value(expr);
    case ExprKind::kUnary:
      return unary_value(expr);
    case ExprKind::kBinary: {
      const Value left = evaluate(*expr.children[0]);
      const Value right = evaluate(*expr.children[1]);
      line_ = expr.line;
      return operate(*this, expr.operation, left, right);
    }
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.children[0]);
      return truthy(left) ? evaluate(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.children[0]);
      return truthy(left) ? left : evaluate(*expr.children[1]);
    }
    case ExprKind::kCompare:
      return compare_value(expr);
    case ExprKind::kConditional:
      return conditional_value(expr);
    case ExprKind::kConcat:
      return concat_value(expr);
  }
  return {};
}

const Value* Interpreter::known_name(Symbol symbol) const {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->outer)
    if (const Value* value = scope->find(symbol)) return value;
  const RootName& root = root_[symbol];
  return root.defined ? &root.value : nullptr;
}

Value Interpreter::name_value(const Expr& expr) {
  const Value* known = known_name(expr.symbol);
  if (known == nullptr) return Undefined{&expr};
  if (Loop* loop = known->as_loop()) loop->kept = true;  // the value may go anywhere
  return *known;
}

Value Interpreter::attribute_value(const Expr& expr) {
  const Expr& of = *expr.children[0];
  const Value* known = of.kind == ExprKind::kName ? known_name(of.symbol) : nullptr;
  Value made;
  // loop.index and the like don't keep the loop, as a look at the name alone would.
  if (known == nullptr)
    known = &(made = evaluate(of));
  else if (known->as_loop() != nullptr)
    known = &(made = *known);
  line_ = expr.line;
  return attribute(*known, expr.name, &expr);
}

const Value* Interpreter::constant(const Expr& expr) {
  return expr.kind == ExprKind::kConstant && !expr.constant.undefined() ? &expr.constant : nullptr;
}

const Value& Interpreter::left_operand(const Expr& expr, const Value* right, Value& made) {
  const bool name = right != nullptr && expr.kind == ExprKind::kName;
  const Value* known = name ? known_name(expr.symbol) : nullptr;
  return known != nullptr && known->as_loop() == nullptr ? *known : (made = evaluate(expr));
}

Value Interpreter::item_value(const Expr& expr) {
  Value whole, place;
  const Value* index = constant(*expr.children[1]);
  const Value& value = left_operand(*expr.children[0], index, whole);
  if (index == nullptr) index = &(place = evaluate(*expr.children[1]));
  line_ = expr.line;
  return item(value, *index, &expr);
}

Value Interpreter::list_value(const Expr& expr) {
  List* list = heap().list(expr.kind == ExprKind::kTuple ? Flavour::kTuple : Flavour::kList);
  list->items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children)
    list->items.push_back(evaluate(*child));
  return list;
}

Value Interpreter::dict_value(const Expr& expr) {
  Dict* dict = heap().make<Dict>();
  for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    const Value key = evaluate(*expr.children[i]);
    dict->set(key, evaluate(*expr.children[i + 1]));
  }
  return dict;
}

Value Interpreter::slice_value(const Expr& expr) {
  const Value value = evaluate(*expr.children[0]);
  const auto bound = [&](std::size_t child) -> std::optional<std::int64_t> {
    if (expr.children[child] == nullptr) return std::nullopt;
    const Value given = evaluate(*expr.children[child]);
    if (given.none()) return std::nullopt;
    return to_int64(given, "a slice's bound");
  };
  const auto start = bound(1);
  const auto stop = bound(2);
  const std::int64_t step = bound(3).value_or(1);
  line_ = expr.line;
  require_defined(value);
  if (step == 0) fail("makes a slice with step 0; use 1, or -1 to go backwards");
  const Text* text = value.as_text();
  const List* list = value.as_list();
  if (list != nullptr && (list->flavour == Flavour::kView || list->flavour == Flavour::kGenerator))
    list = nullptr;
  if (text == nullptr && list == nullptr)
    fail("takes a slice of " + a_type(value) + "; only strings and lists have slices");

  if (text != nullptr) tick(text->ascii() ? 0 : scan_steps(text->size()));
  const std::int64_t size = length(value);
  const auto clamped = [size](std::int64_t at, std::int64_t low, std::int64_t high) {
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const std::int64_t from = start ? clamped(*start, low, high) : (step > 0 ? 0 : size - 1);
  const std::int64_t to = stop ? clamped(*stop, low, high) : (step > 0 ? size : -1);
  if (text != nullptr && step == 1)
    return char_slice(*text, static_cast<std::size_t>(from),
                      static_cast<std::size_t>(std::max(from, to)));
  const List* items = text != nullptr ? iterate(*this, value) : list;
  List* out = nullptr;
  if (list != nullptr && list->flavour == Flavour::kRange)
    out = part_of_range(heap(), static_cast<const Range&>(*list), {from, to, step});
  else
    out = heap().list(list != nullptr && list->flavour == Flavour::kTuple ? Flavour::kTuple
                                                                          : Flavour::kList);
  for (std::int64_t at = from; step > 0 ? at < to : at > to;) {
    tick();
    out->items.push_back(items->items[static_cast<std::size_t>(at)]);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  if (text == nullptr) return out;
  TextBuilder joined;
  for (const Value& each : out->items)
    joined.append(*each.as_text());
  return joined.take();
}

void Interpreter::collect(const CallArguments& from, Arguments& to) {
  to.positional.reserve(from.positional.size());
  for (const ExprPtr& each : from.positional)
    to.positional.push_back(evaluate(*each));
  if (from.rest != nullptr) {
    const List* rest = iterate(*this, evaluate(*from.rest));
    to.positional.insert(to.positional.end(), rest->items.begin(), rest->items.end());
  }
  for (const Keyword& each : from.keyword)
    to.keyword.emplace_back(each.name, evaluate(*each.value));
  if (from.mapping == nullptr) return;
  const Value mapping = evaluate(*from.mapping);
  if (mapping.as_dict() == nullptr)
    fail("gives " + a_type(mapping) + " after '**' in a call; it has to be a dict");
  for (const Dict::Entry& entry : mapping.as_dict()->entries) {
    if (entry.key.as_text() == nullptr) fail("gives a dict after '**' whose keys are no strings");
    to.keyword.emplace_back(entry.key.as_text()->view(), entry.value);
  }
}

Value Interpreter::call_value(const Expr& expr) {
  const Expr& callee = *expr.children[0];
  Arguments arguments;
  if (callee.kind == ExprKind::kAttribute) {  // a method, without an object made for it
    const Value self = evaluate(*callee.children[0]);
    if (const NativeFunction* method = find_method(self, callee.name);
        method != nullptr && allowed(*method) && self.kind() != Kind::kLoop) {
      collect(expr.arguments, arguments);
      line_ = expr.line;
      return method->call(*this, self, arguments);
    }
    line_ = callee.line;
    const Value function = attribute(self, callee.name, &callee);
    collect(expr.arguments, arguments);
    line_ = expr.line;
    return call(function, arguments);
  }
  const Value function = evaluate(callee);
  collect(expr.arguments, arguments);
  line_ = expr.line;
  return call(function, arguments);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  const Deeper deeper(*this);
  require_defined(callee);
  if (Callable* function = callee.as_callable()) return function->call(*this, arguments);
  if (Loop* loop = callee.as_loop()) {
    if (!loop->recurse) fail("calls loop(...) in a loop that is not {% for ... recursive %}");
    const Bound bound("loop", arguments, {"iterable"}, 1);
    return loop->recurse(*bound[0]);
  }
  fail("calls " + a_type(callee) + ", which is no function");
}

Value Interpreter::filter_value(const Expr& expr, const Value* block_text) {
  Value self;
  if (expr.children[0] == nullptr)
    self = *block_text;
  else if (block_text != nullptr)
    self = filter_value(*expr.children[0], block_text);
  else
    self = evaluate(*expr.children[0]);
  if (expr.native == nullptr || !allowed(*expr.native)) {
    line_ = expr.line;
    fail("there is no filter '" + expr.name + "'");
  }
  Arguments arguments;
  collect(expr.arguments, arguments);
  line_ = expr.line;
  return expr.native->call(*this, self, arguments);
}

Value Interpreter::test_value(const Expr& expr) {
  const Value self = evaluate(*expr.children[0]);
  Arguments arguments;
  collect(expr.arguments, arguments);
  line_ = expr.line;
  if (expr.native == nullptr) fail("there is no test '" + expr.name + "'");
  return expr.native->call(*this, self, arguments);
}

Value Interpreter::filter(std::string_view name, const Value& self, Arguments& arguments) {
  tick();
  const NativeFunction* found = find_filter(name);
  if (found == nullptr || !allowed(*found)) fail("there is no filter '" + std::string(name) + "'");
  return found->call(*this, self, arguments);
}

bool Interpreter::test(std::string_view name, const Value& self, Arguments& arguments) {
  tick();
  const NativeFunction* found = find_test(name);
  if (found == nullptr) fail("there is no test '" + std::string(name) + "'");
  return truthy(found->call(*this, self, arguments));
}

Value Interpreter::unary_value(const Expr& expr) {
  const Value value = evaluate(*expr.children[0]);
  line_ = expr.line;
  if (expr.operation == Operation::kNot) return !truthy(value);
  if (expr.operation == Operation::kNegate) return negate(*this, value);
  require_defined(value);
  if (!is_number(value)) fail("puts a '+' before " + a_type(value));
  return value.as_bool() != nullptr ? Value(static_cast<std::int64_t>(*value.as_bool())) : value;
}

bool Interpreter::holds(Operation operation, const Value& a, const Value& b) {
  switch (operation) {
    case Operation::kEqual:
      return equal(a, b);
    case Operation::kNotEqual:
      return !equal(a, b);
    case Operation::kLess:
      return compare(*this, a, b) == Ordering::kLess;
    case Operation::kGreater:
      return compare(*this, a, b) == Ordering::kGreater;
    case Operation::kLessEqual: {
      const Ordering order = compare(*this, a, b);
      return order == Ordering::kLess || order == Ordering::kEqual;
    }
    case Operation::kGreaterEqual: {
      const Ordering order = compare(*this, a, b);
      return order == Ordering::kGreater || order == Ordering::kEqual;
    }
    case Operation::kIn:
      return contains(*this, a, b);
    case Operation::kNotIn:
      return !contains(*this, a, b);
    case Operation::kAdd:
    case Operation::kSubtract:
    case Operation::kMultiply:
    case Operation::kDivide:
    case Operation::kFloorDivide:
    case Operation::kModulo:
    case Operation::kPower:
    case Operation::kNegate:
    case Operation::kPlus:
    case Operation::kNot:
      break;
  }
  return false;
}

Value Interpreter::compare_value(const Expr& expr) {
  if (const Value* right = constant(*expr.children[1]); right && expr.operations.size() == 1) {
    Value made;
    const Value& left = left_operand(*expr.children[0], right, made);
    line_ = expr.line;
    if (const Text* text = left.as_text()) tick(copy_steps(text->size()));
    return holds(expr.operations[0], left, *right);
  }
  Value left = evaluate(*expr.children[0]);
  for (std::size_t i = 0; i < expr.operations.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1]);
    line_ = expr.line;
    if (const Text* text = left.as_text()) tick(copy_steps(text->size()));
    if (!holds(expr.operations[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::conditional_value(const Expr& expr) {
  if (truthy(evaluate(*expr.children[0]))) return evaluate(*expr.children[1]);
  if (expr.children[2] != nullptr) return evaluate(*expr.children[2]);
  return Undefined{&expr};
}

Value Interpreter::concat_value(const Expr& expr) {
  TextBuilder out;
  for (const ExprPtr& child : expr.children)
    append_str(*this, evaluate(*child), out);
  return out.take();
}

Value Interpreter::attribute(const Value& value, std::string_view name, const Expr* origin) {
  const Undefined missing{origin};
  require_defined(value);
  if (const NativeFunction* method = find_method(value, name)) {
    if (!allowed(*method)) return Undefined{origin, true};
    if (value.kind() == Kind::kLoop) {  // computed attributes, not methods
      Arguments none;
      if (method->name != "cycle" && method->name != "changed")
        return method->call(*this, value, none);
      value.as_loop()->kept = true;
    }
    auto* bound = heap().make<BoundFunction>();
    bound->function = method;
    bound->self = value;
    return static_cast<Callable*>(bound);
  }
  if (Dict* dict = value.as_dict()) {
    const Value* found = dict->get(name);
    return found != nullptr ? *found : Value(missing);
  }
  if (const List* group = value.as_list(); group != nullptr && group->is_group) {
    if (name == "grouper") return group->items[0];
    if (name == "list") return group->items[1];
  }
  if (Namespace* space = value.as_namespace()) {
    const Value* found = space->attributes.get(name);
    return found != nullptr ? *found : Value(missing);
  }
  if (Callable* function = value.as_callable())
    return function->attribute(*this, name).value_or(missing);
  return missing;
}

Value Interpreter::item(const Value& value, const Value& index, const Expr* origin) {
  require_defined(value);
  if (Dict* dict = value.as_dict()) {
    const bool hashable =
        index.as_dict() == nullptr &&
        (index.as_list() == nullptr || index.as_list()->flavour == Flavour::kTuple);
    const Text* key = index.as_text();
    const Value* found = key != nullptr ? dict->get(key->view())
                         : hashable     ? dict->find(index)
                                        : nullptr;
    if (found != nullptr) return *found;
  }
  if (index.as_int() != nullptr || index.as_bool() != nullptr) {
    std::int64_t at = to_int64(index, "an index");
    const List* list = value.as_list();
    if (list != nullptr &&
        (list->flavour == Flavour::kView || list->flavour == Flavour::kGenerator))
      list = nullptr;
    const Text* text = value.as_text();
    if (list == nullptr && text == nullptr) return Undefined{origin};
    if (text != nullptr && !text->ascii()) tick(scan_steps(text->size()));
    const std::int64_t size = length(value);
    if (at < 0) at += size;
    if (at < 0 || at >= size) return Undefined{origin};
    const auto place = static_cast<std::size_t>(at);
    if (list != nullptr) return list->items[place];
    return char_slice(*text, place, place + 1);
  }
  if (const Text* name = index.as_text()) {
    if (value.as_dict() != nullptr && find_method(value, name->view()) == nullptr)
      return Undefined{origin};
    return attribute(value, name->view(), origin);
  }
  return Undefined{origin};
}

}  // namespace bulkhead::jinja

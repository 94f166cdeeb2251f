// A parsed template: two kinds of node, Expr and Statement, each a plain struct with a tag. The comment at each tag
// says which fields it uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

using Symbol = std::uint32_t;  // index into Program::names

enum class ExprKind : std::uint8_t {
  kConstant,     // constant
  kName,         // symbol
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value ...
  kAttribute,    // children[0].name
  kItem,         // children[0][children[1]]
  kSlice,        // children[0][children[1]:children[2]:children[3]], the last three may be null
  kCall,         // children[0](arguments)
  kFilter,       // children[0] | name(arguments); no child within {% filter %} and {% set %} blocks
  kTest,         // children[0] is name(arguments)
  kUnary,        // operation children[0]
  kBinary,       // children[0] operation children[1]
  kAnd,          // children[0] and children[1]
  kOr,           // children[0] or children[1]
  kCompare,      // children[0] operations[0] children[1] operations[1] children[2] ...
  kConditional,  // children[1] if children[0] else children[2], which may be null
  kConcat,       // children joined by ~
};

enum class Operation : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kNegate,
  kPlus,
  kNot,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Keyword {
  std::string name;
  ExprPtr value;
};

// The arguments of a call, in parentheses.
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<Keyword> keyword;
  ExprPtr rest;     // *rest
  ExprPtr mapping;  // **mapping
};

struct NativeFunction;  // native.hpp

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  Operation operation = Operation::kAdd;
  std::uint16_t depth = 1;  // of the tree below, including itself
  std::uint32_t line = 0;
  Symbol symbol = 0;
  std::string name;
  const NativeFunction* native = nullptr;  // the filter or test; null: there is none with that name
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<Operation> operations;
  CallArguments arguments;
};

enum class StatementKind : std::uint8_t {
  kText,         // text
  kOutput,       // expr
  kFor,          // target, expr, condition (or null), body, otherwise, recursive
  kIf,           // branches, otherwise
  kSet,          // target, expr
  kSetBlock,     // target, expr (filters or null), body
  kMacro,        // macro
  kCallBlock,    // expr (a kCall), macro (the caller)
  kFilterBlock,  // expr (filters), body
  kWith,         // assignments, body
  kScope,        // body: {% block %}, {% autoescape false %}, {% generation %}
  kDo,           // expr
  kBreak,
  kContinue,
};

// What a value is assigned to.
struct Target {
  enum class Form : std::uint8_t { kName, kAttribute, kTuple };
  Form form = Form::kName;
  std::uint32_t line = 0;
  Symbol symbol = 0;          // kName: itself; kAttribute: the namespace
  std::string attribute;      // kAttribute
  std::vector<Target> parts;  // kTuple
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// The names that have a meaning in a macro's body, if they occur there.
struct MacroNames {
  bool varargs = false;
  bool kwargs = false;
  bool caller = false;
};

struct MacroNode {
  std::string name;
  Symbol symbol = 0;
  std::vector<Symbol> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  MacroNames uses;
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  bool recursive = false;
  std::uint32_t line = 0;
  Text text;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  Body body;
  Body otherwise;
  std::vector<Branch> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::unique_ptr<MacroNode> macro;
};

struct Program {
  std::vector<std::string> names;  // by symbol
  Body body;
};

}  // namespace bulkhead::jinja

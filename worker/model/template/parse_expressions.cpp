// Parses expressions, the loosest binding first: if-else, or, and, not, comparisons, + -, ~, * / // %, **, signs,
// then what follows a value: .name, [item], (call), |filter, is test.
#include <algorithm>
#include <charconv>

#include "worker/model/template/big_integer.hpp"
#include "worker/model/template/native.hpp"
#include "worker/model/template/parser_state.hpp"
#include "worker/model/template/python.hpp"
#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {
namespace {

struct OperatorRow {
  std::string_view text;
  Operation operation;
};
constexpr OperatorRow kComparisons[] = {
    {"==", Operation::kEqual},     {"!=", Operation::kNotEqual}, {"<", Operation::kLess},
    {"<=", Operation::kLessEqual}, {">", Operation::kGreater},   {">=", Operation::kGreaterEqual},
};
constexpr OperatorRow kSums[] = {{"+", Operation::kAdd}, {"-", Operation::kSubtract}};
constexpr OperatorRow kProducts[] = {{"*", Operation::kMultiply},
                                     {"/", Operation::kDivide},
                                     {"//", Operation::kFloorDivide},
                                     {"%", Operation::kModulo}};

template <std::size_t N>
const OperatorRow* row_at(const TokenStream& stream, const OperatorRow (&rows)[N]) {
  const auto found = std::find_if(std::begin(rows), std::end(rows), [&](const OperatorRow& row) {
    return stream.at_operator(row.text);
  });
  return found == std::end(rows) ? nullptr : found;
}

Integer integer_of(const std::string& text) {
  const bool prefixed = text.size() > 2 && (text[1] | 0x20) >= 'a' && (text[1] | 0x20) <= 'z';
  if (!prefixed) {  // cpp_int reads a leading 0 as octal
    const std::size_t first = text.find_first_not_of('0');
    return first == text.npos ? Integer(0) : Integer(text.substr(first));
  }
  const char base = static_cast<char>(text[1] | 0x20);
  Integer value = 0;
  for (const char c : text.substr(2)) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    const int radix = base == 'x' ? 16 : base == 'o' ? 8 : 2;
    if (digit >= radix)
      throw TemplateError(TemplateError::Kind::kSyntax,
                          "the number " + text + " has a wrong digit");
    value = value * radix + digit;
  }
  return value;
}

class Nesting {
 public:
  Nesting(int& depth, const TokenStream& stream) : depth_(depth) {
    if (depth_ >= kMaxExpressionDepth)
      throw TemplateError(TemplateError::Kind::kLimit, "nests expressions too deeply; simplify it",
                          stream.line());
    ++depth_;
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

}  // namespace

ExprPtr ExpressionParser::make(ExprKind kind, std::uint32_t line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

ExprPtr ExpressionParser::finished(ExprPtr node) const {
  std::uint16_t depth = 0;
  const auto deepen = [&depth](const ExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  };
  for (const ExprPtr& child : node->children)
    deepen(child);
  for (const ExprPtr& child : node->arguments.positional)
    deepen(child);
  for (const Keyword& keyword : node->arguments.keyword)
    deepen(keyword.value);
  deepen(node->arguments.rest);
  deepen(node->arguments.mapping);
  if (depth >= kMaxExpressionDepth)
    throw TemplateError(TemplateError::Kind::kLimit,
                        "an expression is too deep; put parts of it into variables", node->line);
  node->depth = static_cast<std::uint16_t>(depth + 1);
  return node;
}

ExprPtr ExpressionParser::binary(ExprKind kind, Operation operation, ExprPtr left, ExprPtr right,
                                 std::uint32_t line) const {
  ExprPtr node = make(kind, line);
  node->operation = operation;
  node->children.push_back(std::move(left));
  node->children.push_back(std::move(right));
  return finished(std::move(node));
}

ExprPtr ExpressionParser::expression(bool with_conditional) {
  const Nesting nesting(nesting_, stream_);
  return with_conditional ? conditional() : disjunction();
}

ExprPtr ExpressionParser::conditional() {
  std::uint32_t line = stream_.line();
  const std::size_t unknown_before = unknown_.size();
  ExprPtr value = disjunction();
  while (stream_.skip_name("if")) {
    ExprPtr node = make(ExprKind::kConditional, line);
    node->children.push_back(disjunction());
    node->children.push_back(std::move(value));
    node->children.push_back(stream_.skip_name("else") ? expression() : nullptr);
    value = finished(std::move(node));
    line = stream_.line();
    unknown_.resize(unknown_before);
  }
  return value;
}

ExprPtr ExpressionParser::disjunction() {
  std::uint32_t line = stream_.line();
  ExprPtr left = conjunction();
  while (stream_.skip_name("or")) {
    left = binary(ExprKind::kOr, Operation::kAdd, std::move(left), conjunction(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  std::uint32_t line = stream_.line();
  ExprPtr left = negation();
  while (stream_.skip_name("and")) {
    left = binary(ExprKind::kAnd, Operation::kAdd, std::move(left), negation(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  const Nesting nesting(nesting_, stream_);
  if (!stream_.at_name("not")) return comparison();
  ExprPtr node = make(ExprKind::kUnary, stream_.take().line);
  node->operation = Operation::kNot;
  node->children.push_back(negation());
  return finished(std::move(node));
}

ExprPtr ExpressionParser::comparison() {
  const std::uint32_t line = stream_.line();
  ExprPtr first = sum();
  ExprPtr node;
  for (;;) {
    Operation operation;
    if (const OperatorRow* row = row_at(stream_, kComparisons)) {
      stream_.take();
      operation = row->operation;
    } else if (stream_.skip_name("in")) {
      operation = Operation::kIn;
    } else if (stream_.at_name("not") && stream_.next_but_one().kind == TokenKind::kName &&
               stream_.next_but_one().text == "in") {
      stream_.take();
      stream_.take();
      operation = Operation::kNotIn;
    } else {
      break;
    }
    if (node == nullptr) {
      node = make(ExprKind::kCompare, line);
      node->children.push_back(std::move(first));
    }
    node->operations.push_back(operation);
    node->children.push_back(sum());
  }
  return node == nullptr ? std::move(first) : finished(std::move(node));
}

ExprPtr ExpressionParser::sum() {
  std::uint32_t line = stream_.line();
  ExprPtr left = concatenation();
  while (const OperatorRow* row = row_at(stream_, kSums)) {
    stream_.take();
    left = binary(ExprKind::kBinary, row->operation, std::move(left), concatenation(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const std::uint32_t line = stream_.line();
  ExprPtr first = product();
  if (!stream_.at_operator("~")) return first;
  ExprPtr node = make(ExprKind::kConcat, line);
  node->children.push_back(std::move(first));
  while (stream_.skip_operator("~"))
    node->children.push_back(product());
  return finished(std::move(node));
}

ExprPtr ExpressionParser::product() {
  std::uint32_t line = stream_.line();
  ExprPtr left = power();
  while (const OperatorRow* row = row_at(stream_, kProducts)) {
    stream_.take();
    left = binary(ExprKind::kBinary, row->operation, std::move(left), power(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  std::uint32_t line = stream_.line();
  ExprPtr left = unary();
  while (stream_.skip_operator("**")) {
    left = binary(ExprKind::kBinary, Operation::kPower, std::move(left), unary(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  const Nesting nesting(nesting_, stream_);
  ExprPtr node;
  if (stream_.at_operator("-") || stream_.at_operator("+")) {
    const bool minus = stream_.at_operator("-");
    node = make(ExprKind::kUnary, stream_.take().line);
    node->operation = minus ? Operation::kNegate : Operation::kPlus;
    node->children.push_back(unary(false));
    node = finished(std::move(node));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filter ? filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::postfix_of_primary() {
  return postfix(primary());
}

ExprPtr ExpressionParser::primary() {
  const std::uint32_t line = stream_.line();
  if (stream_.skip_operator("(")) {
    ExprPtr node = tuple(true, true);
    stream_.expect_operator(")");
    return node;
  }
  if (stream_.at_operator("[")) return list();
  if (stream_.at_operator("{")) return dict();

  ExprPtr node = make(ExprKind::kConstant, line);
  if (stream_.at(TokenKind::kName)) {
    const std::string name = stream_.take().text;
    if (name == "true" || name == "True") {
      node->constant = true;
    } else if (name == "false" || name == "False") {
      node->constant = false;
    } else if (name == "none" || name == "None") {
      node->constant = None{};
    } else {
      node->kind = ExprKind::kName;
      node->symbol = names_.symbol(name);
      node->name = name;
      macro_names_.varargs |= name == "varargs";
      macro_names_.kwargs |= name == "kwargs";
      macro_names_.caller |= name == "caller";
    }
  } else if (stream_.at(TokenKind::kString)) {
    std::string text;
    while (stream_.at(TokenKind::kString))
      text += stream_.take().text;
    node->constant = Text(text, Origin::kTemplate);
  } else if (stream_.at(TokenKind::kInteger)) {
    const std::string text = stream_.take().text;
    if (text.size() > 4300) stream_.wrong("a number of over 4,300 digits");
    const Integer value = integer_of(text);
    if (value <= std::numeric_limits<std::int64_t>::max())
      node->constant = value.convert_to<std::int64_t>();
    else
      node->name = value.str();  // the interpreter makes a number of this on its own heap
  } else if (stream_.at(TokenKind::kFloat)) {
    node->constant = parse_float(stream_.take().text).value_or(0.0);
  } else {
    stream_.wrong("expected an expression, got " + stream_.describe());
  }
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end) const {
  return stream_.at(TokenKind::kVariableEnd) || stream_.at(TokenKind::kBlockEnd) ||
         stream_.at_operator(")") || (!end.empty() && stream_.at_name(end));
}

ExprPtr ExpressionParser::tuple(bool with_conditional, bool explicit_parentheses) {
  const std::uint32_t line = stream_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) stream_.expect_operator(",");
    if (at_tuple_end({})) break;
    items.push_back(expression(with_conditional));
    if (!stream_.at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !explicit_parentheses)
    stream_.wrong("expected an expression, got " + stream_.describe());
  ExprPtr node = make(ExprKind::kTuple, line);
  node->children = std::move(items);
  return finished(std::move(node));
}

ExprPtr ExpressionParser::list() {
  ExprPtr node = make(ExprKind::kList, stream_.take().line);
  while (!stream_.at_operator("]")) {
    if (!node->children.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("]")) break;
    node->children.push_back(expression());
  }
  stream_.expect_operator("]");
  return finished(std::move(node));
}

ExprPtr ExpressionParser::dict() {
  ExprPtr node = make(ExprKind::kDict, stream_.take().line);
  while (!stream_.at_operator("}")) {
    if (!node->children.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("}")) break;
    node->children.push_back(expression());
    stream_.expect_operator(":");
    node->children.push_back(expression());
  }
  stream_.expect_operator("}");
  return finished(std::move(node));
}

Target ExpressionParser::single_target(bool with_attributes) {
  Target target;
  target.line = stream_.line();
  const std::string name = stream_.expect_name();
  constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved))
    stream_.wrong("can't assign to " + name);
  target.symbol = names_.symbol(name);
  if (with_attributes && stream_.skip_operator(".")) {
    target.form = Target::Form::kAttribute;
    target.attribute = stream_.expect_name();
  }
  return target;
}

Target ExpressionParser::target(bool with_attributes, std::string_view end) {
  const Nesting nesting(nesting_, stream_);
  Target whole;
  whole.form = Target::Form::kTuple;
  whole.line = stream_.line();
  bool is_tuple = false;
  for (;;) {
    if (!whole.parts.empty()) stream_.expect_operator(",");
    if (at_tuple_end(end) || stream_.at_operator("=")) break;
    if (stream_.skip_operator("(")) {
      whole.parts.push_back(target(with_attributes));
      stream_.expect_operator(")");
    } else {
      whole.parts.push_back(single_target(with_attributes));
    }
    if (!stream_.at_operator(",")) break;
    is_tuple = true;
  }
  if (whole.parts.empty()) stream_.wrong("expected a name to assign to, got " + stream_.describe());
  if (is_tuple) return whole;
  Target only = std::move(whole.parts.front());
  return only;
}

}  // namespace bulkhead::jinja

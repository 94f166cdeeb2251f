// Parses what follows a value: .name, [item], [a:b:c], (arguments), |filter, is test.
#include "worker/model/template/native.hpp"
#include "worker/model/template/parser_state.hpp"
#include "worker/model/template/template_error.hpp"

namespace bulkhead::jinja {

std::string TokenStream::describe() const {
  switch (current().kind) {
    case TokenKind::kEnd:
      return "the template's end";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kData:
    case TokenKind::kBlockBegin:
    case TokenKind::kVariableBegin:
      return "text";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kName:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
    case TokenKind::kOperator:
      break;
  }
  return "'" + current().text.substr(0, 60) + "'";
}

void TokenStream::wrong(const std::string& message) const {
  throw TemplateError(TemplateError::Kind::kSyntax, message, line());
}

Symbol Names::symbol(const std::string& name) {
  const auto [at, added] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (added) names_.push_back(name);
  return at->second;
}

ExprPtr ExpressionParser::postfix(ExprPtr node) {
  for (;;) {
    if (stream_.at_operator(".") || stream_.at_operator("["))
      node = subscript(std::move(node));
    else if (stream_.at_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr node) {
  for (;;) {
    if (stream_.skip_operator("|"))
      node = filter(std::move(node));
    else if (stream_.skip_name("is"))
      node = test(std::move(node));
    else if (stream_.at_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

ExprPtr ExpressionParser::filters_of_block() {
  ExprPtr node = filter(nullptr);
  while (stream_.skip_operator("|"))
    node = filter(std::move(node));
  return node;
}

ExprPtr ExpressionParser::subscript(ExprPtr node) {
  const std::uint32_t line = stream_.line();
  if (stream_.take().text == "[") return one_subscript(std::move(node));
  if (stream_.at(TokenKind::kName)) {
    ExprPtr attribute = make(ExprKind::kAttribute, line);
    attribute->name = stream_.take().text;
    attribute->constant = Text(attribute->name, Origin::kTemplate);
    attribute->children.push_back(std::move(node));
    return finished(std::move(attribute));
  }
  if (!stream_.at(TokenKind::kInteger))
    stream_.wrong("expected a name or a number after '.', got " + stream_.describe());
  ExprPtr item = make(ExprKind::kItem, line);
  item->children.push_back(std::move(node));
  item->children.push_back(primary());
  return finished(std::move(item));
}

// Called after the opening bracket.
ExprPtr ExpressionParser::one_subscript(ExprPtr node) {
  const std::uint32_t line = stream_.line();
  ExprPtr parts[3];
  std::size_t colons = 0;
  while (!stream_.at_operator("]")) {
    if (stream_.skip_operator(":")) {
      if (++colons > 2) stream_.wrong("a slice has at most two ':'");
    } else if (parts[colons] == nullptr && !stream_.at_operator(",")) {
      parts[colons] = expression();
    } else {
      stream_.wrong("expected ']', got " + stream_.describe());
    }
  }
  stream_.expect_operator("]");
  if (colons == 0 && parts[0] == nullptr) stream_.wrong("expected an index between '[' and ']'");
  ExprPtr item = make(colons == 0 ? ExprKind::kItem : ExprKind::kSlice, line);
  item->children.push_back(std::move(node));
  item->children.push_back(std::move(parts[0]));
  for (std::size_t i = 1; colons > 0 && i < 3; ++i)
    item->children.push_back(std::move(parts[i]));
  return finished(std::move(item));
}

CallArguments ExpressionParser::arguments() {
  CallArguments arguments;
  stream_.expect_operator("(");
  for (bool first = true; !stream_.at_operator(")"); first = false) {
    if (!first) {
      stream_.expect_operator(",");
      if (stream_.at_operator(")")) break;
    }
    if (stream_.skip_operator("*")) {
      if (arguments.rest != nullptr || arguments.mapping != nullptr)
        stream_.wrong("a call takes one *list, before a **dict");
      arguments.rest = expression();
    } else if (stream_.skip_operator("**")) {
      if (arguments.mapping != nullptr) stream_.wrong("a call takes one **dict");
      arguments.mapping = expression();
    } else if (stream_.at(TokenKind::kName) &&
               stream_.next_but_one().kind == TokenKind::kOperator &&
               stream_.next_but_one().text == "=") {
      if (arguments.mapping != nullptr) stream_.wrong("name=value goes before a **dict");
      Keyword keyword;
      keyword.name = stream_.take().text;
      stream_.take();
      keyword.value = expression();
      arguments.keyword.push_back(std::move(keyword));
    } else {
      if (!arguments.keyword.empty() || arguments.rest != nullptr || arguments.mapping != nullptr)
        stream_.wrong("an argument without a name goes before name=value, *list and **dict");
      arguments.positional.push_back(expression());
    }
  }
  stream_.expect_operator(")");
  return arguments;
}

ExprPtr ExpressionParser::call(ExprPtr node) {
  ExprPtr made = make(ExprKind::kCall, stream_.line());
  made->children.push_back(std::move(node));
  made->arguments = arguments();
  return finished(std::move(made));
}

// Called after '|'.
ExprPtr ExpressionParser::filter(ExprPtr node) {
  ExprPtr made = make(ExprKind::kFilter, stream_.line());
  made->name = stream_.expect_name();
  while (stream_.skip_operator("."))
    made->name += "." + stream_.expect_name();
  made->native = find_filter(made->name);
  if (made->native == nullptr)
    unknown_.push_back({made->line, "there is no filter '" + made->name + "'"});
  made->children.push_back(std::move(node));
  if (stream_.at_operator("(")) made->arguments = arguments();
  return finished(std::move(made));
}

// Called after 'is'. If a test has one argument, the argument needs no parentheses.
ExprPtr ExpressionParser::test(ExprPtr node) {
  ExprPtr made = make(ExprKind::kTest, stream_.line());
  const bool negated = stream_.skip_name("not");
  made->name = stream_.expect_name();
  while (stream_.skip_operator("."))
    made->name += "." + stream_.expect_name();
  made->native = find_test(made->name);
  if (made->native == nullptr)
    unknown_.push_back({made->line, "there is no test '" + made->name + "'"});
  made->children.push_back(std::move(node));
  const bool word = stream_.at(TokenKind::kName) && !stream_.at_name("else") &&
                    !stream_.at_name("or") && !stream_.at_name("and");
  if (stream_.at_operator("(")) {
    made->arguments = arguments();
  } else if (word || stream_.at(TokenKind::kString) || stream_.at(TokenKind::kInteger) ||
             stream_.at(TokenKind::kFloat) || stream_.at_operator("[") ||
             stream_.at_operator("{")) {
    if (stream_.at_name("is")) stream_.wrong("two tests in a row; write `x is a and x is b`");
    made->arguments.positional.push_back(postfix_of_primary());
  }
  made = finished(std::move(made));
  if (!negated) return made;
  ExprPtr negation = make(ExprKind::kUnary, made->line);
  negation->operation = Operation::kNot;
  negation->children.push_back(std::move(made));
  return finished(std::move(negation));
}

}  // namespace bulkhead::jinja

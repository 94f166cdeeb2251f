// What the two halves of the parser share: the tokens, the names, the depth checks.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker/model/template/lexer.hpp"
#include "worker/model/template/parser.hpp"
#include "worker/model/template/syntax.hpp"

namespace bulkhead::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next_but_one() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& take() {  // does not go beyond the end
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view text) const {
    return at(TokenKind::kOperator) && current().text == text;
  }
  bool at_name(std::string_view text) const {
    return at(TokenKind::kName) && current().text == text;
  }
  bool skip_operator(std::string_view text) {
    if (!at_operator(text)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!at_name(text)) return false;
    take();
    return true;
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) wrong("expected '" + std::string(text) + "', got " + describe());
  }
  std::string expect_name() {
    if (!at(TokenKind::kName)) wrong("expected a name, got " + describe());
    return take().text;
  }
  std::uint32_t line() const { return current().line; }
  std::string describe() const;
  [[noreturn]] void wrong(const std::string& message) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

class Names {
 public:
  Symbol symbol(const std::string& name);
  const std::string& name(Symbol symbol) const { return names_[symbol]; }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, Symbol> symbols_;
};

// A filter or test that does not exist. As in jinja2 the template is refused for it, unless it is within an {% if %}
// or a conditional expression, where it only fails when it is reached.
struct UnknownName {
  std::uint32_t line = 0;
  std::string message;
};

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& stream, Names& names) : stream_(stream), names_(names) {}

  ExprPtr expression(bool with_conditional = true);
  // Parses one expression, or several with commas between them: a tuple. `explicit_parentheses`: () is a tuple, too.
  ExprPtr tuple(bool with_conditional = true, bool explicit_parentheses = false);
  // Parses a name, a namespace's attribute, or a tuple of these. `end`: the word that ends a tuple ("in").
  Target target(bool with_attributes, std::string_view end = {});
  Target single_target(bool with_attributes);
  ExprPtr postfix_of_primary();
  // Parses a | b(c), applied to the text of a block: the innermost filter's child is null.
  ExprPtr filters_of_block();
  CallArguments arguments();

  std::vector<UnknownName>& unknown() { return unknown_; }
  MacroNames& macro_names() { return macro_names_; }

 private:
  ExprPtr conditional();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter = true);
  ExprPtr primary();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr node);
  ExprPtr filters_and_tests(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  ExprPtr one_subscript(ExprPtr node);
  ExprPtr call(ExprPtr node);
  ExprPtr filter(ExprPtr node);
  ExprPtr test(ExprPtr node);
  bool at_tuple_end(std::string_view end) const;

  ExprPtr make(ExprKind kind, std::uint32_t line) const;
  // Sets the depth, and refuses a node that is too deep.
  ExprPtr finished(ExprPtr node) const;
  ExprPtr binary(ExprKind kind, Operation operation, ExprPtr left, ExprPtr right,
                 std::uint32_t line) const;

  TokenStream& stream_;
  Names& names_;
  int nesting_ = 0;
  std::vector<UnknownName> unknown_;
  MacroNames macro_names_;
};

}  // namespace bulkhead::jinja

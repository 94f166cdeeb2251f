#include "worker/model/template/lexer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "worker/model/template/string_literal.hpp"
#include "worker/model/template/template_error.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string_view without_trailing_blanks(std::string_view text) {
  const std::size_t last = text.find_last_not_of(kBlanks);
  return last == text.npos ? std::string_view() : text.substr(0, last + 1);
}

// Applies Python's universal newlines, and removes a newline at the very end.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty())
      text_and_tag();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void wrong(const std::string& message) const {
    throw TemplateError(TemplateError::Kind::kSyntax, message, line_);
  }
  void add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, line_, std::string(text)});
  }
  void advance(std::size_t bytes) {
    line_ += static_cast<std::uint32_t>(
        std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(bytes), '\n'));
    if (bytes > 0) at_line_start_ = rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }
  void skip_blanks() { advance(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }

  // Reads the data up to the next tag, and the tag.
  void text_and_tag() {
    std::size_t at = 0;
    for (;; ++at) {
      at = rest_.find('{', at);
      if (at == rest_.npos || at + 1 >= rest_.size()) {
        data(rest_.size());
        return;
      }
      if (std::strchr("{%#", rest_[at + 1]) != nullptr) break;
    }
    const char type = rest_[at + 1];
    const char sign = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
    std::string_view text = rest_.substr(0, at);
    if (sign == '-') {
      text = without_trailing_blanks(text);
    } else if (sign != '+' && type != '{') {          // lstrip_blocks
      const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || at_line_start_) && line < text.size() &&
          text.find_first_not_of(kBlanks, line) == text.npos)
        text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, text);
    advance(at + (sign == '-' || sign == '+' ? 3 : 2));
    if (type == '#')
      comment();
    else if (type == '{')
      tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
    else if (!raw())
      tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  void data(std::size_t bytes) {
    if (bytes > 0) add(TokenKind::kData, rest_.substr(0, bytes));
    advance(bytes);
  }

  // Skips what follows a tag's end: blanks after "-", and one newline after a block's or comment's end (trim_blocks).
  void after_end(char sign, bool trims_newline) {
    if (sign == '-')
      skip_blanks();
    else if (sign != '+' && trims_newline && rest_.starts_with('\n'))
      advance(1);
  }

  void comment() {
    const std::size_t end = rest_.find("#}");
    if (end == rest_.npos) wrong("a comment that {# begins never ends; write #}");
    const char before = end > 0 ? rest_[end - 1] : '\0';
    advance(end + 2);
    after_end(before, true);
  }

  // Returns true if the block that has begun is {% raw %}, whose text is not interpreted.
  bool raw() {
    std::string_view look = rest_;
    const auto skip = [&look] {
      look.remove_prefix(std::min(look.find_first_not_of(kBlanks), look.size()));
    };
    skip();
    if (!look.starts_with("raw")) return false;
    look.remove_prefix(3);
    skip();
    const bool strips = look.starts_with("-%}");
    if (!strips && !look.starts_with("%}")) return false;
    look.remove_prefix(strips ? 3 : 2);
    advance(rest_.size() - look.size());
    if (strips) skip_blanks();
    raw_text();
    return true;
  }

  void raw_text() {
    for (std::size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 1)) {
      std::string_view tail = rest_.substr(at + 2);
      const char sign = tail.empty() ? '\0' : tail.front();
      if (sign == '-' || sign == '+') tail.remove_prefix(1);
      tail.remove_prefix(std::min(tail.find_first_not_of(kBlanks), tail.size()));
      if (!tail.starts_with("endraw")) continue;
      tail.remove_prefix(6);
      tail.remove_prefix(std::min(tail.find_first_not_of(kBlanks), tail.size()));
      char end_sign = '\0';
      if (tail.starts_with("-%}") || tail.starts_with("+%}")) end_sign = tail.front();
      if (end_sign == '\0' && !tail.starts_with("%}")) continue;
      tail.remove_prefix(end_sign == '\0' ? 2 : 3);
      std::string_view text = rest_.substr(0, at);
      if (sign == '-') {
        text = without_trailing_blanks(text);
      } else if (sign != '+') {
        const std::size_t line = text.rfind('\n') + 1;
        if ((line > 0 || at_line_start_) && text.find_first_not_of(kBlanks, line) == text.npos)
          text = text.substr(0, line);
      }
      if (!text.empty()) add(TokenKind::kData, text);
      advance(rest_.size() - tail.size());
      after_end(end_sign, true);
      return;
    }
    wrong("{% raw %} never ends; write {% endraw %}");
  }

  // Reads the tokens of {% ... %} or {{ ... }}. Inside brackets, the end's characters do not end the tag.
  void tag(TokenKind begin, TokenKind end, std::string_view closing) {
    const std::uint32_t began = line_;
    add(begin, "");
    std::string open;  // brackets that are still open
    for (;;) {
      skip_blanks();
      if (rest_.empty())
        throw TemplateError(TemplateError::Kind::kSyntax,
                            "a tag never ends; write " + std::string(closing), began);
      if (open.empty()) {
        const char sign = rest_.front() == '-' || (rest_.front() == '+' && closing == "%}")
                              ? rest_.front()
                              : '\0';
        if (rest_.substr(sign == '\0' ? 0 : 1).starts_with(closing)) {
          add(end, "");
          advance(sign == '\0' ? 2 : 3);
          after_end(sign, closing == "%}");
          return;
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = rest_.front();
    if (is_digit(c)) {
      number();
    } else if (is_name_start(c)) {
      std::size_t size = 1;
      while (size < rest_.size() && (is_name_start(rest_[size]) || is_digit(rest_[size])))
        ++size;
      add(TokenKind::kName, rest_.substr(0, size));
      advance(size);
    } else if (c == '\'' || c == '"') {
      string();
    } else {
      operation(open);
    }
  }

  void string() {
    const char quote = rest_.front();
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote)
      end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) wrong("a string never ends; write its closing quote");
    std::optional<std::string> text = unescaped(rest_.substr(1, end - 1));
    if (!text)
      wrong("a string has an escape that stands for no character; write \\\\ for a backslash");
    add(TokenKind::kString, *text);
    advance(end + 1);
  }

  std::size_t digits(std::size_t from, bool (*allowed)(char)) const {
    std::size_t at = from;
    while (at < rest_.size()) {
      if (allowed(rest_[at]))
        ++at;
      else if (rest_[at] == '_' && at > from && at + 1 < rest_.size() && allowed(rest_[at + 1]))
        ++at;
      else
        break;
    }
    return at;
  }

  void number() {
    const auto decimal = [](char c) { return is_digit(c); };
    std::size_t end = digits(0, decimal);
    bool is_float = false;
    const bool prefixed = rest_.front() == '0' && rest_.size() > 2 &&
                          std::strchr("xXbBoO", rest_[1]) != nullptr && rest_[1] != '\0';
    if (prefixed) {
      const bool after_dash = rest_[2] == '_';
      const auto hex = [](char d) {
        return is_digit(d) || (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
      };
      end = digits(after_dash ? 3 : 2, hex);
    } else {
      const bool after_dot = rest_.data() > source_.data() && rest_.data()[-1] == '.';
      if (!after_dot) {
        if (end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
          end = digits(end + 1, decimal);
          is_float = true;
        }
        if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
          const std::size_t sign =
              end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-') ? 1 : 0;
          if (end + 1 + sign < rest_.size() && is_digit(rest_[end + 1 + sign])) {
            end = digits(end + 1 + sign, decimal);
            is_float = true;
          }
        }
      }
    }
    std::string text(rest_.substr(0, end));
    std::erase(text, '_');
    if (text.size() > 1 && text[0] == '0' && !is_float && !prefixed &&
        text.find_first_not_of('0') != text.npos)
      wrong("the number " + text + " begins with 0; leave the zeros out");
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    advance(end);
  }

  void operation(std::string& open) {
    constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [this](std::string_view each) { return rest_.starts_with(each); });
    if (found == kOperators.end())
      wrong("unexpected character '" +
            std::string(rest_.substr(0, model::decode_char(rest_).bytes)) + "' in a tag");
    const char c = found->front();
    if (std::strchr("([{", c) != nullptr) open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (std::strchr(")]}", c) != nullptr) {
      if (open.empty()) wrong(std::string("unexpected '") + c + "': nothing opened it");
      if (open.back() != c)
        wrong(std::string("unexpected '") + c + "' where '" + open.back() + "' is due");
      open.pop_back();
    }
    add(TokenKind::kOperator, *found);
    advance(found->size());
  }

  std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  std::uint32_t line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (!model::valid_utf8(source))
    throw TemplateError(TemplateError::Kind::kSyntax, "the template is no valid UTF-8");
  return Lexer(normalized(source)).run();
}

}  // namespace bulkhead::jinja

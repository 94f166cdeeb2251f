// The differences that matter here:
// - PCRE2's \s also matches U+180E, which has not been a blank since Unicode 6.3.
// - PCRE2's \p{Han} means the characters that are used with Han (such as U+3002, the full stop), the makers' means
//   those of the script Han alone.
// - `[` within a class begins another class, and `&&` stands between two classes; PCRE2 takes both for characters.
#include "worker/model/expression_notation.hpp"

#include <algorithm>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace bulkhead::model {
namespace {

constexpr std::string_view kBlankRanges =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kOtherRanges =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::size_t kLongestScript = 40;

// Says whether PCRE2 knows a script by this name.
bool is_script(std::string_view name) {
  const auto letter = [](char c) { return c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); };
  if (name.size() < 3 || name.size() > kLongestScript || !std::ranges::all_of(name, letter))
    return false;
  const std::string source = R"(\p{sc:)" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), PCRE2_UTF, &error,
                    &at, nullptr),
      &pcre2_code_free);
  return code != nullptr;
}

Error unsupported_class(const std::string& what) {
  return Error(ErrorCode::kUnsupported, "an expression has " + what + ", which is not supported");
}

class NotationWriter {
 public:
  explicit NotationWriter(std::string_view source) : rest_(source) {}

  Result<std::string> run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else if (in_class_) {
        BULKHEAD_RETURN_IF_ERROR(member());
      } else if (rest_[0] == '[') {
        in_class_ = true;
        copy(1);
        if (rest_.starts_with('^')) copy(1);
        if (rest_.starts_with(']')) copy(1);  // it belongs to the class
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  void copy(std::size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(std::min(bytes, rest_.size()));
  }

  void escape() {
    const char letter = rest_.size() < 2 ? '\0' : rest_[1];
    if (letter == 's' || letter == 'S') {
      const std::string ranges(letter == 's' ? kBlankRanges : kOtherRanges);
      out_ += in_class_ ? ranges : "[" + ranges + "]";
      rest_.remove_prefix(2);
    } else if ((letter == 'p' || letter == 'P') && rest_.substr(2).starts_with('{')) {
      property(letter == 'P');
    } else {
      copy(2);
    }
  }

  void property(bool negative) {
    std::string_view name = rest_.substr(3, rest_.substr(3).find('}'));
    const std::size_t bytes = 3 + name.size() + 1;
    if (name.starts_with('^')) {
      negative = !negative;
      name.remove_prefix(1);
    }
    if (!is_script(name)) return copy(bytes);
    out_ += (negative ? R"(\P{sc:)" : R"(\p{sc:)") + std::string(name) + "}";
    rest_.remove_prefix(bytes);
  }

  Status member() {
    if (rest_.starts_with("&&")) return unsupported_class("\"&&\" between classes");
    if (rest_[0] == '[' && !rest_.starts_with("[:"))
      return unsupported_class("a class within a class");
    if (rest_[0] == '[') {
      const std::size_t end = rest_.find(":]");
      copy(end == rest_.npos ? rest_.size() : end + 2);
      return {};
    }
    in_class_ = rest_[0] != ']';
    copy(1);
    return {};
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

Result<std::string> in_pcre2_notation(std::string_view source) {
  return NotationWriter(source).run();
}

}  // namespace bulkhead::model

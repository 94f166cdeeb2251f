#include "worker/model/expressions.hpp"

#include <cstdint>
#include <utility>

#include "worker/model/expression_notation.hpp"
#include "worker/model/unicode.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace bulkhead::model {
namespace {

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// A hostile file's expression fails after this many steps. The expressions of vocabularies need one or two steps for
// each character.
constexpr std::uint32_t kMostSteps = 10'000'000;
constexpr std::uint32_t kMostHeapKib = 64 * 1024;
constexpr std::size_t kLongestSource = 64 * 1024;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct Expressions::Patterns {
  std::vector<std::unique_ptr<pcre2_code, Free>> codes;
  std::unique_ptr<pcre2_match_context, Free> limits;
};

Expressions::Expressions(std::unique_ptr<Patterns> patterns) : patterns_(std::move(patterns)) {}
Expressions::~Expressions() = default;

Result<std::shared_ptr<const Expressions>> Expressions::compile(
    std::span<const std::string> sources) {
  auto patterns = std::make_unique<Patterns>();
  patterns->limits.reset(pcre2_match_context_create(nullptr));
  if (patterns->limits == nullptr)
    return Error(ErrorCode::kResourceExhausted, "no memory for regular expressions");
  pcre2_set_match_limit(patterns->limits.get(), kMostSteps);
  pcre2_set_heap_limit(patterns->limits.get(), kMostHeapKib);
  for (const std::string& source : sources) {
    BULKHEAD_TRY(const std::string notation,
                 in_pcre2_notation(std::string_view(source).substr(0, kLongestSource)));
    int error = 0;
    PCRE2_SIZE at = 0;
    if (source.size() <= kLongestSource)
      patterns->codes.emplace_back(pcre2_compile(units(notation), notation.size(),
                                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                                 &error, &at, nullptr));
    if (source.size() > kLongestSource || patterns->codes.back() == nullptr) {
      char words[160] = "it is too long";
      if (error != 0)
        pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(words), sizeof words);
      return Error(ErrorCode::kCorrupt, "\"" + source.substr(0, 64) +
                                            "\" is not a valid regular expression: " + words +
                                            " (at byte " + std::to_string(at) + ")");
    }
  }
  return std::shared_ptr<const Expressions>(new Expressions(std::move(patterns)));
}

struct ExpressionSplitter::Match {
  std::unique_ptr<pcre2_match_data, Free> data{pcre2_match_data_create(1, nullptr)};
};

ExpressionSplitter::ExpressionSplitter(const Expressions& expressions, std::string_view text)
    : expressions_(expressions),
      rest_(text),
      all_valid_(valid_utf8(text)),
      levels_(expressions.patterns_->codes.size()),
      match_(std::make_unique<Match>()) {}
ExpressionSplitter::ExpressionSplitter(ExpressionSplitter&&) noexcept = default;
ExpressionSplitter::~ExpressionSplitter() = default;

std::string_view ExpressionSplitter::next() {
  return next_of(levels_.size());
}

// Returns the next characters that are valid UTF-8, as many as there are, or one byte that is not.
std::string_view ExpressionSplitter::valid_run() {
  std::size_t length = all_valid_ ? rest_.size() : 0;
  while (length < rest_.size()) {
    const std::size_t bytes = decode_char(rest_.substr(length)).bytes;
    if (!valid_utf8(rest_.substr(length, bytes))) break;
    length += bytes;
  }
  if (length == 0 && !rest_.empty()) length = 1;
  const std::string_view run = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return run;
}

// Returns the next piece of the text that the first `level` expressions have cut.
std::string_view ExpressionSplitter::next_of(std::size_t level) {
  if (level == 0) return valid_run();
  Level& own = levels_[level - 1];
  if (own.at == own.piece.size()) {
    own = {next_of(level - 1)};
    if (own.piece.empty()) return {};
    // A byte that is not valid UTF-8 is a piece of its own, because no expression matches it.
    if (own.piece.size() == 1 && !valid_utf8(own.piece)) {
      own.at = 1;
      return own.piece;
    }
  }
  if (own.end <= own.at && !find(level - 1)) own.begin = own.end = own.piece.size();
  const std::size_t from = own.at;
  own.at = from < own.begin ? own.begin : own.end;
  return own.piece.substr(from, own.at - from);
}

bool ExpressionSplitter::find(std::size_t level) {
  Level& own = levels_[level];
  if (match_->data == nullptr) return false;
  const int found = pcre2_match(expressions_.patterns_->codes[level].get(), units(own.piece),
                                own.piece.size(), own.at, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK,
                                match_->data.get(), expressions_.patterns_->limits.get());
  if (found < 0) return false;
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match_->data.get());
  own.begin = ends[0];
  own.end = ends[1];
  // \K in a lookahead may put them anywhere, so they are checked.
  return own.begin >= own.at && own.end > own.begin && own.end <= own.piece.size();
}

}  // namespace bulkhead::model

// Cuts text with a vocabulary's regular expressions: each expression cuts the pieces of the one before it into its
// matches and the text between them. PCRE2 matches them, with Unicode's classes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::model {

// Compiled once and immutable, so any number of threads may use it.
class Expressions {
 public:
  // kCorrupt, with PCRE2's message, for an invalid expression; kUnsupported as in expression_notation.hpp.
  static Result<std::shared_ptr<const Expressions>> compile(std::span<const std::string> sources);
  Expressions(const Expressions&) = delete;
  Expressions& operator=(const Expressions&) = delete;
  ~Expressions();

 private:
  friend class ExpressionSplitter;
  struct Patterns;
  explicit Expressions(std::unique_ptr<Patterns> patterns);
  std::unique_ptr<Patterns> patterns_;
};

// The pieces of one text, in order; together they are the text. A byte that is not UTF-8 is a piece of its own. If an
// expression costs too much (only an expression from a file can), the rest of its piece stays whole.
class ExpressionSplitter {
 public:
  // The arguments must outlive this object.
  ExpressionSplitter(const Expressions& expressions, std::string_view text);
  ExpressionSplitter(ExpressionSplitter&&) noexcept;
  ~ExpressionSplitter();

  // Returns the next piece; empty at the end.
  std::string_view next();

 private:
  // How far an expression has cut its piece.
  struct Level {
    std::string_view piece;
    std::size_t at = 0;              // cut up to here
    std::size_t begin = 0, end = 0;  // the next match; end 0: unknown
  };
  struct Match;
  std::string_view valid_run();
  std::string_view next_of(std::size_t level);
  bool find(std::size_t level);

  const Expressions& expressions_;
  std::string_view rest_;
  bool all_valid_;
  std::vector<Level> levels_;
  std::unique_ptr<Match> match_;
};

}  // namespace bulkhead::model

// Cuts text by regular expressions as the makers of a vocabulary wrote them: each cuts the pieces of the
// one before into its matches and what lies between them. PCRE2 matches them, with Unicode's classes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::model {

// Compiled once. Never changes, so that any threads may cut by it.
class Expressions {
 public:
  // kCorrupt with PCRE2's words for one that is none.
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

// The pieces of one text, in order; together they are the text. A byte that is not UTF-8 is a piece by
// itself. Where an expression costs too much (which only a file's own can), the rest of its piece stays
// whole.
class ExpressionSplitter {
 public:
  // Both must outlive it.
  ExpressionSplitter(const Expressions& expressions, std::string_view text);
  ExpressionSplitter(ExpressionSplitter&&) noexcept;
  ~ExpressionSplitter();

  // The next piece; empty at the end.
  std::string_view next();

 private:
  // What an expression has of the piece that it cuts.
  struct Level {
    std::string_view piece;
    std::size_t at = 0;              // up to where it is cut
    std::size_t begin = 0, end = 0;  // the match that comes next; end 0: none is known
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

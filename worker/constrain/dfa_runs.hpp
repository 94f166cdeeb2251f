// Computes how long a text may continue freely from a state of an automaton, that is, with any characters of some
// classes. A pattern such as `^.{1,200}$` has a state for each length, and none leads back to itself; but most of a
// vocabulary's tokens are free there, too.
//
// Use an object from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "worker/constrain/char_classes.hpp"
#include "worker/constrain/dfa.hpp"

namespace bulkhead::constrain {

class DfaRuns {
 public:
  // Every text of at most `length` characters of these classes is taken.
  struct Free {
    CharClasses classes = 0;
    std::uint32_t length = 0;
  };
  // No caller asks about longer texts.
  static constexpr std::uint32_t kMostLength = 254;

  const Free& from(const Dfa& dfa, std::uint32_t state);
  std::size_t bytes() const { return bytes_; }
  void clear();

 private:
  struct Row {
    CharClasses taken = 0;  // the classes that lead to `to`, the state that most classes lead to
    std::uint32_t to = kDead;
    std::optional<Free> free;
  };
  Row& row(const Dfa& dfa, std::uint32_t state);
  Free find(const Dfa& dfa, std::uint32_t state);

  std::unordered_map<const Dfa*, std::vector<std::unique_ptr<Row>>> rows_;
  const Dfa* last_ = nullptr;  // the automaton of the last question, and its rows
  std::vector<std::unique_ptr<Row>>* last_rows_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace bulkhead::constrain

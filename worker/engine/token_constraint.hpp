// A constraint on the tokens of one answer: given the tokens so far, it says which tokens may come next. The engine
// asks it; grammars (grammar_constraint.hpp) and other restrictions implement it.
//
// The mask must be a pure function of the request and the tokens so far: a resumed request gets the same mask in
// another process and another batch. Use it from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // `token` is the answer's next token: just chosen, or accepted before the request was resumed.
  virtual void advance(TokenId token) = 0;
  // Returns one bit per token: bit t % 32 of word t / 32. Tokens beyond the last word are not allowed. Empty: every
  // token is allowed. Valid until the next call of any constraint. kResourceExhausted if finding it takes too much
  // work.
  virtual Result<std::span<const std::uint32_t>> mask() = 0;
  // Returns whether mask() is empty, so that the device may choose the token. It may return false although the mask
  // is empty, if finding out takes as much work as making the mask; then mask() decides. As pure as mask().
  virtual bool is_free() { return false; }
  // Returns the text that must come next, as long as there is no choice: at most `most` bytes, and perhaps less than
  // is forced.
  virtual std::string forced_text(std::size_t) { return {}; }
  // Returns whether only the end may come.
  virtual bool complete() = 0;
};

}  // namespace bulkhead::engine

// A constraint on the tokens of one answer: given the tokens so far, it says which tokens may come next. The engine
// asks it; grammars (grammar_constraint.hpp) and other restrictions implement it.
//
// The mask must be a pure function of the request and the tokens so far: a resumed request gets the same mask in
// another process and another batch. Use it from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"

namespace bulkhead::engine {

// Computes masks in advance: those that hold after tokens that may come next. Valid until the next
// call of any constraint.
class MasksAhead {
 public:
  virtual ~MasksAhead() = default;
  // Returns the mask after `token`, which follows those of earlier calls; valid until the next call. It may be wrong,
  // so the caller compares it with the constraint's own once that has got the token. Null: the mask is not known, and
  // neither are those after it.
  virtual const std::vector<std::uint32_t>* behind(TokenId token) = 0;
};

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
  // Null: nothing is foretold.
  virtual std::unique_ptr<MasksAhead> ahead() { return nullptr; }
  // Returns the text that must come next, as long as there is no choice: at most `most` bytes, and perhaps less than
  // is forced.
  virtual std::string forced_text(std::size_t) { return {}; }
  // Returns whether only the end may come.
  virtual bool complete() = 0;
};

}  // namespace bulkhead::engine

// What holds the tokens of one answer: given those so far, which may come next. The engine asks;
// grammars (grammar_constraint.hpp) and whatever else restricts an answer are behind this.
//
// The mask must be a pure function of the request and the tokens so far: a resumed request, in
// another process and another batch, gets the same one. One thread.
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
  // `token` is the answer's next one: just chosen, or accepted before the request was resumed.
  virtual void advance(TokenId token) = 0;
  // One bit a token, bit t % 32 of word t / 32; tokens past the last word may not come. Empty: every
  // token may come. Valid until the next call of any constraint. kResourceExhausted where finding it
  // takes too much work.
  virtual Result<std::span<const std::uint32_t>> mask() = 0;
  // Says whether mask() is empty, so that the device may choose the token. May return false although the mask is
  // empty, if finding out takes as much work as making the mask; then mask() decides. As pure as mask().
  virtual bool is_free() { return false; }
  // The text that must come next, as far as nothing else may; at most `most` bytes, and perhaps less than must come.
  virtual std::string forced_text(std::size_t) { return {}; }
  // Nothing but the end may come.
  virtual bool complete() = 0;
};

}  // namespace bulkhead::engine

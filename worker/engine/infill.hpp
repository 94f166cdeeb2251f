// Prompts for filling in: what stands before and behind a gap, around the tokens that the model was trained to take for
// that. The vocabulary says which they are.
#pragma once

#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// The prompt's tokens: the marks are special tokens, and nothing in the texts is. kUnsupported where the vocabulary has
// no such marks, or none for other files and the request has some. Thread-safe.
Result<std::vector<model::TokenId>> infill_prompt(const model::Tokenizer& tokenizer,
                                                  const ipc::InfillPrompt& request);

}  // namespace bulkhead::engine

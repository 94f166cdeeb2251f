// Makes prompts for filling a gap. Such a prompt contains the text before the gap and the text after it, each with a
// mark: a special token that the model was trained on for this purpose. The vocabulary says which tokens are the
// marks.
#pragma once

#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

// Returns the prompt's tokens. The marks are special tokens, and nothing in the request's texts becomes a special
// token. Other files come before the text; where the vocabulary has no mark for files, an empty line ends each
// file. kUnsupported if the vocabulary has no marks of a gap. Thread-safe.
Result<std::vector<model::TokenId>> infill_prompt(const model::Tokenizer& tokenizer,
                                                  const ipc::InfillPrompt& request);

}  // namespace bulkhead::engine

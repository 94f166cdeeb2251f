// The scripted worker's answers to questions, each of which is one message.
#pragma once

#include "ipc/messages.hpp"

namespace bulkhead::test {

// Returns the text's bytes as tokens. A text that begins with "too large" fails as in the real worker, when the answer
// has no room in the channel.
ipc::FromWorker tokenized(const ipc::Tokenize& tokenize);
ipc::FromWorker detokenized(const ipc::Detokenize& detokenize);

// Returns {3, 4, the input's length}; fails if the input contains "refused".
ipc::FromWorker embedded(const ipc::Embed& embed);

// Counts how often the query's first letter is in the document; fails if the document contains "refused".
ipc::FromWorker ranked(const ipc::Rank& rank);

}  // namespace bulkhead::test

// Whether two models number their tokens alike, so that one can guess tokens for the other.
#pragma once

#include <cstddef>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

// Families pad their vocabularies by size: Qwen2.5-0.5B has 151,936 entries, and Qwen2.5-7B has 152,064. By so many
// entries the longer list may be longer.
inline constexpr std::size_t kMostPadding = 1024;

// Checks that the token lists of both files are equal, or that they are equal up to the end of the shorter one, and
// that the longer one has only padding and control tokens after that. Then the tokens that begin and end texts must
// be the same ones, as far as both files name them. kUnsupported says what is different, with `draft` as "it".
Status check_shared_vocabulary(const GgufFile& model, const GgufFile& draft);

}  // namespace bulkhead::model

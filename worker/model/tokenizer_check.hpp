// Checks whether a file's tokenizer is one that this program supports, without reading its vocabulary. That
// takes microseconds; Tokenizer::from_gguf takes a tenth of a second and more.
#pragma once

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/pre_tokenizer.hpp"

namespace bulkhead::model {

// kUnsupported, with the reason, if Tokenizer::from_gguf would refuse the file because of the kind of its tokenizer
// or of its pre-tokenizer.
Status check_tokenizer(const GgufFile& file);

// Returns the rule by which a file with byte-level BPE cuts words: that of the name in tokenizer.ggml.pre, or, if the
// name is unknown, the rule that the file describes itself (tokenizer.huggingface.json). The rule is never guessed.
Result<PreTokenizerInfo> pre_tokenizer_of(const GgufFile& file);

}  // namespace bulkhead::model

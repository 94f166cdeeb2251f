// Whether a file's tokenizer is one that this program knows, without reading its vocabulary: a matter of microseconds,
// where Tokenizer::from_gguf takes a tenth of a second and more.
#pragma once

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/pre_tokenizer.hpp"

namespace bulkhead::model {

// kUnsupported with the reason where Tokenizer::from_gguf would refuse the file for the kind of its tokenizer or of its
// pre-tokenizer.
Status check_tokenizer(const GgufFile& file);

// The rule by which a file with byte-level BPE cuts words: that of the name in tokenizer.ggml.pre, or where the name is
// unknown the one that the file describes itself (tokenizer.huggingface.json). Never guessed.
Result<PreTokenizerInfo> pre_tokenizer_of(const GgufFile& file);

}  // namespace bulkhead::model

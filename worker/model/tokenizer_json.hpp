// What a file says of its own pre-tokenizer in tokenizer.huggingface.json: the tokenizer.json that its
// vocabulary was published with.
#pragma once

#include <string_view>

#include "config/base/error.hpp"
#include "worker/model/pre_tokenizer.hpp"

namespace bulkhead::model {

// kCorrupt for what is no such JSON; kUnsupported, by name, for a step that is more than splitting by
// expressions.
Result<PreTokenizerInfo> pre_tokenizer_of_json(std::string_view json);

}  // namespace bulkhead::model

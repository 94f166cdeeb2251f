// Reads what a file says about its own pre-tokenizer in tokenizer.huggingface.json: the tokenizer.json with which its
// vocabulary was published.
#pragma once

#include <string_view>

#include "config/base/error.hpp"
#include "worker/model/pre_tokenizer.hpp"

namespace bulkhead::model {

// kCorrupt if it is not such JSON; kUnsupported, with the step's name, for a step that does more than split by
// expressions.
Result<PreTokenizerInfo> pre_tokenizer_of_json(std::string_view json);

}  // namespace bulkhead::model

// The chat template in a model file, and the texts of the special tokens with which it is rendered.
#pragma once

#include <string>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::model {

struct TemplateText {
  std::string source;  // empty: the file has none
  std::string bos;     // empty: the file names no such token
  std::string eos;
};

// kCorrupt if a key has the wrong type.
Result<TemplateText> template_text(const GgufFile& file);

// Returns the file's template, ready to render. kUnsupported, with what to do instead, if there is none or it is not
// valid.
Result<jinja::Chat> load_chat(const GgufFile& file);

// Reads a template to use instead of the file's default: from a path (config/template_path.hpp), or from the file's
// tokenizer.chat_template.NAME. kNotFound if it is not there; other errors say what is wrong with it.
Result<jinja::Chat> load_asked_chat(const GgufFile& file, const std::string& asked);

}  // namespace bulkhead::model

// The chat template in a model file, and the special tokens' texts that it is rendered with.
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

// kCorrupt where a key has another type than it must have.
Result<TemplateText> template_text(const GgufFile& file);

// The file's template, ready to render. kUnsupported, with what to do instead, where there is none or
// it is no template.
Result<jinja::Chat> load_chat(const GgufFile& file);

// Reads a template in place of the file's own: from a path (config/template_path.hpp), or the file's
// tokenizer.chat_template.NAME. kNotFound where it is not there; else what is wrong with it.
Result<jinja::Chat> load_asked_chat(const GgufFile& file, const std::string& asked);

}  // namespace bulkhead::model

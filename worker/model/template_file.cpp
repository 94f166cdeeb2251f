#include "worker/model/template_file.hpp"

namespace bulkhead::model {
namespace {

Result<std::string> token_text(const GgufFile& file, const char* key) {
  BULKHEAD_TRY(const auto id, file.get_uint(key));
  if (!id) return std::string();
  BULKHEAD_TRY(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  if (!tokens || *id >= tokens->size()) return std::string();
  return std::string((*tokens)[*id]);
}

}  // namespace

Result<TemplateText> template_text(const GgufFile& file) {
  TemplateText text;
  BULKHEAD_TRY(const auto source, file.get_string("tokenizer.chat_template"));
  if (source) text.source = *source;
  BULKHEAD_TRY(text.bos, token_text(file, "tokenizer.ggml.bos_token_id"));
  BULKHEAD_TRY(text.eos, token_text(file, "tokenizer.ggml.eos_token_id"));
  return text;
}

Result<jinja::Chat> load_chat(const GgufFile& file) {
  BULKHEAD_TRY(const TemplateText text, template_text(file));
  if (text.source.empty())
    return Error(ErrorCode::kUnsupported, "the model has no chat template; use /v1/completions");
  Result<jinja::Chat> chat = jinja::Chat::load(text.source, text.bos, text.eos);
  if (chat.ok()) return chat;
  return Error(ErrorCode::kUnsupported, "the model's chat template can't be used: " +
                                            chat.error().message() + "; use /v1/completions");
}

}  // namespace bulkhead::model

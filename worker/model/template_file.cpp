#include "worker/model/template_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "config/base/unique_fd.hpp"
#include "config/template_path.hpp"
#include "worker/model/opened_files.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

constexpr std::size_t kMostTemplateBytes = std::size_t{256} << 10;

Result<std::string> token_text(const GgufFile& file, const char* key) {
  BULKHEAD_TRY(const auto id, named_token(file, key));
  if (!id) return std::string();
  BULKHEAD_TRY(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  if (!tokens || *id >= tokens->size()) return std::string();
  return std::string((*tokens)[*id]);
}

Result<std::string> read_template(const std::string& path) {
  const auto refused = [&path] {
    return Error(ErrorCode::kNotFound,
                 "chat_template: " + path + " can't be read: " + std::strerror(errno));
  };
  const UniqueFd file = open_to_read(path);
  if (!file.valid()) return refused();
  std::string text(kMostTemplateBytes + 1, '\0');
  std::size_t have = 0;
  for (ssize_t got = 1; got != 0 && have < text.size(); have += static_cast<std::size_t>(got)) {
    got = ::read(file.get(), text.data() + have, text.size() - have);
    if (got < 0) return refused();
  }
  text.resize(have);
  if (text.size() > kMostTemplateBytes)
    return Error(ErrorCode::kInvalidArgument, "chat_template: " + path + " has more than 256 KiB");
  if (text.empty())
    return Error(ErrorCode::kInvalidArgument, "chat_template: " + path + " is empty");
  return text;
}

Result<std::string> source_of(const GgufFile& file, const std::string& asked) {
  if (config::is_template_path(asked)) return read_template(asked);
  BULKHEAD_TRY(const auto named, file.get_string("tokenizer.chat_template." + asked));
  if (named) return std::string(*named);
  return Error(ErrorCode::kNotFound, "chat_template: the model file has no template of the name '" +
                                         asked +
                                         "'; the path of a file has a / or ends with .jinja");
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

Result<jinja::Chat> load_asked_chat(const GgufFile& file, const std::string& asked) {
  BULKHEAD_TRY(const std::string source, source_of(file, asked));
  BULKHEAD_TRY(const TemplateText own, template_text(file));
  Result<jinja::Chat> chat = jinja::Chat::load(source, own.bos, own.eos);
  if (!chat.ok()) return chat.error().within("chat_template '" + asked + "'");
  return chat;
}

}  // namespace bulkhead::model

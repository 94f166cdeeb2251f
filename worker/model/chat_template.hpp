// The model's own chat template, recognised by its form (ChatML, Llama 2, Llama 3, Mistral, Gemma)
// and rendered by code of ours: no Jinja interpreter runs in the worker.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

enum class ChatForm { kChatMl, kLlama2, kLlama3, kMistral, kGemma };
const char* to_string(ChatForm form);

struct ChatTurn {
  std::string role;  // system | user | assistant (others as the form allows)
  std::string content;
};

// A piece of the rendered prompt; `special` pieces come from the template, the others from the
// user.
struct RenderedPiece {
  std::string text;
  bool special = false;
};

class ChatTemplate {
 public:
  // kUnsupported, naming /v1/completions, when the file has no template or one of another form.
  static Result<ChatTemplate> from_gguf(const GgufFile& file);

  ChatForm form() const { return form_; }
  // Renders the turns and opens the assistant's. kInvalidArgument for a role or order that the form
  // can't say. BOS is not included: the tokenizer adds it as the file asks.
  Result<std::vector<RenderedPiece>> render(std::span<const ChatTurn> turns) const;

 private:
  ChatForm form_ = ChatForm::kChatMl;
  bool default_system_ = false;  // Qwen: a system turn is put first when there is none
  std::string default_system_text_;
  int variant_ = 0;  // e.g. Mistral's spacing generations
};

}  // namespace bulkhead::model

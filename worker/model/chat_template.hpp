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
  Result<std::vector<RenderedPiece>> render_alternating(std::span<const ChatTurn> turns) const;

  ChatForm form_ = ChatForm::kChatMl;
  bool default_system_ =
      false;  // the template puts this system text first when there is no such turn
  std::string default_system_text_;
  std::string
      system_preamble_;  // Llama 3.1 and later: dates, always at the start of the system turn
  bool strips_thinking_ = false;  // Qwen3: earlier answers are quoted without their <think> part
  bool bos_each_turn_ = false;    // Llama 2: BOS before each of the user's turns after the first
  int variant_ = 0;               // Mistral's spacing: index into a table in chat_template.cpp
  std::string bos_text_ = "<s>";
  std::string eos_text_ = "</s>";
};

}  // namespace bulkhead::model

#include "worker/model/chat_template.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace bulkhead::model {
namespace {

// Where the generations of Mistral's template put spaces:
//   before_open [INST] after_open  user's text  before_close [/INST]  before_answer  answer  EOS
struct MistralSpacing {
  const char* before_open;
  const char* after_open;
  const char* before_close;
  const char* before_answer;
  bool trims_answer;
  bool has_system_token;  // [SYSTEM_PROMPT] (v7); else the system text opens the first user turn
};
enum MistralVariant { kMistralPlain, kMistralV1, kMistralV3, kMistralTekken, kMistralV7 };
constexpr MistralSpacing kMistral[] = {
    {"", " ", " ", "", false, false},    // 7B v0.1, first template
    {" ", " ", " ", " ", false, false},  // v1
    {"", " ", "", " ", true, false},     // v3
    {"", "", "", "", false, false},      // v3, tekken vocabulary
    {"", " ", "", " ", false, true},     // v7
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpaces) - first + 1));
}

// A string literal's "\n" as a template's source writes it.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == 'n') {
      out += '\n';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

// The literal text between `open` (then a line break) and `close` in the template's source, if some
// occurrence is literal all the way: with a quote or brace in it, it is an expression, as for the
// user's own system turn.
std::optional<std::string> literal_between(std::string_view source, std::string_view open,
                                           std::string_view close) {
  for (std::size_t at = source.find(open); at != source.npos; at = source.find(open, at + 1)) {
    std::string_view rest = source.substr(at + open.size());
    if (rest.starts_with("\\n"))
      rest.remove_prefix(2);
    else if (rest.starts_with("\n"))
      rest.remove_prefix(1);
    else
      continue;
    const std::string_view text = rest.substr(0, rest.find(close));
    if (text.size() == rest.size() || text.empty()) continue;
    if (text.find_first_of("'\"{}") == text.npos) return unescaped(text);
  }
  return std::nullopt;
}

// The text of a special token by its id's key; `fallback` without one.
Result<std::string> token_text(const GgufFile& file, const char* key, std::string fallback) {
  BULKHEAD_TRY(const auto id, file.get_uint(key));
  if (!id) return fallback;
  BULKHEAD_TRY(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  if (!tokens || *id >= tokens->size()) return fallback;
  return std::string((*tokens)[*id]);
}

std::string without_thinking(std::string_view text) {
  constexpr std::string_view kEnd = "</think>";
  const std::size_t end = text.rfind(kEnd);
  if (end == text.npos) return std::string(text);
  text.remove_prefix(end + kEnd.size());
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(text);
}

class Pieces {
 public:
  void special(std::string text) { add(std::move(text), true); }
  void content(std::string text) { add(std::move(text), false); }
  std::vector<RenderedPiece> take() { return std::move(pieces_); }

 private:
  void add(std::string text, bool special) {
    if (text.empty()) return;
    if (!pieces_.empty() && pieces_.back().special == special)
      pieces_.back().text += text;
    else
      pieces_.push_back({std::move(text), special});
  }
  std::vector<RenderedPiece> pieces_;
};

}  // namespace

const char* to_string(ChatForm form) {
  switch (form) {
    case ChatForm::kChatMl:
      return "ChatML";
    case ChatForm::kLlama2:
      return "Llama 2";
    case ChatForm::kLlama3:
      return "Llama 3";
    case ChatForm::kMistral:
      return "Mistral";
    case ChatForm::kGemma:
      return "Gemma";
  }
  return "unknown";
}

Result<ChatTemplate> ChatTemplate::from_gguf(const GgufFile& file) {
  BULKHEAD_TRY(const auto found, file.get_string("tokenizer.chat_template"));
  if (!found)
    return Error(ErrorCode::kUnsupported, "the model has no chat template; use /v1/completions");
  const std::string_view source = *found;
  ChatTemplate chat;
  BULKHEAD_TRY(chat.bos_text_, token_text(file, "tokenizer.ggml.bos_token_id", "<s>"));
  BULKHEAD_TRY(chat.eos_text_, token_text(file, "tokenizer.ggml.eos_token_id", "</s>"));

  if (contains(source, "<|im_start|>") && contains(source, "<|im_end|>")) {
    chat.form_ = ChatForm::kChatMl;
    if (auto text = literal_between(source, "<|im_start|>system", "<|im_end|>")) {
      chat.default_system_ = true;
      chat.default_system_text_ = *std::move(text);
    }
    chat.strips_thinking_ = contains(source, "</think>");
  } else if (contains(source, "<|start_header_id|>") && contains(source, "<|end_header_id|>")) {
    chat.form_ = ChatForm::kLlama3;
    // The template's own default date, not today's: the same conversation must give the same prompt
    // tomorrow, in another worker.
    if (contains(source, "Cutting Knowledge Date"))
      chat.system_preamble_ = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  } else if (contains(source, "<start_of_turn>")) {
    chat.form_ = ChatForm::kGemma;
  } else if (contains(source, "[INST]") && contains(source, "<<SYS>>")) {
    chat.form_ = ChatForm::kLlama2;
    chat.bos_each_turn_ = contains(source, "bos_token + '[INST]") ||
                          contains(source, "bos_token ~ '[INST]") ||
                          contains(source, "bos_token + \"[INST]");
  } else if (contains(source, "[INST]")) {
    chat.form_ = ChatForm::kMistral;
    if (contains(source, "[SYSTEM_PROMPT]"))
      chat.variant_ = kMistralV7;
    else if (contains(source, "' [INST] ' + system_message") ||
             contains(source, "[AVAILABLE_TOOLS]"))
      chat.variant_ = contains(source, " [INST]")      ? kMistralV1
                      : contains(source, "\"[INST]\"") ? kMistralTekken
                                                       : kMistralV3;
    else
      chat.variant_ = kMistralPlain;
  } else {
    return Error(ErrorCode::kUnsupported,
                 "the model's chat template is of no known form (known: ChatML, Llama 2, Llama 3, "
                 "Mistral, Gemma); use /v1/completions and write the prompt in the model's own "
                 "form");
  }
  return chat;
}

Result<std::vector<RenderedPiece>> ChatTemplate::render(std::span<const ChatTurn> turns) const {
  if (turns.empty())
    return Error(ErrorCode::kInvalidArgument, "messages is empty; give at least one");
  for (const ChatTurn& turn : turns) {
    if (turn.role != "system" && turn.role != "user" && turn.role != "assistant")
      return Error(ErrorCode::kInvalidArgument,
                   "role \"" + turn.role.substr(0, 64) + "\" is not known to the model's " +
                       to_string(form_) + " chat template; use system, user or assistant");
  }
  if (form_ != ChatForm::kChatMl && form_ != ChatForm::kLlama3) return render_alternating(turns);

  const bool chatml = form_ == ChatForm::kChatMl;
  const auto open = [chatml](const std::string& role) {
    return chatml ? "<|im_start|>" + role + "\n"
                  : "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
  };
  const char* const close = chatml ? "<|im_end|>\n" : "<|eot_id|>";
  const bool has_system = turns.front().role == "system";
  Pieces pieces;
  if (!has_system && default_system_) pieces.special(open("system") + default_system_text_ + close);
  if (!has_system && !system_preamble_.empty())
    pieces.special(open("system") + system_preamble_ + close);
  for (const ChatTurn& turn : turns) {
    pieces.special(open(turn.role));
    if (&turn == turns.data() && has_system) pieces.special(system_preamble_);
    if (chatml)
      pieces.content(strips_thinking_ && turn.role == "assistant" ? without_thinking(turn.content)
                                                                  : turn.content);
    else
      pieces.content(trimmed(turn.content));
    pieces.special(close);
  }
  pieces.special(open("assistant"));
  return pieces.take();
}

// Llama 2, Mistral and Gemma: an optional system turn, then user and assistant in turn, the user
// first and last.
Result<std::vector<RenderedPiece>> ChatTemplate::render_alternating(
    std::span<const ChatTurn> turns) const {
  const std::string* system = nullptr;
  if (turns.front().role == "system") {
    system = &turns.front().content;
    turns = turns.subspan(1);
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role != (i % 2 == 0 ? "user" : "assistant"))
      return Error(ErrorCode::kInvalidArgument,
                   std::string("the model's ") + to_string(form_) +
                       " chat template needs user and assistant in turn, after at most one system "
                       "message at the start; message " +
                       std::to_string(i + (system != nullptr ? 1 : 0)) + " is of role " +
                       turns[i].role);
  }
  if (turns.size() % 2 == 0)
    return Error(ErrorCode::kInvalidArgument,
                 std::string("the model's ") + to_string(form_) +
                     " chat template needs a last message of role user");

  const MistralSpacing& spacing = kMistral[variant_];
  Pieces pieces;
  if (form_ == ChatForm::kMistral && spacing.has_system_token && system != nullptr) {
    pieces.special("[SYSTEM_PROMPT] ");
    pieces.content(*system);
    pieces.special("[/SYSTEM_PROMPT]");
    system = nullptr;
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string& text = turns[i].content;
    const bool user = i % 2 == 0;
    const bool with_system = i == 0 && system != nullptr;
    switch (form_) {
      case ChatForm::kGemma:
        pieces.special(user ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
        if (with_system) {
          pieces.content(trimmed(*system));
          pieces.special("\n\n");
        }
        pieces.content(trimmed(text));
        pieces.special("<end_of_turn>\n");
        break;
      case ChatForm::kLlama2:
        if (user) {
          pieces.special((i > 0 && bos_each_turn_ ? bos_text_ : "") + "[INST] ");
          if (with_system) {
            pieces.special("<<SYS>>\n");
            pieces.content(*system);
            pieces.special("\n<</SYS>>\n\n");
          }
          pieces.content(trimmed(text));
          pieces.special(" [/INST]");
        } else {
          pieces.special(" ");
          pieces.content(trimmed(text));
          pieces.special(" " + eos_text_);
        }
        break;
      default:
        if (user) {
          pieces.special(std::string(spacing.before_open) + "[INST]" + spacing.after_open);
          if (with_system) {
            pieces.content(*system);
            pieces.special("\n\n");
          }
          pieces.content(text);
          pieces.special(std::string(spacing.before_close) + "[/INST]");
        } else {
          pieces.special(spacing.before_answer);
          pieces.content(spacing.trims_answer ? trimmed(text) : text);
          pieces.special(eos_text_);
        }
    }
  }
  if (form_ == ChatForm::kGemma) pieces.special("<start_of_turn>model\n");
  return pieces.take();
}

}  // namespace bulkhead::model

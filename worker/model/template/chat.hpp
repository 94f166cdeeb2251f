// A chat template with what it needs: a request's JSON in, the prompt's text out.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/template/adapt.hpp"
#include "worker/model/template/template.hpp"

namespace bulkhead::jinja {

// What a template can do, as probing it shows.
struct Abilities {
  enum class Arguments : std::uint8_t { kNone, kObject, kString, kEither };

  bool system_role = false;
  bool developer_role = false;
  bool content_parts = false;
  bool tools = false;         // offered tools show in the prompt
  bool tool_calls = false;    // past calls show
  bool tool_results = false;  // and their results
  bool parallel_calls = false;
  bool content_beside_calls = false;
  Arguments arguments = Arguments::kNone;  // of past calls
  bool thinking_on = false;                // enable_thinking: true changes the prompt
  bool thinking_off = false;               // enable_thinking: false does
  Adaptations adaptations;
};

struct ChatRequest {
  // An object with `messages`, and if wanted `tools`, `documents`, `add_generation_prompt` (true),
  // `continue_final_message` (false), `chat_template_kwargs`, `enable_thinking`,
  // `reasoning_effort`. Other keys are not read.
  std::string_view json;
  std::tm now = {};  // what the template takes for the present time
  // As transformers would: nothing adapted, tools and documents none where there are none, lists
  // can't be changed.
  bool as_is = false;
};

struct ChatPrompt {
  std::vector<Piece> pieces;
  // What of the request the template leaves out in silence, in words for the client.
  std::vector<std::string> warnings;

  std::string text() const;
};

class Chat {
 public:
  // Parses and probes. kInvalidArgument, with the line, for what is no template.
  static Result<Chat> load(std::string_view source, std::string_view bos, std::string_view eos);

  // kInvalidArgument: the request is wrong, or the template refuses it (raise_exception; the message
  // is its own). kUnsupported: an operation of the template fails. kResourceExhausted: a limit.
  Result<ChatPrompt> render(const ChatRequest& request) const;

  const Abilities& abilities() const { return abilities_; }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::string bos_;
  std::string eos_;
  Template template_;
  Abilities abilities_;
};

}  // namespace bulkhead::jinja

// A chat template with everything that it needs: it turns a request's JSON into the prompt's text.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/template/adapt.hpp"
#include "worker/model/template/efforts.hpp"
#include "worker/model/template/template.hpp"

namespace bulkhead::jinja {

// A variable, other than enable_thinking, by which a template learns whether the model reasons.
struct ThinkingSwitch {
  const char* name;
  const char* on = nullptr;  // null: true and false
  const char* off = nullptr;
};

// What a template supports, as probing it shows.
struct Abilities {
  enum class Arguments : std::uint8_t { kNone, kObject, kString, kEither };

  bool system_role = false;
  bool developer_role = false;
  bool system_before_results =
      true;  // the prompt shows the system message where a tool's result comes last
  bool system_before_answers = true;  // the same where an answer comes last
  bool content_parts = false;
  bool tools = false;                  // the prompt shows offered tools
  bool tool_calls = false;             // the prompt shows past calls
  bool tool_results = false;           // the prompt shows their results
  bool calls_without_tools = false;    // the prompt shows past calls where no tools are offered
  bool results_without_tools = false;  // the same for results
  bool parallel_calls = false;
  bool content_beside_calls = false;
  bool content_beside_old_calls = false;  // the same, where the assistant has answered since
  bool calls_beside_content = false;
  bool loses_users = false;                      // the prompt lacks what users say
  bool loses_answers = false;                    // the prompt lacks what the assistant said
  Arguments arguments = Arguments::kNone;        // of past calls
  bool thinking_on = false;                      // enable_thinking: true changes the prompt
  bool thinking_off = false;                     // enable_thinking: false changes the prompt
  const ThinkingSwitch* other_switch = nullptr;  // null: there is none
  Efforts efforts;                               // what the template gets for an unknown effort
  Adaptations adaptations;
};

struct ChatRequest {
  // An object with `messages`, and optionally `tools`, `documents`, `add_generation_prompt` (default true),
  // `continue_final_message` (default false), `chat_template_kwargs`, `enable_thinking`, `reasoning_effort`,
  // `template_effort`, an effort that does not say whether the model reasons, and `keep_reasoning`, which says whether
  // the prompt shows the reasoning of earlier turns. Other keys are not read.
  std::string_view json;
  std::tm now = {};  // what the template sees as the present time
  // Renders as transformers does: it adapts nothing, tools and documents are none if they are absent, and lists can't
  // be changed.
  bool as_is = false;
  // Tools and documents are none if they are absent, whatever probing has shown.
  bool absent_as_none = false;
};

struct ChatPrompt {
  std::vector<Piece> pieces;
  // What the template silently omits from the request, in words for the client.
  std::vector<std::string> warnings;
  // The end of the prompt that the answer continues: the text of the last message (continue_final_message).
  std::string continued = {};

  std::string text() const;
};

class Chat {
 public:
  // Parses and probes. kInvalidArgument, with the line, if the source is not a template.
  static Result<Chat> load(std::string_view source, std::string_view bos, std::string_view eos);

  // kInvalidArgument: the request is wrong, or the template refuses it (raise_exception, with its own message).
  // kUnsupported: an operation of the template fails. kResourceExhausted: a limit.
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

// Changes OpenAI's messages into the form that a template can take. Templates differ in which roles, contents and
// arguments they read; probing a template (probe.hpp) shows which changes it needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/template/run.hpp"
#include "worker/model/template/value.hpp"

namespace bulkhead::jinja {

// Returns a text that counts as the template's own.
inline Text plain(std::string_view text) {
  return Text(text, Origin::kTemplate);
}

// In the order in which they are applied.
enum class Adaptation : std::uint8_t {
  kDeveloperAsSystem,   // role developer becomes system
  kSystemPartsJoined,   // the parts of a system message become their text, one line each
  kContentPartsJoined,  // the same for every message
  kResultPartsJoined,   // the same for a tool's result
  kNullContentAsEmpty,  // content null beside tool calls becomes ""
  kNullAnswerAsEmpty,   // content null of an assistant that calls nothing becomes ""
  kEmptyContentAsNull,  // the reverse of kNullContentAsEmpty
  kArgumentsAsObject,   // a call's arguments become the object that their JSON describes
  kArgumentsAsText,     // the reverse: an object, as Ollama's clients send, becomes JSON
  kToolCallIds9Alnum,   // ids become 9 letters and digits: call00001, call00002 ...
  kToolCallIdsNumbered,  // ids become functions.NAME:INDEX, counted over the conversation (Kimi K2.5)
  kReasoningAsThinking,      // reasoning_content becomes thinking
  kReasoningAsThinkingPart,  // reasoning_content becomes a first content part of type thinking
  kCallTypeGiven,            // a call without a type becomes one of type function
  kLaterSystemAsUser,        // a system message behind a question becomes the user's
  kSystemsJoined,            // neighbouring system messages become one
  kNeighboursJoined,         // the same for neighbouring messages of user and assistant
  kQuestionIntoResult,       // a question behind a tool's result becomes the result's end
  kSystemMergedIntoUser,     // the system text opens the next message
  kContentAsParts,           // content that is a string becomes a list of one text part (SmolVLM)
  kToolDescriptionAsEmpty,   // a tool without a description gets an empty one
  kToolParametersAsEmpty,    // a tool without parameters gets those of an object without properties
  kToolPropertiesAsEmpty,    // parameters without properties get empty ones
  kToolsInSystem,  // tools go into the system message, and calls into their message's text (Phi-4-mini)
  kAbsentAsNone,  // tools and documents that a request lacks are none, and not undefined (Olmo 3)
  kContentIntoThinking,  // beside calls and thinking, the content becomes the end of the thinking (gpt-oss)
  kConversationsGiven,  // the template reads conversations[0] instead of messages (Kimi-Audio)
};
constexpr std::size_t kAdaptations = 27;
// "developer_as_system" ...
const char* to_string(Adaptation adaptation);

class Adaptations {
 public:
  bool has(Adaptation one) const { return (bits_ >> static_cast<unsigned>(one) & 1U) != 0; }
  void add(Adaptation one) { bits_ |= 1U << static_cast<unsigned>(one); }
  std::vector<std::string> names() const;

 private:
  std::uint32_t bits_ = 0;
};

// Changes the messages in place; they belong to the request. Refusals become text for every template. Fails, with the
// message's number, for what can't be adapted: a part that is not text, or arguments that are not JSON.
void adapt(Run& run, List& messages, const Adaptations& needed);
// Copies `reasoning`, as OpenRouter and newer vLLM call it, to `reasoning_content`.
void reasoning_by_one_name(Dict& message);
// What kReasoningAsThinking, kReasoningAsThinkingPart and kContentIntoThinking need; adapt() calls them.
void move_reasoning(Run& run, Dict& message, Adaptation how);
void content_into_thinking(Dict& message);
// Returns {"type": TYPE, TYPE: value}.
Value typed_part(Run& run, const char* type, const Value& value);
// Fills in what the template needs of the tools that are offered. `tools` may be null.
void fill_tools(Run& run, const Value* tools, const Adaptations& needed);
// What kToolsInSystem needs, after adapt(). `tools` may be null.
void move_tools(Run& run, List& messages, const Value* tools);

}  // namespace bulkhead::jinja

// A chat's messages: their shape, before a worker renders them.
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// A message's text: a string, or parts of type "text" joined.
std::optional<std::string> read_content(Fields& fields, const json& content,
                                        const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fields.refuse(where, "must be a string or an array of parts of type 'text'.", "invalid_type");
    return std::nullopt;
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    std::string here = fmt::format("{}[{}]", where, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      fields.refuse(here, "must be an object with a 'type'.", "invalid_type");
      return std::nullopt;
    }
    if (part["type"] != "text") {
      fields.refuse(here, "is not of type 'text', the only one this server supports.",
                    "unsupported_parameter");
      return std::nullopt;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      fields.refuse(here, "has no string 'text'.", "invalid_type");
      return std::nullopt;
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

}  // namespace

void read_messages(Fields& fields, std::vector<ipc::ChatMessage>& messages) {
  const json* value = fields.get("messages");
  if (value == nullptr) return fields.refuse("messages", "is missing.", "missing_parameter");
  if (!value->is_array()) return fields.wrong_type("messages", "an array", *value);
  if (value->empty()) return fields.refuse("messages", "is an empty array.", "out_of_range");
  for (std::size_t i = 0; i < value->size(); ++i) {
    const json& item = (*value)[i];
    std::string where = fmt::format("messages[{}]", i);
    if (!item.is_object()) return fields.refuse(where, "must be an object.", "invalid_type");
    auto role = item.find("role");
    if (role == item.end())
      return fields.refuse(where + ".role", "is missing.", "missing_parameter");
    if (!role->is_string())
      return fields.refuse(where + ".role", "must be a string.", "invalid_type");
    ipc::ChatMessage message;
    message.role = role->get<std::string>();
    if (message.role == "developer") message.role = "system";
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return fields.refuse(where + ".role", "must be system, developer, user or assistant.",
                           "unsupported_role");
    }
    for (const char* call : {"tool_calls", "function_call"}) {
      auto found = item.find(call);
      if (found != item.end() && !is_empty(*found)) {
        return fields.refuse(where + "." + call, "is not supported by this server.",
                             "unsupported_parameter");
      }
    }
    auto content = item.find("content");
    // OpenAI's own answers have it so where there was only a refusal or a call.
    if (message.role == "assistant" && content != item.end() && content->is_null()) {
      messages.push_back(std::move(message));
      continue;
    }
    if (content == item.end() || content->is_null())
      return fields.refuse(where + ".content", "is missing.", "missing_parameter");
    std::optional<std::string> text = read_content(fields, *content, where + ".content");
    if (!text) return;
    message.content = *std::move(text);
    messages.push_back(std::move(message));
  }
}

}  // namespace bulkhead::orchestrator

// Reads a chat's request and checks the shape of what its template reads, before a worker renders it.
//
// The worker gets these members' texts as the client wrote them. A parsed value would lose what templates show to
// models: the order of keys in a tool's schema, and how numbers are written.
#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/json_members.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxTools = 1024;

// ---- checks ----

bool is_object_with(const json& value, const char* name, json::value_t type) {
  if (!value.is_object()) return false;
  const auto found = value.find(name);
  return found != value.end() && found->type() == type;
}

// An assistant's parts may be refusals, as in OpenAI's own answers; the template shows them as text.
void check_content(Fields& fields, const json& content, bool assistant, const std::string& where) {
  if (content.is_string()) return;
  if (!content.is_array()) {
    return fields.refuse(where, "must be a string or an array of parts of type 'text'.",
                         "invalid_type");
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!is_object_with(part, "type", json::value_t::string))
      return fields.refuse(here, "must be an object with a 'type'.", "invalid_type");
    const bool refusal = assistant && is_text(part["type"], "refusal");
    if (!is_text(part["type"], "text") && !refusal) {
      return fields.refuse(here, "is not of type 'text', the only one this server supports.",
                           "unsupported_parameter");
    }
    const char* const name = refusal ? "refusal" : "text";
    if (!is_object_with(part, name, json::value_t::string))
      return fields.refuse(here, fmt::format("has no string '{}'.", name), "invalid_type");
  }
}

bool check_name(Fields& fields, const json& function, const std::string& where) {
  if (!is_object_with(function, "name", json::value_t::string)) {
    fields.refuse(where + ".name", "must be a string.", "invalid_type");
    return false;
  }
  const auto& name = function["name"].get_ref<const std::string&>();
  if (name.empty() || name.size() > kMaxNameBytes) {
    fields.refuse(where + ".name", fmt::format("must have 1 to {} bytes.", kMaxNameBytes),
                  "out_of_range");
    return false;
  }
  return true;
}

void check_calls(Fields& fields, const json& calls, const std::string& where) {
  if (!calls.is_array()) return fields.refuse(where, "must be an array.", "invalid_type");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const json& call = calls[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!is_object_with(call, "function", json::value_t::object))
      return fields.refuse(here, "must be an object with a 'function'.", "invalid_type");
    if (call.contains("id") && !call["id"].is_string() && !call["id"].is_null())
      return fields.refuse(here + ".id", "must be a string.", "invalid_type");
    const json& function = call["function"];
    if (!check_name(fields, function, here + ".function")) return;
    const auto arguments = function.find("arguments");
    if (arguments != function.end() && !arguments->is_string() && !arguments->is_object() &&
        !arguments->is_null()) {
      return fields.refuse(here + ".function.arguments", "must be a string of JSON, or an object.",
                           "invalid_type");
    }
  }
}

void check_message(Fields& fields, const json& item, const std::string& where) {
  if (!item.is_object()) return fields.refuse(where, "must be an object.", "invalid_type");
  const auto role = item.find("role");
  if (role == item.end()) return fields.refuse(where + ".role", "is missing.", "missing_parameter");
  if (!role->is_string())
    return fields.refuse(where + ".role", "must be a string.", "invalid_type");
  bool known = false;
  for (const char* name : {"system", "developer", "user", "assistant", "tool"})
    known |= is_text(*role, name);
  if (!known) {
    const bool function = is_text(*role, "function");
    return fields.refuse(where + ".role",
                         function ? "can't be function; write it as tool, with a 'tool_call_id'."
                                  : "must be system, developer, user, assistant or tool.",
                         "unsupported_role");
  }
  const auto member = [&item](const char* name) -> const json* {
    const auto found = item.find(name);
    return found == item.end() || found->is_null() ? nullptr : &*found;
  };
  const bool assistant = is_text(*role, "assistant");
  if (const json* call = member("function_call"); call != nullptr && !is_empty(*call)) {
    return fields.refuse(where + ".function_call", "is not supported; write it as 'tool_calls'.",
                         "unsupported_parameter");
  }
  const json* calls = member("tool_calls");
  if (calls != nullptr && !is_empty(*calls)) {
    if (!assistant) {
      return fields.refuse(where + ".tool_calls", "belongs to messages of role assistant.",
                           "invalid_combination");
    }
    check_calls(fields, *calls, where + ".tool_calls");
  }
  for (const char* name : {"tool_call_id", "reasoning_content", "name", "refusal"}) {
    if (const json* text = member(name); text != nullptr && !text->is_string())
      return fields.refuse(where + "." + name, "must be a string.", "invalid_type");
  }
  if (const json* content = member("content"))
    return check_content(fields, *content, assistant, where + ".content");
  // OpenAI's own answers lack the content where there was only a refusal or a call.
  const bool may_lack =
      assistant && (item.contains("content") || calls != nullptr || member("refusal") != nullptr);
  if (!may_lack) fields.refuse(where + ".content", "is missing.", "missing_parameter");
}

void check_messages(Fields& fields) {
  const json* value = fields.get("messages");
  if (value == nullptr) return fields.refuse("messages", "is missing.", "missing_parameter");
  if (!value->is_array()) return fields.wrong_type("messages", "an array", *value);
  if (value->empty()) return fields.refuse("messages", "is an empty array.", "out_of_range");
  for (std::size_t i = 0; i < value->size() && fields.ok(); ++i)
    check_message(fields, (*value)[i], fmt::format("messages[{}]", i));
}

// Returns whether a schema is of another type than an object. The arguments of a call are always an object.
bool describes_other_than_object(const json& schema) {
  constexpr std::string_view kOthers[] = {"null",   "boolean", "integer",
                                          "number", "string",  "array"};
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  return type != schema.end() && type->is_string() &&
         std::ranges::find(kOthers, type->get_ref<const std::string&>()) != std::end(kOthers);
}

void check_tools(Fields& fields) {
  const json* tools = fields.get("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields.wrong_type("tools", "an array", *tools);
  if (tools->size() > kMaxTools)
    return fields.refuse("tools", fmt::format("has more than {} tools.", kMaxTools),
                         "out_of_range");
  if (has_wide_objects(*tools))
    return fields.refuse("tools", too_many_members(*tools), "out_of_range");
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const json& tool = (*tools)[i];
    const std::string where = fmt::format("tools[{}]", i);
    if (!is_object_with(tool, "type", json::value_t::string) ||
        !is_text(tool["type"], "function")) {
      return fields.refuse(where + ".type",
                           "must be 'function', the only one this server supports.",
                           "unsupported_parameter");
    }
    if (!is_object_with(tool, "function", json::value_t::object))
      return fields.refuse(where + ".function", "must be an object.", "invalid_type");
    const json& function = tool["function"];
    if (!check_name(fields, function, where + ".function")) return;
    const auto schema = function.find("parameters");
    if (schema != function.end() && !schema->is_object() && !schema->is_null())
      return fields.refuse(where + ".function.parameters", "must be an object.", "invalid_type");
    if (schema != function.end() && describes_other_than_object(*schema))
      return fields.refuse(where + ".function.parameters.type", "must be 'object'.",
                           "invalid_value");
    const auto strict = function.find("strict");
    if (strict != function.end() && !strict->is_null() && !strict->is_boolean())
      return fields.refuse(where + ".function.strict", "must be a boolean.", "invalid_type");
  }
}

bool offers_tool(const json* tools, const std::string& name) {
  return tools != nullptr && std::ranges::any_of(*tools, [&](const json& tool) {
           return tool["function"]["name"] == name;
         });
}

// Returns the name in {"type": "function", "function": {"name": N}}; the Responses API puts the name beside the type.
// Empty after a refusal.
std::string offered_name(Fields& fields, const json& tool, const std::string& where) {
  const bool nested = is_object_with(tool, "function", json::value_t::object);
  const json& named = nested ? tool["function"] : tool;
  const std::string here = nested ? where + ".function" : where;
  if (!check_name(fields, named, here)) return {};
  std::string name = named["name"];
  if (offers_tool(fields.get("tools"), name)) return name;
  fields.refuse(here + ".name", "is not the name of one of the 'tools'.", "invalid_value");
  return {};
}

bool is_of_type(const json& value, const char* type) {
  return is_object_with(value, "type", json::value_t::string) && value["type"] == type;
}

// Reads {"type": "allowed_tools", "allowed_tools": {"mode": M, "tools": [...]}}; the Responses API puts mode and
// tools beside the type. This function skips tools that OpenAI's own servers run, as the parser of 'tools' does.
void read_allowed_tools(Fields& fields, const json& choice, ipc::Submit& parameters) {
  const bool nested = is_object_with(choice, "allowed_tools", json::value_t::object);
  const json& allowed = nested ? choice["allowed_tools"] : choice;
  const std::string where = nested ? "tool_choice.allowed_tools" : "tool_choice";
  const std::string mode = allowed.value("mode", json("auto")).dump();
  if (mode != "\"auto\"" && mode != "\"required\"")
    return fields.refuse(where + ".mode", "must be 'auto' or 'required'.", "invalid_value");
  if (!is_object_with(allowed, "tools", json::value_t::array))
    return fields.refuse(where + ".tools", "must be an array.", "invalid_type");
  const json& tools = allowed["tools"];
  for (std::size_t i = 0; i < tools.size() && fields.ok(); ++i) {
    const std::string here = fmt::format("{}.tools[{}]", where, i);
    if (!is_object_with(tools[i], "type", json::value_t::string))
      return fields.refuse(here, "must be an object with a 'type'.", "invalid_type");
    if (!is_of_type(tools[i], "function")) continue;
    std::string name = offered_name(fields, tools[i], here);
    if (!name.empty()) parameters.allowed_tools.push_back(std::move(name));
  }
  if (parameters.allowed_tools.empty())
    fields.refuse(where + ".tools", "names none of the 'tools'.", "invalid_value");
  if (mode == "\"required\"") parameters.tool_choice = ipc::ToolChoice::kRequired;
}

void read_tool_choice_object(Fields& fields, const json& choice, ipc::Submit& parameters) {
  if (is_of_type(choice, "allowed_tools")) return read_allowed_tools(fields, choice, parameters);
  if (!is_of_type(choice, "function")) {
    return fields.refuse("tool_choice",
                         "must be 'none', 'auto', 'required', name a function, or list "
                         "'allowed_tools'.",
                         "unsupported_parameter");
  }
  parameters.tool_choice = ipc::ToolChoice::kNamed;
  parameters.tool_name = offered_name(fields, choice, "tool_choice");
}

void check_template_options(Fields& fields) {
  (void)fields.boolean("enable_thinking", false);
  (void)fields.text("reasoning_effort");
  (void)fields.text("template_effort");
  const bool continues = fields.boolean("continue_final_message", false);
  if (fields.boolean("add_generation_prompt", false) && continues) {
    fields.refuse("continue_final_message", "and 'add_generation_prompt' can't both be true.",
                  "invalid_combination");
  }
  if (const json* documents = fields.get("documents");
      documents != nullptr && !documents->is_array())
    fields.wrong_type("documents", "an array", *documents);
  const json* more = fields.get("chat_template_kwargs");
  if (more == nullptr) return;
  if (!more->is_object()) return fields.wrong_type("chat_template_kwargs", "an object", *more);
  for (const char* name : {"messages", "tools"}) {
    if (more->contains(name)) {
      fields.refuse(fmt::format("chat_template_kwargs.{}", name),
                    "can't be replaced here; give it in the request itself.",
                    "invalid_combination");
    }
  }
}

}  // namespace

void read_tool_choice(Fields& fields, ipc::Submit& parameters) {
  const json* choice = fields.get("tool_choice");
  if (choice == nullptr || is_text(*choice, "none") || is_text(*choice, "auto") || !fields.ok())
    return;
  const json* tools = fields.get("tools");
  if (is_text(*choice, "required") || is_text(*choice, "any")) {  // Mistral's word for it
    parameters.tool_choice = ipc::ToolChoice::kRequired;
    if (tools == nullptr || tools->empty())
      fields.refuse("tool_choice", "needs 'tools' to choose from.", "invalid_combination");
  } else {
    read_tool_choice_object(fields, *choice, parameters);
  }
}

void refuse_beside_tool_choice(Fields& fields, const ipc::Submit& parameters) {
  if (parameters.tool_choice == ipc::ToolChoice::kAuto) return;
  if (parameters.constraint.kind != ipc::ConstraintKind::kNone) {
    fields.refuse(parameters.constraint.parameter,
                  "can't be used beside this 'tool_choice', which requires a call as the answer.",
                  "invalid_combination");
  }
  if (parameters.ignore_eos) {
    fields.refuse("ignore_eos",
                  "can't be true beside this 'tool_choice', which says where an answer ends.",
                  "invalid_combination");
  }
}

namespace {

// Says whether the last message is the beginning of the answer, as clients of Mistral and DeepSeek (`prefix`) and of
// Kimi and Qwen (`partial`) mark it.
bool begins_answer(Fields& fields) {
  const json& last = fields.get("messages")->back();
  return is_text(last["role"], "assistant") &&
         (last.value("prefix", json()) == true || last.value("partial", json()) == true);
}

}  // namespace

std::string read_chat(Fields& fields, std::string_view body) {
  check_messages(fields);
  check_tools(fields);
  check_template_options(fields);
  const std::string reasoning = reasoning_members(fields);
  if (!fields.ok()) return {};
  // Tools that the answer must not use are not shown to the model.
  const json* choice = fields.get("tool_choice");
  const bool without_tools = choice != nullptr && is_text(*choice, "none");
  JsonMember members[] = {{"messages"},
                          {"tools"},
                          {"documents"},
                          {"add_generation_prompt"},
                          {"continue_final_message"},
                          {"chat_template_kwargs"},
                          {"enable_thinking"},
                          {"reasoning_effort"},
                          {"template_effort"}};
  constexpr std::size_t kContinues = 4;
  find_json_members(body, members);
  if (begins_answer(fields)) members[kContinues].text = "true";
  std::string chat;
  for (const JsonMember& member : members) {
    if (member.text.empty() || (without_tools && member.name == "tools")) continue;
    chat += fmt::format("{}\"{}\":", chat.empty() ? '{' : ',', member.name);
    chat += member.text;
  }
  return chat + reasoning + '}';
}

}  // namespace bulkhead::orchestrator

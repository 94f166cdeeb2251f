// Turns requests of the Responses API into chats, so that one parser checks what both have in common.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"
#include "orchestrator/http/request_fields.hpp"
#include "orchestrator/http/responses.hpp"
#include "orchestrator/http/stored_items.hpp"

namespace bulkhead::orchestrator {

namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;  // templates show a schema's members in their order

// Members that this parser reads itself, and members that do not change an answer.
constexpr std::string_view kResponsesOwn[] = {
    "instructions", "input",         "tools",        "max_output_tokens",    "reasoning",
    "text",         "include",       "conversation", "previous_response_id", "prompt",
    "background",   "store",         "tool_choice",  "top_logprobs",         "response_format",
    "messages",     "truncation",    "metadata",     "service_tier",         "stream_options",
    "user",         "max_tool_calls"};

constexpr std::size_t kMostWarnings = 8;    // each names a type of tools
constexpr std::size_t kMostTypeBytes = 32;  // of a type in a warning
// Of all items that a request names by their ids.
constexpr std::size_t kMostNamedBytes = std::size_t{1} << 20;

// The types of tools, other than functions, that the client runs itself.
constexpr std::string_view kClientTools[] = {"custom", "shell", "local_shell", "apply_patch",
                                             "computer"};

class ResponsesTranslation : Translating {
 public:
  explicit ResponsesTranslation(const Ordered& body) : body_(body) {}

  Parsed<GenerationRequest> parse() {
    out_["messages"] = Ordered::array();
    if (const Ordered* instructions = find(body_, "instructions"))
      add({{"role", "system"}, {"content", text(*instructions, "instructions")}});
    input();
    flush();
    tools();
    options();
    if (error_) return *error_;
    Parsed<GenerationRequest> parsed = parse_chat(dump_exact(out_));
    auto* const request = std::get_if<GenerationRequest>(&parsed);
    if (request == nullptr) return with_own_names(std::get<ApiError>(parsed), names_of_tools());
    request->warnings = warnings();
    return parsed;
  }

 private:
  // The parser of chats knows only the tools that are not left out.
  std::vector<FieldName> names_of_tools() const {
    std::vector<FieldName> names;
    for (const auto& [chat, own] : tool_paths_)
      names.push_back({chat, own});
    return names;
  }

  std::vector<std::string> warnings() const {
    std::vector<std::string> all;
    for (const std::string& type : left_out_) {
      if (all.size() == kMostWarnings) break;
      const std::string shown =
          Ordered(type).dump(-1, ' ', true, Ordered::error_handler_t::replace);
      all.push_back(fmt::format("tools of type {} are left out", shown));
    }
    return all;
  }

  void unsupported(const std::string& name) {
    refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
  }

  void add(Ordered message) { out_["messages"].push_back(std::move(message)); }

  // What an assistant thought, said and called between two other messages becomes one message.
  Ordered& assistant() {
    if (assistant_.empty()) assistant_ = {{"role", "assistant"}, {"content", nullptr}};
    return assistant_;
  }
  void flush() {
    if (assistant_.empty()) return;
    if (!assistant_.contains("tool_calls") && assistant_["content"].is_null())
      assistant_["content"] = "";
    add(std::exchange(assistant_, Ordered::object()));
  }

  // Returns a string as it is, or the joined texts of parts.
  std::string text(const Ordered& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    std::string joined;
    if (!content.is_array()) refuse(where, "must be a string or an array of parts.");
    for (std::size_t i = 0; content.is_array() && i < content.size(); ++i) {
      const Ordered& part = content[i];
      const std::string type = part.is_object() ? text_of(part, "type") : std::string();
      const char* const name = type == "refusal" ? "refusal" : "text";
      if (type == "refusal" || type.ends_with("text")) {
        const Ordered* said = find(part, name);
        if (said == nullptr || !said->is_string())
          refuse(fmt::format("{}[{}].{}", where, i, name), "must be a string.");
        joined += text_of(part, name);
      } else {
        refuse(fmt::format("{}[{}]", where, i),
               "is not a part with text; this server takes only text.", "unsupported_parameter");
      }
    }
    return joined;
  }

  void input() {
    const Ordered* input = find(body_, "input");
    if (input == nullptr) return refuse("input", "is missing.", "missing_parameter");
    if (input->is_string()) return add({{"role", "user"}, {"content", *input}});
    if (!input->is_array()) return refuse("input", "must be a string or an array of items.");
    for (std::size_t i = 0; i < input->size() && !error_; ++i)
      item((*input)[i], fmt::format("input[{}]", i));
  }

  static std::string type_of(const Ordered& item) {
    if (find(item, "type") != nullptr) return text_of(item, "type");
    return find(item, "role") == nullptr && find(item, "id") != nullptr ? "item_reference"
                                                                        : "message";
  }

  void item(const Ordered& item, const std::string& where) {
    if (!item.is_object()) return refuse(where, "must be an object.");
    const std::string type = type_of(item);
    if (type == "message") {
      message(item, where);
    } else if (type == "reasoning") {
      std::string thought;
      if (const Ordered* content = find(item, "content"))
        thought = text(*content, where + ".content");
      if (const Ordered* summary = find(item, "summary"); thought.empty() && summary != nullptr)
        thought = text(*summary, where + ".summary");
      if (!thought.empty()) think(thought);
    } else if (type == "function_call") {
      if (const Ordered* arguments = find(item, "arguments");
          arguments != nullptr && !arguments->is_string())
        return refuse(where + ".arguments", "must be a string of JSON.");
      call(item, name_of(item), text_of(item, "arguments"), where);
    } else if (type == "custom_tool_call") {
      call(item, text_of(item, "name"), Ordered({{"input", text_of(item, "input")}}).dump(), where);
    } else if (type == "local_shell_call") {
      const Ordered* action = find(item, "action");
      call(item, "local_shell", action == nullptr ? "{}" : dump_exact(*action), where);
    } else if (type == "function_call_output" || type == "custom_tool_call_output" ||
               type == "local_shell_call_output") {
      flush();
      const Ordered* output = find(item, "output");
      add({{"role", "tool"},
           {"tool_call_id", text_of(item, "call_id")},
           {"content", output == nullptr ? std::string() : text(*output, where + ".output")}});
    } else if (type == "item_reference") {
      named_item(text_of(item, "id"), where);
    } else if (!type.ends_with("_call") && !type.ends_with("_call_output") &&
               !type.starts_with("mcp_")) {
      // Other items are about tools that OpenAI's own servers ran. They are left out, as those tools are.
      refuse(where,
             fmt::format("is of type '{}'; this server takes message, reasoning, calls and their "
                         "outputs.",
                         type),
             "unsupported_parameter");
    }
  }

  // A thought precedes what the assistant says or calls. After these it begins another message.
  void think(const std::string& thought) {
    if (!assistant()["content"].is_null() || assistant().contains("tool_calls")) flush();
    Ordered& message = assistant();
    message["reasoning_content"] = text_of(message, "reasoning_content") + thought;
  }

  // Reads an item of an earlier answer. No item may come twice, so that a short request can't become a long one.
  void named_item(const std::string& id, const std::string& where) {
    if (!named_.insert(id).second)
      return refuse(where, fmt::format("names the item '{}' a second time.", id), "invalid_value");
    const std::optional<std::string> kept = stored_items().find(id);
    named_bytes_ += kept ? kept->size() : 0;
    if (named_bytes_ > kMostNamedBytes) {
      return refuse(where,
                    "names one item too many: a request may name items of 1 MiB together; send the "
                    "items themselves.",
                    "invalid_value");
    }
    if (kept) return item(Ordered::parse(*kept), where);
    refuse(where,
           "refers to an item that this server does not have: it keeps the latest 16 MiB of its "
           "answers' "
           "items, until it ends, and none of a request with 'store' false. With 'store' false "
           "clients "
           "send the item itself (AI SDK: providerOptions.openai.store).",
           "invalid_value");
  }

  void call(const Ordered& item, std::string name, std::string arguments,
            const std::string& where) {
    check_name(name, where);
    assistant()["tool_calls"].push_back(
        {{"id", text_of(item, "call_id")},
         {"type", "function"},
         {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
  }

  void message(const Ordered& item, const std::string& where) {
    const Ordered* content = find(item, "content");
    if (content == nullptr) return refuse(where + ".content", "is missing.", "missing_parameter");
    std::string said = text(*content, where + ".content");
    const std::string role = text_of(item, "role");
    if (role != "assistant") {
      if (role != "user" && role != "system" && role != "developer") {
        return refuse(where + ".role", "must be system, developer, user or assistant.",
                      "unsupported_role");
      }
      flush();
      return add({{"role", role}, {"content", std::move(said)}});
    }
    if (!assistant()["content"].is_null()) flush();
    assistant()["content"] = std::move(said);
  }

  // Reads the tools. All but functions are left out, as those are that OpenAI's own servers run: Codex offers some.
  void tools() {
    const Ordered* list = find(body_, "tools");
    if (list == nullptr) return;
    Ordered tools = Ordered::array();
    add_tools(*list, "tools", "", tools);
    out_["tools"] = std::move(tools);
  }

  // `space`: the namespace of the tools; empty if they have none.
  void add_tools(const Ordered& list, const std::string& path, const std::string& space,
                 Ordered& tools) {
    if (!list.is_array()) return refuse(path, "must be an array.");
    for (std::size_t i = 0; i < list.size() && !error_; ++i) {
      const Ordered& tool = list[i];
      const std::string where = fmt::format("{}[{}]", path, i);
      if (!tool.is_object()) return refuse(where, "must be an object.");
      const std::string type = text_of(tool, "type");
      if (type == "namespace" && space.empty()) {
        const std::string name = text_of(tool, "name");
        const Ordered* inner = find(tool, "tools");
        if (name.empty()) return refuse(where + ".name", "must be a string that is not empty.");
        if (inner != nullptr) add_tools(*inner, where + ".tools", name, tools);
        continue;
      }
      if (type != "function") {
        left_out_.insert(type.substr(0, kMostTypeBytes));
        continue;
      }
      const std::string name = text_of(tool, "name");
      Ordered function = {{"name", space.empty() ? name : name_in_namespace(space, name)}};
      for (const char* member : {"description", "parameters", "strict"}) {
        if (const Ordered* value = find(tool, member)) function[member] = *value;
      }
      tool_paths_.emplace_back(fmt::format("tools[{}]", tools.size()), where);
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }

  // Returns the name of the function that a call or a choice names.
  static std::string name_of(const Ordered& item) {
    const std::string space = text_of(item, "namespace");
    std::string name = text_of(item, "name");
    return space.empty() || name.empty() ? name : name_in_namespace(space, name);
  }

  void options() {
    if (find(body_, "response_format") != nullptr)
      refuse("text.format", "takes the place of response_format here.", "unsupported_parameter");
    if (const Ordered* top = find(body_, "top_logprobs"); top != nullptr && *top != 0)
      unsupported("top_logprobs");
    include();
    if (const Ordered* most = find(body_, "max_output_tokens")) out_["max_tokens"] = *most;
    for (const char* name : {"reasoning", "text"}) {
      if (const Ordered* value = find(body_, name); value != nullptr && !value->is_object())
        return refuse(name, "must be an object.");
    }
    if (const Ordered* reasoning = find(body_, "reasoning")) {
      if (const Ordered* effort = find(*reasoning, "effort")) out_["reasoning_effort"] = *effort;
    }
    if (const Ordered* wanted = find(body_, "text")) {
      if (const Ordered* format = find(*wanted, "format")) response_format(*format);
      if (const Ordered* words = find(*wanted, "verbosity")) out_["verbosity"] = *words;
    }
    for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
      if (find(body_, name) != nullptr) {
        refuse(name,
               "is not supported: this server stores no responses; send the whole conversation "
               "as 'input'.",
               "unsupported_parameter");
      }
    }
    if (const Ordered* background = find(body_, "background");
        background != nullptr && *background == true)
      unsupported("background");
    tool_choice();
    pass_on(body_, kResponsesOwn, out_);
  }

  // A tool that OpenAI's servers run can't be chosen, so the model decides.
  void tool_choice() {
    const Ordered* choice = find(body_, "tool_choice");
    if (choice == nullptr) return;
    const std::string type = choice->is_object() ? text_of(*choice, "type") : std::string();
    if (type.empty() || type == "function" || type == "allowed_tools")
      out_["tool_choice"] = *choice;
    if (type == "function" && find(*choice, "namespace") != nullptr)
      out_["tool_choice"] = {{"type", type}, {"name", name_of(*choice)}};
    if (std::ranges::find(kClientTools, type) == std::end(kClientTools)) return;
    refuse("tool_choice",
           fmt::format("is a tool of type '{}', which this server leaves out; offer the tool as a "
                       "function.",
                       type),
           "unsupported_parameter");
  }

  // Refuses log-probabilities and ignores the other values: they ask for what OpenAI's own tools add
  // to answers, or for thoughts that only OpenAI's servers can read.
  void include() {
    const Ordered* include = find(body_, "include");
    if (include == nullptr) return;
    if (!include->is_array()) return refuse("include", "must be an array of strings.");
    for (const Ordered& each : *include) {
      if (is_text(each, "message.output_text.logprobs")) {
        refuse("include", "can't have 'message.output_text.logprobs' on this server.",
               "unsupported_parameter");
      }
    }
  }

  void response_format(const Ordered& format) {
    if (!format.is_object() || text_of(format, "type") != "json_schema") {
      out_["response_format"] = format;
      return;
    }
    Ordered schema = Ordered::object();
    for (const char* name : {"name", "schema", "strict"}) {
      if (const Ordered* value = find(format, name)) schema[name] = *value;
    }
    out_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  }

  const Ordered& body_;
  Ordered out_ = Ordered::object();
  Ordered assistant_ = Ordered::object();  // the message that is being put together; empty: none
  std::set<std::string> named_;            // items that the request has named by their ids
  std::size_t named_bytes_ = 0;            // of these items
  std::set<std::string> left_out_;         // types of tools
  std::vector<std::pair<std::string, std::string>> tool_paths_;  // in the chat, and the client's
};

}  // namespace

std::string name_in_namespace(std::string_view space, std::string_view name) {
  return fmt::format("{}{}{}", space, space.ends_with('_') ? "" : "__", name);
}

Parsed<GenerationRequest> parse_responses(std::string_view body) {
  const Parsed<Ordered> ordered = parse_ordered_object(body);
  if (auto* error = std::get_if<ApiError>(&ordered)) return *error;
  return ResponsesTranslation(std::get<Ordered>(ordered)).parse();
}

}  // namespace bulkhead::orchestrator

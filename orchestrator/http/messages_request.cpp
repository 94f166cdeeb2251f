// Turns requests of the Messages API into chats of OpenAI's form, so that one parser checks what both have in common.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"
#include "config/base/text.hpp"
#include "orchestrator/http/dialect.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;  // templates show a schema's members in their order

// Claude Code begins its system prompt with this and with a checksum that changes with each request. It has no
// meaning for a model, and with it no prompt would begin as the one before, so nothing could be reused.
constexpr std::string_view kBillingBlock = "x-anthropic-billing-header:";

// Members that this parser reads itself, and members that do not change an answer.
constexpr std::string_view kMessagesOwn[] = {"system",
                                             "messages",
                                             "tools",
                                             "tool_choice",
                                             "stop_sequences",
                                             "thinking",
                                             "mcp_servers",
                                             "container",
                                             "metadata",
                                             "output_format",
                                             "output_config",
                                             "service_tier",
                                             "context_management"};

// A tool that the client runs, and whose type stands for a schema that Anthropic's models have learnt. Other models
// are shown the schema.
struct KnownTool {
  std::string_view type;  // the type begins with this; a date follows
  const char* description;
  const char* schema;
};
constexpr KnownTool kKnownTools[] = {
    {"bash_", "Runs a command in a bash shell that stays open between calls.",
     R"({"type":"object","properties":{"command":{"type":"string","description":"The command to run."},)"
     R"("restart":{"type":"boolean","description":"Restarts the shell; no command is run."}}})"},
    {"text_editor_", "Shows, creates and edits text files.",
     R"({"type":"object","properties":{)"
     R"("command":{"type":"string","enum":["view","create","str_replace","insert"]},)"
     R"("path":{"type":"string","description":"The file, or a folder to view."},)"
     R"("view_range":{"type":"array","items":{"type":"integer"},"description":"view: first and last line; -1 is the end."},)"
     R"("file_text":{"type":"string","description":"create: the file's text."},)"
     R"("old_str":{"type":"string","description":"str_replace: text that stands in the file once."},)"
     R"("new_str":{"type":"string","description":"str_replace: the new text; insert, in older versions: the text."},)"
     R"("insert_line":{"type":"integer","description":"insert: the line behind which the text comes."},)"
     R"("insert_text":{"type":"string","description":"insert: the text."}},"required":["command","path"]})"},
};
// Types of further tools that the client runs. This server does not have their schemas.
constexpr std::string_view kUnknownClientTools[] = {"computer_", "memory_"};

class Translation : Translating {
 public:
  explicit Translation(const Ordered& body) : body_(body) {}

  Parsed<GenerationRequest> parse() {
    out_["messages"] = Ordered::array();
    system();
    messages();
    tools();
    tool_choice();
    options();
    if (error_) return *error_;
    Parsed<GenerationRequest> parsed = parse_chat(dump_exact(out_));
    auto* const request = std::get_if<GenerationRequest>(&parsed);
    if (request == nullptr) {
      const FieldName format[] = {{"response_format.json_schema", format_name_},
                                  {"response_format", format_name_}};
      return with_own_names(std::get<ApiError>(parsed), format);
    }
    request->warnings = warnings();
    ipc::Constraint& constraint = request->parameters.constraint;
    if (constraint.parameter == "response_format") constraint.parameter = format_name_;
    return parsed;
  }

 private:
  static bool is_about_thinking(const Ordered& edit) {
    return text_of(edit, "type").starts_with("clear_thinking_");
  }

  // Returns the members of `context_management.edits` that are JSON objects.
  std::vector<const Ordered*> edits() const {
    const Ordered* management = find(body_, "context_management");
    const Ordered* all =
        management != nullptr && management->is_object() ? find(*management, "edits") : nullptr;
    std::vector<const Ordered*> edits;
    if (all == nullptr || !all->is_array()) return edits;
    for (const Ordered& edit : *all)
      if (edit.is_object()) edits.push_back(&edit);
    return edits;
  }

  // Anthropic's servers cut old results and the like from long conversations if a client asks for it. This server cuts
  // nothing, and its templates say how much of the thinking they show.
  std::vector<std::string> warnings() const {
    for (const Ordered* edit : edits())
      if (!is_about_thinking(*edit)) return {"the edits of context_management are left out"};
    return {};
  }

  // Claude Code asks with each request that all thinking stays, so that a prompt begins as the one before.
  void keep_thinking() {
    for (const Ordered* edit : edits()) {
      const Ordered* keep = is_about_thinking(*edit) ? find(*edit, "keep") : nullptr;
      if (keep == nullptr) continue;
      if (*keep == "all" || (keep->is_object() && text_of(*keep, "type") == "all"))
        out_["preserve_thinking"] = true;
    }
  }

  // Returns the text of blocks of type text, joined by line breaks; a string is returned as it is. Claude Code's search
  // for tools answers with references: the model sees all tools anyway, so such a block is the tool's name.
  std::string text(const Ordered& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    std::string joined;
    if (!content.is_array()) refuse(where, "must be a string or an array of blocks.");
    for (std::size_t i = 0; content.is_array() && i < content.size(); ++i) {
      const Ordered& block = content[i];
      const std::string here = fmt::format("{}[{}]", where, i);
      const bool reference = block.is_object() && text_of(block, "type") == "tool_reference";
      const char* const name = reference ? "tool_name" : "text";
      if (!block.is_object() || (text_of(block, "type") != "text" && !reference) ||
          find(block, name) == nullptr || !block[name].is_string()) {
        refuse(here, "is not of type 'text', the only one that this server takes here.",
               "unsupported_parameter");
        break;
      }
      const std::string part = text_of(block, name);
      if (part.starts_with(kBillingBlock)) continue;
      if (!joined.empty()) joined += '\n';
      joined += part;
    }
    return joined;
  }

  void system() {
    const Ordered* system = find(body_, "system");
    if (system == nullptr) return;
    std::string joined = text(*system, "system");
    if (!joined.empty())
      out_["messages"].push_back({{"role", "system"}, {"content", std::move(joined)}});
  }

  void messages() {
    const Ordered* list = find(body_, "messages");
    if (list == nullptr) return refuse("messages", "is missing.", "missing_parameter");
    if (!list->is_array()) return refuse("messages", "must be an array.");
    for (std::size_t i = 0; i < list->size() && !error_; ++i) {
      const Ordered& message = (*list)[i];
      const std::string where = fmt::format("messages[{}]", i);
      if (!message.is_object()) return refuse(where, "must be an object.");
      const std::string role = text_of(message, "role");
      const Ordered* content = find(message, "content");
      if (content == nullptr) return refuse(where + ".content", "is missing.", "missing_parameter");
      if (role == "user") {
        user(*content, where + ".content");
      } else if (role == "assistant") {
        assistant(*content, where + ".content");
        if (i + 1 == list->size()) begin_answer(where + ".content");
      } else if (role == "system") {
        out_["messages"].push_back(
            {{"role", "system"}, {"content", text(*content, where + ".content")}});
      } else {
        return refuse(where + ".role", "must be user or assistant.", "unsupported_role");
      }
    }
  }

  // The last message is the answer's beginning. An empty one, which Anthropic allows there alone, begins nothing.
  void begin_answer(const std::string& where) {
    if (error_) return;
    const Ordered& last = out_["messages"].back();
    if (last.contains("tool_calls"))
      return refuse(where, "has a tool_use, and no tool_result follows it.", "invalid_value");
    if (!text_of(last, "content").empty()) {
      out_["continue_final_message"] = true;
    } else if (last.contains("reasoning_content")) {
      refuse(where, "ends with thinking; an answer can only be continued after text.",
             "invalid_value");
    } else {
      out_["messages"].erase(out_["messages"].size() - 1);
    }
  }

  // Returns a block's type; empty after a refusal.
  std::string type_of(const Ordered& block, const std::string& where) {
    std::string type = block.is_object() ? text_of(block, "type") : std::string();
    if (type.empty()) refuse(where, "must be an object with a 'type'.");
    return type;
  }

  // Templates can't mark a tool's result as failed, so the text of the result says that it failed.
  std::string result_of(const Ordered& block, const std::string& where) {
    const Ordered* content = find(block, "content");
    std::string said = content == nullptr ? std::string() : text(*content, where + ".content");
    const Ordered* failed = find(block, "is_error");
    if (failed != nullptr && !failed->is_boolean())
      refuse(where + ".is_error", "must be a boolean.");
    if (failed == nullptr || *failed != true) return said;
    const bool says_so =
        lower(said.substr(0, 5)) == "error" || said.starts_with("<tool_use_error>");
    if (said.empty()) return "Error";
    return says_so ? said : "Error: " + said;
  }

  // Each result of a tool becomes a message of its own.
  void user(const Ordered& content, const std::string& where) {
    if (!content.is_array()) {
      out_["messages"].push_back({{"role", "user"}, {"content", text(content, where)}});
      return;
    }
    Ordered parts = Ordered::array();
    const auto flush = [&] {
      if (!parts.empty())
        out_["messages"].push_back(
            {{"role", "user"}, {"content", std::exchange(parts, Ordered::array())}});
    };
    for (std::size_t i = 0; i < content.size() && !error_; ++i) {
      const Ordered& block = content[i];
      const std::string here = fmt::format("{}[{}]", where, i);
      const std::string type = type_of(block, here);
      if (type == "text") {
        const Ordered* said = find(block, "text");
        if (said == nullptr || !said->is_string())
          return refuse(here + ".text", "must be a string.");
        parts.push_back({{"type", "text"}, {"text", *said}});
      } else if (type == "tool_result") {
        flush();
        out_["messages"].push_back({{"role", "tool"},
                                    {"tool_call_id", text_of(block, "tool_use_id")},
                                    {"content", result_of(block, here)}});
      } else if (!type.empty()) {
        refuse(here,
               fmt::format("is of type '{}'; this server takes text and tool_result here.", type),
               "unsupported_parameter");
      }
    }
    if (content.empty()) parts.push_back({{"type", "text"}, {"text", ""}});
    flush();
  }

  void assistant(const Ordered& content, const std::string& where) {
    Ordered message = {{"role", "assistant"}, {"content", nullptr}};
    if (!content.is_array()) {
      message["content"] = text(content, where);
      out_["messages"].push_back(std::move(message));
      return;
    }
    std::string said, thought;
    Ordered calls = Ordered::array();
    for (std::size_t i = 0; i < content.size() && !error_; ++i) {
      const Ordered& block = content[i];
      const std::string here = fmt::format("{}[{}]", where, i);
      const std::string type = type_of(block, here);
      if (type == "text" || type == "thinking") {
        const Ordered* words = find(block, type.c_str());
        if (words == nullptr || !words->is_string())
          return refuse(fmt::format("{}.{}", here, type), "must be a string.");
        (type == "text" ? said : thought) += words->get<std::string>();
      } else if (type == "tool_use") {
        check_name(text_of(block, "name"), here);
        const Ordered* input = find(block, "input");
        calls.push_back({{"id", text_of(block, "id")},
                         {"type", "function"},
                         {"function",
                          {{"name", text_of(block, "name")},
                           {"arguments", input == nullptr ? "{}" : dump_exact(*input)}}}});
      } else if (type != "redacted_thinking" && !type.empty()) {
        refuse(here,
               fmt::format("is of type '{}'; this server takes text, thinking and tool_use here.",
                           type),
               "unsupported_parameter");
      }
    }
    if (!said.empty() || calls.empty()) message["content"] = std::move(said);
    if (!thought.empty()) message["reasoning_content"] = std::move(thought);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    out_["messages"].push_back(std::move(message));
  }

  void tools() {
    const Ordered* list = find(body_, "tools");
    if (list == nullptr) return;
    if (!list->is_array()) return refuse("tools", "must be an array.");
    Ordered tools = Ordered::array();
    for (std::size_t i = 0; i < list->size(); ++i) {
      const Ordered& tool = (*list)[i];
      const std::string where = fmt::format("tools[{}]", i);
      if (!tool.is_object()) return refuse(where, "must be an object.");
      Ordered function = {{"name", text_of(tool, "name")}};
      if (const std::string type = text_of(tool, "type"); !type.empty() && type != "custom") {
        if (!known_tool(type, function)) return refuse_tool(type, where);
      }
      if (const Ordered* about = find(tool, "description")) function["description"] = *about;
      if (const Ordered* schema = find(tool, "input_schema")) function["parameters"] = *schema;
      if (const Ordered* strict = find(tool, "strict")) function["strict"] = *strict;
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    out_["tools"] = std::move(tools);
  }

  static bool known_tool(const std::string& type, Ordered& function) {
    for (const KnownTool& known : kKnownTools) {
      if (!type.starts_with(known.type)) continue;
      function["description"] = known.description;
      function["parameters"] = Ordered::parse(known.schema);
      return true;
    }
    return false;
  }

  void refuse_tool(const std::string& type, const std::string& where) {
    const bool client = std::ranges::any_of(
        kUnknownClientTools, [&](std::string_view each) { return type.starts_with(each); });
    const char* const why = client ? "whose schema only Anthropic's models have; give the tool a "
                                     "description and an 'input_schema', and no type"
                                   : "which Anthropic's own servers run; this server takes tools "
                                     "of the client";
    refuse(where, fmt::format("is of type '{}', {}.", type, why), "unsupported_parameter");
  }

  void tool_choice() {
    const Ordered* choice = find(body_, "tool_choice");
    if (choice == nullptr) return;
    const std::string type = type_of(*choice, "tool_choice");
    if (type == "auto" || type == "none") {
      out_["tool_choice"] = type;
    } else if (type == "any") {
      out_["tool_choice"] = "required";
    } else if (type == "tool") {
      out_["tool_choice"] = {{"type", "function"}};
      if (const Ordered* name = find(*choice, "name")) out_["tool_choice"]["name"] = *name;
    } else if (!type.empty()) {
      return refuse("tool_choice.type", "must be auto, any, tool or none.",
                    "unsupported_parameter");
    }
    const Ordered* alone = find(*choice, "disable_parallel_tool_use");
    if (alone != nullptr && *alone == true) out_["parallel_tool_calls"] = false;
  }

  void options() {
    if (const Ordered* stop = find(body_, "stop_sequences")) out_["stop"] = *stop;
    if (const Ordered* thinking = find(body_, "thinking")) {
      const std::string type = type_of(*thinking, "thinking");
      if (!type.empty() && type != "enabled" && type != "disabled" && type != "adaptive")
        return refuse("thinking.type", "must be enabled, adaptive or disabled.", "invalid_value");
      out_["enable_thinking"] = type != "disabled";
      const Ordered* budget = find(*thinking, "budget_tokens");
      if (budget != nullptr && type == "enabled") out_["reasoning_budget"] = *budget;
    }
    keep_thinking();
    for (const char* name : {"mcp_servers", "container"}) {
      const Ordered* value = find(body_, name);
      if (value != nullptr && !value->empty())
        refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
    }
    output();
    pass_on(body_, kMessagesOwn, out_);
  }

  // Clients of the beta call the member `output_format`; later ones call it `output_config.format`.
  void output() {
    const Ordered* format = find(body_, "output_format");
    std::string& where = format_name_ = "output_format";
    if (const Ordered* config = find(body_, "output_config"); config != nullptr) {
      if (!config->is_object()) return refuse("output_config", "must be an object.");
      effort(*config);
      if (const Ordered* newer = find(*config, "format"); newer != nullptr) {
        format = newer;
        where = "output_config.format";
      }
    }
    if (format == nullptr) return;
    if (type_of(*format, where) != "json_schema")
      return refuse(where + ".type", "must be 'json_schema'.", "unsupported_parameter");
    const Ordered* schema = find(*format, "schema");
    if (schema == nullptr) return refuse(where + ".schema", "is missing.", "missing_parameter");
    out_["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
  }

  // Hands the effort to the template alone: only `thinking` says whether the model thinks.
  void effort(const Ordered& config) {
    const Ordered* wanted = find(config, "effort");
    if (wanted == nullptr) return;
    if (!wanted->is_string()) return refuse("output_config.effort", "must be a string.");
    out_["template_effort"] = *wanted;
  }

  const Ordered& body_;
  Ordered out_ = Ordered::object();
  std::string format_name_ = "output_config.format";  // the client's name for the answer's format
};

}  // namespace

Parsed<GenerationRequest> parse_messages(std::string_view body) {
  const Parsed<Ordered> ordered = parse_ordered_object(body);
  if (auto* error = std::get_if<ApiError>(&ordered)) return *error;
  return Translation(std::get<Ordered>(ordered)).parse();
}

}  // namespace bulkhead::orchestrator

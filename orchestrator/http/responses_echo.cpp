#include "orchestrator/http/responses_echo.hpp"

#include <initializer_list>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"
#include "config/base/json_members.hpp"

namespace bulkhead::orchestrator {

namespace {

using Ordered = nlohmann::ordered_json;

// Adds the members that the object lacks.
void add_missing(Ordered& object, std::initializer_list<std::pair<const char*, Ordered>> members) {
  for (const auto& [name, value] : members) {
    if (object.find(name) == object.end()) object[name] = value;
  }
}

bool has_type(const Ordered& value, std::string_view type) {
  if (!value.is_object()) return false;
  const auto found = value.find("type");
  return found != value.end() && found->is_string() && found->get_ref<const std::string&>() == type;
}

void complete_tool(Ordered& tool) {
  if (has_type(tool, "function"))
    add_missing(tool, {{"description", nullptr}, {"parameters", nullptr}, {"strict", false}});
  const auto inner = tool.is_object() ? tool.find("tools") : tool.end();
  if (inner == tool.end() || !inner->is_array()) return;
  for (Ordered& each : *inner)
    complete_tool(each);
}

std::string complete_tools(std::string_view text) {
  Ordered tools = parse_exact(text);
  for (Ordered& tool : tools)
    complete_tool(tool);
  return dump_exact(tools);
}

std::string complete_reasoning(std::string_view text) {
  Ordered reasoning = parse_exact(text);
  add_missing(reasoning, {{"effort", nullptr}, {"summary", nullptr}});
  return dump_exact(reasoning);
}

std::string complete_text(std::string_view text) {
  Ordered wanted = parse_exact(text);
  add_missing(wanted, {{"format", nullptr}});
  Ordered& format = wanted["format"];
  if (format.is_null()) format = {{"type", "text"}};
  if (has_type(format, "json_schema"))
    add_missing(format, {{"name", ""}, {"description", nullptr}, {"strict", false}});
  return dump_exact(wanted);
}

struct Echo {
  const char* name;
  const char* otherwise;  // null: the sampler that the answer has tells it
  // Adds what the member lacks; null: it is repeated as it is.
  std::string (*complete)(std::string_view text) = nullptr;
};
constexpr Echo kEchoes[] = {{"background", "false"},
                            {"frequency_penalty", "0"},
                            {"instructions", "null"},
                            {"max_output_tokens", "null"},
                            {"max_tool_calls", "null"},
                            {"metadata", "{}"},
                            {"parallel_tool_calls", "true"},
                            {"presence_penalty", "0"},
                            {"prompt_cache_key", "null"},
                            {"reasoning", "null", complete_reasoning},
                            {"safety_identifier", "null"},
                            {"temperature", nullptr},
                            {"text", R"({"format":{"type":"text"}})", complete_text},
                            {"tool_choice", "\"auto\""},
                            {"tools", "[]", complete_tools},
                            {"top_logprobs", "0"},
                            {"top_p", nullptr},
                            {"truncation", "\"disabled\""}};

}  // namespace

ResponsesEcho responses_echo(std::string_view body) {
  std::vector<JsonMember> members;
  for (const Echo& echo : kEchoes)
    members.push_back({echo.name});
  members.push_back({"store"});
  find_json_members(body, members);
  ResponsesEcho out;
  out.store = members.back().text != "false";
  for (std::size_t i = 0; i < std::size(kEchoes); ++i) {
    const auto& [name, otherwise, complete] = kEchoes[i];
    const std::string_view given = members[i].text;
    const bool missing = given.empty() || given == "null";
    if (missing && otherwise == nullptr) {
      out.open_samplers.emplace_back(name);
      continue;
    }
    if (!missing && std::string_view(name) == "tools") out.tools = given;
    out.members += fmt::format(",\"{}\":", name);
    if (missing) {
      out.members += otherwise;
    } else {
      out.members += complete == nullptr ? std::string(given) : complete(given);
    }
  }
  // Every request is served alike.
  out.members += R"(,"service_tier":"default")";
  // A line break would end an event's line. Valid JSON has none inside a string.
  std::erase_if(out.members, [](char c) { return c == '\n' || c == '\r'; });
  return out;
}

}  // namespace bulkhead::orchestrator

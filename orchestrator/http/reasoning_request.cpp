// Reads whether a chat's model reasons, for how long, and whether the client sees the reasoning. Each server has its
// own fields for this; this file translates all of them into one form.
#include <limits>
#include <optional>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

// Returns the member `name` if it is an object; otherwise null.
const json* object_at(const Fields& fields, const char* name) {
  const json* value = fields.get(name);
  return value != nullptr && value->is_object() ? value : nullptr;
}

const json* member(const json* object, const char* name) {
  if (object == nullptr) return nullptr;
  const auto found = object->find(name);
  return found == object->end() || found->is_null() ? nullptr : &*found;
}

// Reads the member of DeepSeek, Z.ai and Anthropic: {"type": "enabled" or "disabled", "budget_tokens": N}. Other
// types leave the choice to the model.
std::optional<bool> thinking_member(Fields& fields) {
  const json* thinking = fields.get("thinking");
  if (thinking == nullptr) return std::nullopt;
  if (thinking->is_boolean()) return thinking->get<bool>();
  if (!thinking->is_object()) {
    fields.wrong_type("thinking", "an object with a 'type'", *thinking);
    return std::nullopt;
  }
  const json* type = member(thinking, "type");
  if (type == nullptr || !type->is_string()) {
    fields.refuse("thinking.type", "must be a string, such as 'enabled'.", "invalid_type");
  } else if (is_text(*type, "enabled") || is_text(*type, "disabled")) {
    return is_text(*type, "enabled");
  }
  return std::nullopt;
}

// Reads whether the prompt keeps the reasoning of the history: Z.ai's {"clear_thinking": false} and Kimi's
// {"keep": "all"} inside of 'thinking', and DashScope's field beside it.
std::optional<bool> kept_reasoning(Fields& fields) {
  if (fields.get("preserve_thinking") != nullptr) return fields.boolean("preserve_thinking", false);
  const json* thinking = object_at(fields, "thinking");
  if (const json* clear = member(thinking, "clear_thinking")) {
    if (clear->is_boolean()) return !clear->get<bool>();
    fields.refuse("thinking.clear_thinking", "must be a boolean.", "invalid_type");
  } else if (const json* keep = member(thinking, "keep")) {
    if (is_text(*keep, "all")) return true;
    fields.refuse("thinking.keep", "must be 'all' or null.", "invalid_value");
  }
  return std::nullopt;
}

// Reads OpenRouter's member: {"effort": E, "max_tokens": N, "enabled": B, "exclude": B}.
void check_reasoning_member(Fields& fields) {
  const json* reasoning = fields.get("reasoning");
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) return fields.wrong_type("reasoning", "an object", *reasoning);
  Fields inner(*reasoning, "reasoning.");
  (void)inner.text("effort");
  (void)inner.boolean("enabled", true);
  (void)inner.boolean("exclude", false);
  if (!inner.ok()) {
    const ApiError& error = inner.error();
    fields.refuse(error.parameter, error.message.substr(error.parameter.size() + 3), error.code);
  }
}

}  // namespace

bool hides_reasoning(Fields& fields) {
  bool hidden = !fields.boolean("include_reasoning", true);
  if (const json* exclude = member(object_at(fields, "reasoning"), "exclude"))
    hidden |= *exclude == true;
  const std::string format = fields.text("reasoning_format");
  const bool known = format.empty() || format == "auto" || format == "deepseek" ||
                     format == "parsed" || format == "hidden";
  if (!known) {
    fields.refuse("reasoning_format",
                  "can be 'auto', 'deepseek', 'parsed' or 'hidden' on this server: reasoning never "
                  "appears in the content.",
                  "unsupported_parameter");
  }
  hidden |= format == "hidden";
  if (hidden && fields.boolean("resumable", false)) {
    fields.refuse("resumable", "can't be true for an answer without its reasoning.",
                  "invalid_combination");
  }
  return hidden;
}

std::string reasoning_members(Fields& fields) {
  const std::optional<bool> thinks = thinking_member(fields);
  const std::optional<bool> keeps = kept_reasoning(fields);
  check_reasoning_member(fields);
  if (!fields.ok()) return {};
  std::string members;
  if (keeps) members += fmt::format(",\"keep_reasoning\":{}", *keeps);
  const json* reasoning = object_at(fields, "reasoning");
  const json* enabled = member(reasoning, "enabled");
  if (fields.get("enable_thinking") == nullptr && (thinks || enabled != nullptr)) {
    const bool wanted = thinks ? *thinks : enabled->get<bool>();
    members += fmt::format(",\"enable_thinking\":{}", wanted);
  }
  if (const json* effort = member(reasoning, "effort");
      effort != nullptr && fields.get("reasoning_effort") == nullptr)
    members += ",\"reasoning_effort\":" + effort->dump();
  return members;
}

void read_reasoning_budget(Fields& fields, ipc::Submit& parameters) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto take = [&](std::int64_t budget) {
    parameters.reasoning_budget = static_cast<std::int32_t>(budget < 0 ? kMost : budget);
  };
  // The first name is Bulkhead's own; the others come from Qwen, vLLM and llama.cpp.
  for (const char* name :
       {"reasoning_budget", "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"}) {
    if (fields.get(name) != nullptr) return take(fields.integer(name, -1, -1, kMost));
  }
  struct Within {
    const char *object, *name;
  };
  constexpr Within kWithin[] = {{"thinking", "budget_tokens"}, {"reasoning", "max_tokens"}};
  for (const Within& each : kWithin) {
    const json* budget = member(object_at(fields, each.object), each.name);
    if (budget == nullptr) continue;
    const auto whole = budget->is_number() ? Fields::whole_number(*budget) : std::nullopt;
    if (whole && *whole >= -1 && *whole <= kMost) return take(*whole);
    return fields.refuse(fmt::format("{}.{}", each.object, each.name),
                         "must be a whole number of tokens.", "invalid_type");
  }
}

}  // namespace bulkhead::orchestrator

// Turns bytes into a checked GenerationRequest. openai_answer.cpp writes the answers.
#include <ctime>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"
#include "orchestrator/http/request_fields.hpp"
#include "orchestrator/router/router.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

void read_prompts(Fields& fields, std::vector<Prompt>& prompts) {
  const json* prompt = fields.get("prompt");
  if (prompt == nullptr) return fields.refuse("prompt", "is missing.", "missing_parameter");
  if (prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) {
    return fields.wrong_type("prompt", "a string, an array of token ids, or an array of either",
                             *prompt);
  }
  if (prompt->empty()) return fields.refuse("prompt", "is an empty array.", "out_of_range");
  if (prompt->front().is_number()) {
    std::vector<ipc::TokenId> ids;
    if (read_ids(fields, "prompt", *prompt, ids)) prompts.emplace_back(std::move(ids));
    return;
  }
  if (prompt->size() > kMaxPrompts)
    return fields.refuse("prompt", fmt::format("has more than {} prompts.", kMaxPrompts),
                         "out_of_range");
  for (const json& item : *prompt) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      if (item.empty())
        return fields.refuse("prompt", "has an empty array of token ids.", "out_of_range");
      std::vector<ipc::TokenId> ids;
      if (!read_ids(fields, "prompt", item, ids)) return;
      prompts.emplace_back(std::move(ids));
    } else {
      return fields.refuse("prompt",
                           "must be a string, an array of token ids, or an array of these.",
                           "invalid_type");
    }
  }
}

// If the request has a `suffix`, each prompt becomes a request to write the text between the prompt and the suffix.
void read_suffix(Fields& fields, std::vector<Prompt>& prompts) {
  const std::string suffix = fields.text("suffix");
  if (suffix.empty()) return;
  if (fields.boolean("echo", false))
    return fields.refuse("suffix", "and 'echo' can't both be given.", "invalid_combination");
  for (Prompt& prompt : prompts) {
    auto* text = std::get_if<std::string>(&prompt);
    if (text == nullptr)
      return fields.refuse("suffix", "needs a prompt that is text.", "invalid_combination");
    prompt = ipc::InfillPrompt{std::move(*text), suffix, {}};
  }
}

template <typename Read>
Parsed<GenerationRequest> parse_generation(std::string_view body, bool chat, Read read) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  GenerationRequest request;
  request.chat = chat;
  read(fields, request);
  read_common(fields, request);
  read_constraint(fields, body, request.parameters.constraint);
  refuse_beside_tool_choice(fields, request.parameters);
  refuse_least_tokens(fields, request.parameters);
  if (request.resumable && (!request.stream || request.prompts.size() * request.n != 1)) {
    fields.refuse("resumable", "needs 'stream': true, one prompt and one choice.",
                  "invalid_combination");
  }
  if (!fields.ok()) return fields.error();
  return request;
}

}  // namespace

Parsed<GenerationRequest> parse_completion(std::string_view body) {
  return parse_generation(body, false, [](Fields& fields, GenerationRequest& request) {
    read_prompts(fields, request.prompts);
    read_suffix(fields, request.prompts);
    request.parameters.logprobs = static_cast<std::int32_t>(fields.integer("logprobs", -1, 0, 20));
  });
}

Parsed<GenerationRequest> parse_chat(std::string_view body) {
  return parse_generation(body, true, [body](Fields& fields, GenerationRequest& request) {
    request.prompts.emplace_back(ipc::ChatPrompt{read_chat(fields, body)});
    read_tool_choice(fields, request.parameters);
    read_reasoning_budget(fields, request.parameters);
    request.hide_reasoning = hides_reasoning(fields);
    bool logprobs = fields.boolean("logprobs", false);
    std::int64_t top = fields.integer("top_logprobs", 0, 0, 20);
    if (!logprobs && top > 0)
      fields.refuse("top_logprobs", "needs 'logprobs': true.", "invalid_combination");
    request.parameters.logprobs = logprobs ? static_cast<std::int32_t>(top) : -1;
  });
}

std::span<const ipc::SamplingAdvice> advice_of(const ModelInfo& model) {
  const ipc::Ready* const ready = model.known();
  if (model.settings.sampling_defaults != config::SamplingDefaults::kFile || ready == nullptr)
    return {};
  return ready->sampling;
}

void resolve(GenerationRequest& request, const ModelInfo& model) {
  if (model.settings.sampling_defaults != config::SamplingDefaults::kFile)
    request.parameters.open_samplers = 0;
  if (!request.has_seed) request.parameters.sampling.seed = random_u64();
  for (Prompt& prompt : request.prompts) {
    if (auto* chat = std::get_if<ipc::ChatPrompt>(&prompt)) chat->local_seconds = local_seconds();
  }
}

std::uint64_t local_seconds() {
  const std::time_t now = std::time(nullptr);
  std::tm wall = {};
  ::localtime_r(&now, &wall);
  return static_cast<std::uint64_t>(::timegm(&wall));
}

Parsed<std::string> parse_model_name(std::string_view body) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  std::string name = fields.text("model");
  if (fields.ok() && name.empty())
    fields.refuse("model", "is missing: the model's name.", "missing_parameter");
  if (!fields.ok()) return fields.error();
  return name;
}

}  // namespace bulkhead::orchestrator

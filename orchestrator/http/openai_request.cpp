// Requests: from bytes to a checked GenerationRequest. What an answer looks like is in openai_answer.cpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

ApiError invalid(std::string message, std::string parameter = "", std::string code = "") {
  ApiError error;
  error.message = std::move(message);
  error.parameter = std::move(parameter);
  error.code = std::move(code);
  return error;
}

// Depth and number of values, counted on the bytes, before a parser spends stack or memory on them.
std::optional<ApiError> check_size(std::string_view body) {
  int depth = 0;
  std::size_t values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > kMaxJsonDepth) {
        return invalid(
            fmt::format("The body nests deeper than {} levels at byte {}.", kMaxJsonDepth, i), "",
            "json_too_deep");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
  }
  if (values > kMaxJsonValues) {
    return invalid(fmt::format("The body has more than {} values.", kMaxJsonValues), "",
                   "json_too_large");
  }
  return std::nullopt;
}

Parsed<json> parse_object(std::string_view body) {
  if (body.empty()) return invalid("The body is empty; send a JSON object.", "", "invalid_json");
  if (auto error = check_size(body)) return *error;
  try {
    json object = json::parse(body);
    if (!object.is_object()) {
      return invalid(
          fmt::format("The body is a JSON {}, but an object is needed.", object.type_name()), "",
          "invalid_json");
    }
    return object;
  } catch (const json::parse_error& error) {
    return invalid(fmt::format("The body is not valid JSON (UTF-8) at byte {}.", error.byte), "",
                   "invalid_json");
  } catch (const json::exception&) {
    return invalid("The body has a number that no double can hold.", "", "invalid_json");
  }
}

// Reads fields of one object; remembers the first error.
class Fields {
 public:
  Fields(const json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null when absent or null.
  const json* get(const char* name) const {
    auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }
  void refuse(const std::string& name, const std::string& what, const std::string& code = "") {
    if (!error_)
      error_ = invalid(fmt::format("'{}{}' {}", prefix_, name, what), prefix_ + name, code);
  }
  void wrong_type(const char* name, const char* wanted, const json& value) {
    refuse(name, fmt::format("must be {}, not {}.", wanted, value.type_name()), "invalid_type");
  }

  bool boolean(const char* name, bool fallback) {
    const json* value = get(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      wrong_type(name, "a boolean", *value);
      return fallback;
    }
    return value->get<bool>();
  }

  float number(const char* name, float fallback, double least, double most) {
    const json* value = get(name);
    if (value == nullptr) return fallback;
    if (!value->is_number()) {
      wrong_type(name, "a number", *value);
      return fallback;
    }
    double number = value->get<double>();
    if (!(number >= least && number <= most)) {
      refuse(name, fmt::format("must be between {} and {}.", least, most), "out_of_range");
      return fallback;
    }
    return static_cast<float>(number);
  }

  std::int64_t integer(const char* name, std::int64_t fallback, std::int64_t least,
                       std::int64_t most) {
    const json* value = get(name);
    if (value == nullptr) return fallback;
    if (!value->is_number()) {
      wrong_type(name, "an integer", *value);
      return fallback;
    }
    std::optional<std::int64_t> whole = whole_number(*value);
    if (!whole) {
      refuse(name, "must be an integer.", "invalid_type");
      return fallback;
    }
    if (*whole < least || *whole > most) {
      refuse(name, fmt::format("must be between {} and {}.", least, most), "out_of_range");
      return fallback;
    }
    return *whole;
  }

  std::string text(const char* name, std::string fallback = "") {
    const json* value = get(name);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      wrong_type(name, "a string", *value);
      return fallback;
    }
    return value->get<std::string>();
  }

  // 1 and 1.0 alike: some clients write every number as a float.
  static std::optional<std::int64_t> whole_number(const json& value) {
    if (value.is_number_unsigned()) {
      std::uint64_t number = value.get<std::uint64_t>();
      return static_cast<std::int64_t>(
          std::min<std::uint64_t>(number, std::numeric_limits<std::int64_t>::max()));
    }
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (!value.is_number_float()) return std::nullopt;
    double number = value.get<double>();
    if (std::trunc(number) != number || std::abs(number) > 9.0e15) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }

 private:
  const json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

bool is_empty(const json& value) {
  if (value.is_string())
    return value.get_ref<const std::string&>().empty();  // never empty() to nlohmann
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

// Token ids of an array; false after a refusal.
bool read_ids(Fields& fields, const char* name, const json& array, std::vector<ipc::TokenId>& ids) {
  ids.reserve(array.size());
  for (const json& item : array) {
    std::optional<std::int64_t> id = Fields::whole_number(item);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max()) {
      fields.refuse(name, fmt::format("has an element {} that is no token id.", ids.size()),
                    "invalid_type");
      return false;
    }
    ids.push_back(static_cast<ipc::TokenId>(*id));
  }
  return true;
}

void read_stop(Fields& fields, std::vector<std::string>& stop) {
  const json* value = fields.get("stop");
  if (value == nullptr) return;
  auto add = [&](const json& item) {
    if (!item.is_string())
      return fields.refuse("stop", "must be a string or an array of strings.", "invalid_type");
    std::string text = item.get<std::string>();
    if (text.empty())
      return fields.refuse("stop", "has an empty string, which would end every answer at once.",
                           "out_of_range");
    if (text.size() > kMaxStopBytes) {
      return fields.refuse("stop",
                           fmt::format("has a string of more than {} bytes.", kMaxStopBytes),
                           "out_of_range");
    }
    stop.push_back(std::move(text));
  };
  if (value->is_array()) {
    if (value->size() > kMaxStops)
      return fields.refuse("stop", fmt::format("has more than {} strings.", kMaxStops),
                           "out_of_range");
    for (const json& item : *value)
      add(item);
  } else {
    add(*value);
  }
}

// Samplers of other servers, each with the value at which it does nothing.
void refuse_samplers(Fields& fields) {
  struct Sampler {
    const char* name;
    double off;
  };
  static constexpr Sampler kSamplers[] = {
      {"typical_p", 1},
      {"typical", 1},
      {"tfs_z", 1},
      {"tfs", 1},
      {"top_a", 0},
      {"top_n_sigma", -1},
      {"mirostat", 0},
      {"mirostat_mode", 0},
      {"dry_multiplier", 0},
      {"xtc_probability", 0},
      {"dynatemp_range", 0},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"smoothing_factor", 0},
      {"no_repeat_ngram_size", 0},
      {"length_penalty", 1},
      {"encoder_repetition_penalty", 1},
  };
  for (const Sampler& sampler : kSamplers) {
    const json* value = fields.get(sampler.name);
    if (value == nullptr) continue;
    if (!value->is_number()) {
      fields.wrong_type(sampler.name, "a number", *value);
    } else if (value->get<double>() != sampler.off) {
      fields.refuse(sampler.name,
                    fmt::format("is not supported by this server; leave it out, or send {}, which "
                                "switches it off.",
                                sampler.off),
                    "unsupported_parameter");
    }
  }
  if (fields.boolean("use_beam_search", false)) {
    fields.refuse("use_beam_search", "is not supported by this server; leave it out.",
                  "unsupported_parameter");
  }
}

// Fields that would change the answer, and are not supported: silence would be a wrong answer.
void refuse_unsupported(Fields& fields) {
  auto unsupported = [&fields](const char* name) {
    fields.refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
  };
  // Tools that the answer must not use change nothing.
  const json* choice = fields.get("tool_choice");
  if (const json* tools = fields.get("tools");
      tools != nullptr && !is_empty(*tools) && (choice == nullptr || *choice != "none"))
    unsupported("tools");
  for (const char* name :
       {"functions", "logit_bias", "suffix", "bad_words", "stop_token_ids", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "grammar", "audio"}) {
    const json* value = fields.get(name);
    if (value != nullptr && !is_empty(*value)) unsupported(name);
  }
  for (const char* name : {"tool_choice", "function_call"}) {
    const json* value = fields.get(name);
    if (value != nullptr && *value != "none" && *value != "auto") unsupported(name);
  }
  refuse_samplers(fields);
  if (fields.boolean("echo", false)) unsupported("echo");
  if (const json* least = fields.get("min_tokens"); least != nullptr && *least != 0)
    unsupported("min_tokens");
  if (const json* format = fields.get("response_format")) {
    if (!format->is_object()) {
      fields.wrong_type("response_format", "an object", *format);
    } else if (!format->contains("type") || (*format)["type"] != "text") {
      fields.refuse("response_format", "can only be of type 'text' here.", "unsupported_parameter");
    }
  }
  if (const json* modalities = fields.get("modalities")) {
    if (*modalities != json::array({"text"})) unsupported("modalities");
  }
}

// OpenAI's newer name, its older one, llama.cpp's. -1, as absence, means as many as the context has
// room for: 0.
std::uint32_t read_max_tokens(Fields& fields) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::uint32_t chosen = 0;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const json* value = fields.get(name);
    if (value == nullptr) continue;
    if (Fields::whole_number(*value) == std::int64_t{-1}) {
      chosen = 0;
    } else {
      chosen = static_cast<std::uint32_t>(fields.integer(name, 0, 1, kMost));
    }
  }
  return chosen;
}

void read_common(Fields& fields, GenerationRequest& request) {
  request.model = fields.text("model");
  request.stream = fields.boolean("stream", false);
  if (const json* options = fields.get("stream_options")) {
    if (options->is_object()) {
      Fields inner(*options, "stream_options.");
      request.include_usage = inner.boolean("include_usage", false);
      if (!inner.ok())
        fields.refuse("stream_options", "must have a boolean 'include_usage'.", "invalid_type");
    } else {
      fields.wrong_type("stream_options", "an object", *options);
    }
  }
  request.return_token_ids = fields.boolean("return_token_ids", false);
  request.resumable = fields.boolean("resumable", false);
  request.n = static_cast<std::uint32_t>(fields.integer("n", 1, 1, kMaxChoices));
  if (fields.integer("best_of", request.n, 1, kMaxChoices) != request.n) {
    fields.refuse("best_of", "other than 'n' is not supported by this server.",
                  "unsupported_parameter");
  }

  ipc::Sampling& sampling = request.parameters.sampling;
  sampling.temperature = fields.number("temperature", 1.0F, 0, 2);
  // 0 is allowed by OpenAI; what it means is the most probable token alone.
  sampling.top_p = std::max(fields.number("top_p", 1.0F, 0, 1), 1e-6F);
  sampling.top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(
      fields.integer("top_k", 0, -1, std::numeric_limits<std::int32_t>::max()), 0));
  sampling.min_p = fields.number("min_p", 0.0F, 0, 1);
  // llama.cpp's name first.
  sampling.repetition_penalty = fields.number(
      "repetition_penalty", fields.number("repeat_penalty", 1.0F, 0.01, 10), 0.01, 10);
  if (sampling.repetition_penalty != 1.0F &&
      fields.integer("repeat_last_n", -1, -1, 1 << 30) != -1) {
    fields.refuse("repeat_last_n",
                  "other than -1 is not supported by this server: the penalty counts all tokens.",
                  "unsupported_parameter");
  }
  sampling.frequency_penalty = fields.number("frequency_penalty", 0.0F, -2, 2);
  sampling.presence_penalty = fields.number("presence_penalty", 0.0F, -2, 2);
  if (const json* seed = fields.get("seed")) {
    request.has_seed = true;
    if (seed->is_number_unsigned()) {
      sampling.seed = seed->get<std::uint64_t>();
    } else if (std::optional<std::int64_t> whole =
                   seed->is_number() ? Fields::whole_number(*seed) : std::nullopt) {
      sampling.seed = static_cast<std::uint64_t>(*whole);
    } else if (seed->is_number()) {
      fields.refuse("seed", "must be an integer of 64 bits.", "invalid_type");
    } else {
      fields.wrong_type("seed", "an integer", *seed);
    }
  }
  request.parameters.max_tokens = read_max_tokens(fields);
  request.parameters.ignore_eos = fields.boolean("ignore_eos", false);
  read_stop(fields, request.parameters.stop);
  refuse_unsupported(fields);
}

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

template <typename Read>
Parsed<GenerationRequest> parse_generation(std::string_view body, bool chat, Read read) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  GenerationRequest request;
  request.chat = chat;
  read(fields, request);
  read_common(fields, request);
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
    request.parameters.logprobs = static_cast<std::int32_t>(fields.integer("logprobs", -1, 0, 20));
  });
}

Parsed<GenerationRequest> parse_chat(std::string_view body) {
  return parse_generation(body, true, [](Fields& fields, GenerationRequest& request) {
    std::vector<ipc::ChatMessage> messages;
    read_messages(fields, messages);
    request.prompts.emplace_back(std::move(messages));
    bool logprobs = fields.boolean("logprobs", false);
    std::int64_t top = fields.integer("top_logprobs", 0, 0, 20);
    if (!logprobs && top > 0)
      fields.refuse("top_logprobs", "needs 'logprobs': true.", "invalid_combination");
    request.parameters.logprobs = logprobs ? static_cast<std::int32_t>(top) : -1;
  });
}

Parsed<TokenizeRequest> parse_tokenize(std::string_view body) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  TokenizeRequest request;
  request.model = fields.text("model");
  const char* name = fields.get("content") != nullptr ? "content"
                     : fields.get("text") != nullptr  ? "text"
                                                      : "prompt";
  if (fields.get(name) == nullptr)
    fields.refuse(name, "is missing: the text to tokenize.", "missing_parameter");
  request.message.text = fields.text(name);
  request.message.add_special =
      fields.boolean("add_special", fields.boolean("add_special_tokens", true));
  request.message.parse_special = fields.boolean("parse_special", true);
  if (!fields.ok()) return fields.error();
  return request;
}

Parsed<DetokenizeRequest> parse_detokenize(std::string_view body) {
  Parsed<json> object = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&object)) return *error;
  Fields fields(std::get<json>(object));
  DetokenizeRequest request;
  request.model = fields.text("model");
  const json* tokens = fields.get("tokens");
  if (tokens == nullptr) {
    fields.refuse("tokens", "is missing: the ids to turn into text.", "missing_parameter");
  } else if (!tokens->is_array()) {
    fields.wrong_type("tokens", "an array of token ids", *tokens);
  } else {
    read_ids(fields, "tokens", *tokens, request.message.tokens);
  }
  if (!fields.ok()) return fields.error();
  return request;
}

}  // namespace bulkhead::orchestrator

// Translates requests of Ollama's API into chats or completions of OpenAI's form, so that one
// parser checks what all protocols have in common.
#include <deque>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;  // templates show schemas in their order

// Members of `options` that change an answer; the parser of chats takes or refuses them. The other
// members say how Ollama loads a model (num_ctx, num_gpu, num_thread ...); this server's settings
// say that.
constexpr const char* kOptions[] = {"temperature",
                                    "top_k",
                                    "top_p",
                                    "min_p",
                                    "typical_p",
                                    "tfs_z",
                                    "seed",
                                    "repeat_penalty",
                                    "repeat_last_n",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "mirostat",
                                    "stop",
                                    "logit_bias",
                                    "dry_multiplier",
                                    "xtc_probability"};

// Ollama's defaults for fields that a request leaves out.
struct Default {
  const char* name;
  double value;
};
constexpr Default kDefaults[] = {{"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.9}};

// Members that this parser reads itself, and members that do not change an answer.
constexpr std::string_view kOllamaOwn[] = {"name",   "options", "think",      "format",   "raw",
                                           "system", "prompt",  "messages",   "template", "context",
                                           "images", "tools",   "keep_alive", "truncate", "shift"};

class OllamaTranslation : Translating {
 public:
  OllamaTranslation(OllamaCall call, const Ordered& body) : call_(call), body_(body) {}

  Parsed<OllamaRequest> parse() {
    const char* const content = call_ == OllamaCall::kChat ? "messages" : "prompt";
    const Ordered* given = find(body_, content);
    common();
    OllamaRequest request{.call = call_};
    if (given == nullptr || is_text(*given, "") || *given == Ordered::array()) {
      request.load_only = true;
      request.unload = keeps_for_no_time();
      if (const Ordered* model = find(out_, "model"); model != nullptr && !model->is_string())
        refuse("model", "must be a string.");
      request.wanted.model = text_of(out_, "model");
    } else if (call_ == OllamaCall::kChat) {
      messages(*given);
      tools();
    } else {
      prompt(*given);
    }
    if (error_) return *error_;
    if (request.load_only) return request;
    pass_on(body_, kOllamaOwn, out_);
    if (completes_) logprobs_of_completion();
    if (error_) return *error_;
    Parsed<GenerationRequest> wanted =
        completes_ ? parse_completion(dump_exact(out_)) : parse_chat(dump_exact(out_));
    if (auto* error = std::get_if<ApiError>(&wanted)) return std::move(*error);
    request.wanted = std::get<GenerationRequest>(std::move(wanted));
    request.wanted.parameters.open_samplers |= open_;
    return request;
  }

 private:
  // Says whether keep_alive is 0, "0", "0s" or "0m".
  bool keeps_for_no_time() const {
    const Ordered* value = find(body_, "keep_alive");
    if (value == nullptr) return false;
    if (value->is_number()) return *value == 0;
    return value->is_string() &&
           (is_text(*value, "0") || is_text(*value, "0s") || is_text(*value, "0m"));
  }

  void common() {
    if (const Ordered* model = find(body_, "model")) {
      out_["model"] = *model;
    } else if (const Ordered* name = find(body_, "name")) {
      out_["model"] = *name;
    }
    const Ordered* stream = find(body_, "stream");
    out_["stream"] = stream == nullptr ? Ordered(true) : *stream;
    options();
    think();
    format();
    if (const Ordered* raw = find(body_, "raw"); raw != nullptr && call_ == OllamaCall::kGenerate) {
      if (!raw->is_boolean()) return refuse("raw", "must be a boolean.");
      raw_ = raw->get<bool>();
    }
    for (const char* name : {"template", "context", "images"}) {
      const Ordered* value = find(body_, name);
      if (value == nullptr || *value == false || *value == 0 || is_text(*value, "") ||
          (value->is_structured() && value->empty()))
        continue;
      refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
    }
  }

  void options() {
    const Ordered* options = find(body_, "options");
    for (const Default& each : kDefaults) {
      out_[each.name] = each.value;
      const bool named = options != nullptr && options->is_object() && find(*options, each.name);
      if (!named) open_ |= open_sampler(each.name);
    }
    if (options == nullptr) return;
    if (!options->is_object()) return refuse("options", "must be an object.");
    for (const char* name : kOptions) {
      if (const Ordered* value = find(*options, name)) out_[name] = *value;
    }
    // Ollama draws a seed itself for -1, which is its default.
    if (out_.value("seed", Ordered()) == -1) out_.erase("seed");
    const Ordered* newline = find(*options, "penalize_newline");
    if (newline != nullptr && *newline != true) {
      return refuse("options.penalize_newline",
                    "can only be true on this server: penalties count all tokens.",
                    "unsupported_parameter");
    }
    // 0 or less asks for as many tokens as the context has room for.
    const Ordered* most = find(*options, "num_predict");
    if (most == nullptr) return;
    if (!most->is_number() && !most->is_binary())
      return refuse("options.num_predict", "must be a number.");
    if (*most > 0) out_["max_tokens"] = *most;
  }

  void think() {
    const Ordered* think = find(body_, "think");
    if (think == nullptr) return;
    if (think->is_boolean()) {
      out_["enable_thinking"] = *think;
    } else if (is_text(*think, "low") || is_text(*think, "medium") || is_text(*think, "high") ||
               is_text(*think, "max")) {
      out_["enable_thinking"] = true;
      out_["reasoning_effort"] = *think;
    } else {
      refuse("think", "must be a boolean, or 'low', 'medium', 'high' or 'max'.");
    }
  }

  void format() {
    const Ordered* format = find(body_, "format");
    if (format == nullptr || is_text(*format, "")) return;
    if (is_text(*format, "json")) {
      out_["response_format"] = {{"type", "json_object"}};
    } else if (format->is_object()) {
      out_["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *format}}}};
    } else {
      refuse("format", "must be 'json' or a JSON schema, which is an object.");
    }
  }

  // ---- /api/generate ----

  void prompt(const Ordered& prompt) {
    if (!prompt.is_string()) return refuse("prompt", "must be a string.");
    const std::string system = text_of(body_, "system");
    const bool fills = !text_of(body_, "suffix").empty();
    if (raw_ || fills) {
      if (!system.empty())
        refuse("system",
               fmt::format("and '{}' can't both be given: such a prompt is taken as it is.",
                           fills ? "suffix" : "raw"),
               "invalid_combination");
      out_["prompt"] = prompt;
      completes_ = true;
      return;
    }
    out_["messages"] = Ordered::array();
    if (!system.empty()) out_["messages"].push_back({{"role", "system"}, {"content", system}});
    out_["messages"].push_back({{"role", "user"}, {"content", prompt}});
  }

  // The parser of completions takes the number of the most probable tokens in place of a boolean.
  void logprobs_of_completion() {
    const Ordered* wanted = find(body_, "logprobs");
    if (wanted == nullptr) return;
    if (!wanted->is_boolean()) return refuse("logprobs", "must be a boolean.");
    const Ordered* top = find(body_, "top_logprobs");
    out_["logprobs"] = *wanted == false ? Ordered() : top == nullptr ? Ordered(0) : *top;
  }

  // ---- /api/chat ----

  void messages(const Ordered& list) {
    if (!list.is_array()) return refuse("messages", "must be an array.");
    out_["messages"] = Ordered::array();
    for (std::size_t i = 0; i < list.size() && !error_; ++i) {
      const Ordered& message = list[i];
      const std::string where = fmt::format("messages[{}]", i);
      if (!message.is_object()) return refuse(where, "must be an object.");
      if (const Ordered* images = find(message, "images"); images != nullptr && !images->empty()) {
        return refuse(where + ".images", "are not supported by this server; send text alone.",
                      "unsupported_parameter");
      }
      for (const char* name : {"role", "content", "thinking", "tool_name", "tool_call_id"}) {
        if (const Ordered* value = find(message, name); value != nullptr && !value->is_string())
          return refuse(fmt::format("{}.{}", where, name), "must be a string.");
      }
      const std::string role = text_of(message, "role");
      Ordered made = {{"role", role}, {"content", text_of(message, "content")}};
      if (role == "assistant") {
        assistant(message, where, made);
      } else if (role == "tool") {
        tool(message, made);
      }
      const bool open = i + 1 == list.size() && role == "assistant" && !made.contains("tool_calls");
      if (open && is_text(made["content"], "") && !made.contains("reasoning_content")) break;
      if (open) out_["continue_final_message"] = true;
      out_["messages"].push_back(std::move(made));
    }
  }

  // Ollama's calls have no ids, but some templates show ids. So the translator gives each call an
  // id, and the call's result refers to it.
  void assistant(const Ordered& message, const std::string& where, Ordered& made) {
    if (const std::string thought = text_of(message, "thinking"); !thought.empty())
      made["reasoning_content"] = thought;
    const Ordered* calls = find(message, "tool_calls");
    if (calls == nullptr || calls->empty()) return;
    if (!calls->is_array()) return refuse(where + ".tool_calls", "must be an array.");
    made["tool_calls"] = Ordered::array();
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const Ordered& call = (*calls)[i];
      const Ordered* function = call.is_object() ? find(call, "function") : nullptr;
      if (function == nullptr || !function->is_object()) {
        return refuse(fmt::format("{}.tool_calls[{}]", where, i),
                      "must be an object with a 'function'.");
      }
      std::string id = text_of(call, "id");
      if (id.empty()) id = fmt::format("call{:05}", calls_made_++);
      open_calls_.push_back({text_of(*function, "name"), id});
      Ordered kept = Ordered::object();
      for (const char* name : {"name", "arguments"}) {
        if (const Ordered* value = find(*function, name)) kept[name] = *value;
      }
      made["tool_calls"].push_back(
          {{"id", std::move(id)}, {"type", "function"}, {"function", std::move(kept)}});
    }
  }

  void tool(const Ordered& message, Ordered& made) {
    std::string name = text_of(message, "tool_name");
    if (name.empty()) name = text_of(message, "name");
    std::string id = text_of(message, "tool_call_id");
    for (auto open = open_calls_.begin(); open != open_calls_.end(); ++open) {
      if (!id.empty() ? open->id != id : !name.empty() && open->name != name) continue;
      id = open->id;
      if (name.empty()) name = open->name;
      open_calls_.erase(open);
      break;
    }
    if (!id.empty()) made["tool_call_id"] = id;
    if (!name.empty()) made["name"] = name;
  }

  void tools() {
    const Ordered* tools = find(body_, "tools");
    if (tools == nullptr) return;
    out_["tools"] = *tools;
    if (!tools->is_array()) return;
    for (Ordered& tool : out_["tools"]) {
      // Ollama doesn't look at the type.
      if (tool.is_object() && find(tool, "type") == nullptr) tool["type"] = "function";
    }
  }

  struct OpenCall {
    std::string name, id;
  };

  const OllamaCall call_;
  const Ordered& body_;
  Ordered out_ = Ordered::object();
  bool raw_ = false;
  std::uint32_t open_ = 0;           // samplers that have Ollama's default
  bool completes_ = false;           // the prompt goes to the model without its template
  std::deque<OpenCall> open_calls_;  // that have no result yet, in their order
  std::size_t calls_made_ = 0;       // ids
};

Parsed<OllamaRequest> parse_ollama(OllamaCall call, std::string_view body) {
  const Parsed<Ordered> ordered = parse_ordered_object(body);
  if (auto* error = std::get_if<ApiError>(&ordered)) return *error;
  return OllamaTranslation(call, std::get<Ordered>(ordered)).parse();
}

}  // namespace

Parsed<OllamaRequest> parse_ollama_chat(std::string_view body) {
  return parse_ollama(OllamaCall::kChat, body);
}
Parsed<OllamaRequest> parse_ollama_generate(std::string_view body) {
  return parse_ollama(OllamaCall::kGenerate, body);
}

Parsed<std::string> parse_ollama_name(std::string_view body) {
  Parsed<json> checked = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&checked)) return *error;
  Fields fields(std::get<json>(checked));
  std::string name = fields.text("model", fields.text("name"));
  if (!fields.ok()) return fields.error();
  return name;
}

}  // namespace bulkhead::orchestrator

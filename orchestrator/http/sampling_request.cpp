// Reads the fields that completions and chats have in common: sampling, lengths, stops, and those fields that would
// change the answer and that this server refuses by name.
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

constexpr float kNever =
    -1e30F;  // no logit is large enough to give a token with this bias a chance

// Reads stop texts, and stop tokens, which end the answer as the end-of-text token does.
void read_stop(Fields& fields, ipc::Submit& parameters) {
  const json* value = fields.get("stop");
  if (value == nullptr) return;
  std::size_t bytes = 0;
  auto add = [&](const json& item) {
    const auto id = item.is_number() ? Fields::whole_number(item) : std::nullopt;
    if (id && *id >= 0 && *id <= std::numeric_limits<std::int32_t>::max())
      return parameters.stop_tokens.push_back(static_cast<ipc::TokenId>(*id));
    if (!item.is_string())
      return fields.refuse("stop", "must be a string, a token id, or an array of these.",
                           "invalid_type");
    std::string text = item.get<std::string>();
    if (text.empty())
      return fields.refuse("stop", "has an empty string, which would end every answer at once.",
                           "out_of_range");
    if (text.size() > kMaxStopBytes) {
      return fields.refuse("stop",
                           fmt::format("has a string of more than {} bytes.", kMaxStopBytes),
                           "out_of_range");
    }
    bytes += text.size();
    if (bytes > kMaxStopsBytes) {
      return fields.refuse("stop",
                           fmt::format("has strings of more than {} bytes.", kMaxStopsBytes),
                           "out_of_range");
    }
    parameters.stop.push_back(std::move(text));
  };
  if (value->is_array()) {
    if (value->size() > kMaxStops)
      return fields.refuse("stop", fmt::format("has more than {} elements.", kMaxStops),
                           "out_of_range");
    for (const json& item : *value)
      add(item);
  } else {
    add(*value);
  }
}

// Reads vLLM's field of token ids.
void read_stop_ids(Fields& fields, std::vector<ipc::TokenId>& stop_tokens) {
  const json* value = fields.get("stop_token_ids");
  if (value == nullptr) return;
  if (!value->is_array())
    return fields.wrong_type("stop_token_ids", "an array of token ids", *value);
  if (value->size() + stop_tokens.size() > kMaxStops)
    return fields.refuse("stop_token_ids", fmt::format("has more than {} ids.", kMaxStops),
                         "out_of_range");
  read_ids(fields, "stop_token_ids", *value, stop_tokens);
}

// Reads {"id": bias}, OpenAI's form, or [[id, bias]], llama.cpp's form, in which false forbids the token.
void read_logit_bias(Fields& fields, std::vector<ipc::TokenBias>& out) {
  const char* const name = "logit_bias";
  const json* value = fields.get(name);
  if (value == nullptr) return;
  if (!value->is_object() && !value->is_array())
    return fields.wrong_type(name, "an object of token ids and numbers", *value);
  if (value->size() > kMaxBiases)
    return fields.refuse(name, fmt::format("has more than {} entries.", kMaxBiases),
                         "out_of_range");
  std::map<ipc::TokenId, float> biases;
  const auto add = [&](std::string_view id, const json& bias) {
    ipc::TokenId token = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    if (error != std::errc() || end != id.data() + id.size())
      return fields.refuse(name, "has a key that is not a token id.", "invalid_type");
    const bool never = bias == false;
    if (!never && !bias.is_number())
      return fields.refuse(name, "has a value that is not a number.", "invalid_type");
    const double number = never ? -100 : bias.get<double>();
    if (!(number >= -100 && number <= 100))
      return fields.refuse(name, "has a value that is not between -100 and 100.", "out_of_range");
    biases[token] = never ? kNever : static_cast<float>(number);
  };
  if (value->is_object()) {
    for (const auto& [id, bias] : value->items())
      add(id, bias);
  } else {
    for (const json& pair : *value) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number())
        return fields.refuse(name, "has an element that is not a pair of token id and number.",
                             "invalid_type");
      add(pair[0].dump(), pair[1]);
    }
  }
  for (const auto& [token, bias] : biases)
    out.push_back({token, bias});
}

// Refuses samplers of other servers, unless a field has a value at which its sampler does nothing.
void refuse_samplers(Fields& fields) {
  enum class Off { kAlone, kOrLess, kOrMore };  // besides the value itself
  struct Sampler {
    const char* name;
    double off;
    Off others = Off::kAlone;

    bool is_off(double value) const {
      return value == off || (others == Off::kOrLess && value < off) ||
             (others == Off::kOrMore && value > off);
    }
  };
  static constexpr Sampler kSamplers[] = {
      {"typical_p", 1, Off::kOrMore},
      {"typical", 1, Off::kOrMore},
      {"tfs_z", 1, Off::kOrMore},
      {"tfs", 1, Off::kOrMore},
      {"top_a", 0, Off::kOrLess},
      {"top_n_sigma", 0, Off::kOrLess},
      {"mirostat", 0},
      {"mirostat_mode", 0},
      {"dry_multiplier", 0},
      {"xtc_probability", 0, Off::kOrLess},
      {"dynatemp_range", 0, Off::kOrLess},
      {"epsilon_cutoff", 0, Off::kOrLess},
      {"eta_cutoff", 0, Off::kOrLess},
      {"smoothing_factor", 0},
      {"no_repeat_ngram_size", 0, Off::kOrLess},
      {"length_penalty", 1},
      {"encoder_repetition_penalty", 1},
      {"min_keep", 0, Off::kOrLess},
      {"nsigma", 0, Off::kOrLess},
      {"num_beams", 1},
      {"n_indent", 0, Off::kOrLess},
      {"n_probs", 0, Off::kOrLess},
      {"t_max_predict_ms", 0, Off::kOrLess},
      {"penalty_alpha", 0},
      {"guidance_scale", 1},
      {"cfg_scale", 1},
      {"skew", 0},
  };
  for (const Sampler& sampler : kSamplers) {
    const json* value = fields.get(sampler.name);
    if (value == nullptr) continue;
    if (!value->is_number()) {
      fields.wrong_type(sampler.name, "a number", *value);
    } else if (!sampler.is_off(value->get<double>())) {
      fields.refuse(sampler.name,
                    fmt::format("is not supported by this server; leave it out, or send {}, which "
                                "switches it off.",
                                sampler.off),
                    "unsupported_parameter");
    }
  }
  // llama.cpp's sampler towards a probability is off below 0.
  if (fields.number("adaptive_target", -1, -1e9, 1e9) >= 0) {
    fields.refuse("adaptive_target", "is not supported by this server; leave it out, or send -1.",
                  "unsupported_parameter");
  }
  if (fields.boolean("use_beam_search", false)) {
    fields.refuse("use_beam_search", "is not supported by this server; leave it out.",
                  "unsupported_parameter");
  }
}

// Refuses limits on how many tokens a penalty counts, as llama.cpp and text-generation-webui name them. In
// text-generation-webui the range is for all penalties, and 0 is unlimited. Here a penalty counts all tokens.
void refuse_penalty_ranges(Fields& fields, const ipc::Sampling& sampling) {
  const bool repeats = sampling.repetition_penalty != 1.0F;
  const bool any = repeats || sampling.frequency_penalty != 0 || sampling.presence_penalty != 0;
  if (repeats && fields.integer("repeat_last_n", -1, -1, 1 << 30) != -1) {
    fields.refuse("repeat_last_n",
                  "other than -1 is not supported by this server: the penalty counts all tokens.",
                  "unsupported_parameter");
  }
  if (any && fields.integer("repetition_penalty_range", 0, -1, 1 << 30) > 0) {
    fields.refuse("repetition_penalty_range",
                  "other than 0 is not supported by this server: penalties count all tokens.",
                  "unsupported_parameter");
  }
}

// Refuses switches of other servers, unless they have the value that describes this server.
void refuse_switches(Fields& fields) {
  struct Switch {
    const char* name;
    bool always;
  };
  static constexpr Switch kSwitches[] = {
      {"add_bos_token", true},        {"add_special_tokens", true},
      {"ban_eos_token", false},       {"temperature_last", false},
      {"dynamic_temperature", false}, {"include_stop_str_in_output", false},
      {"no_stop_trim", false},        {"post_sampling_probs", false},
      {"separate_reasoning", true},   {"skip_special_tokens", true},
      {"enable_search", false},       {"grammar_lazy", false},
      {"safe_prompt", false},         {"token_healing", false},
  };
  for (const Switch& each : kSwitches) {
    if (fields.boolean(each.name, each.always) == each.always) continue;
    fields.refuse(each.name, fmt::format("can only be {} on this server.", each.always),
                  "unsupported_parameter");
  }
}

// Refuses fields that would change the answer and are not supported. To ignore them would give a wrong answer.
void refuse_unsupported(Fields& fields, bool chat) {
  auto unsupported = [&fields](const char* name) {
    fields.refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
  };
  // Tools that the answer must not use change nothing.
  const json* choice = fields.get("tool_choice");
  if (const json* tools = fields.get("tools"); !chat && tools != nullptr && !is_empty(*tools) &&
                                               (choice == nullptr || !is_text(*choice, "none")))
    unsupported("tools");
  if (const json* functions = fields.get("functions");
      functions != nullptr && !is_empty(*functions))
    fields.refuse("functions", "is not supported by this server; write them as 'tools'.",
                  "unsupported_parameter");
  if (const json* suffix = fields.get("suffix"); chat && suffix != nullptr && !is_empty(*suffix))
    unsupported("suffix");
  for (const char* name : {"bad_words",
                           "banned_strings",
                           "banned_tokens",
                           "audio",
                           "allowed_token_ids",
                           "chat_template",
                           "custom_logit_processor",
                           "custom_token_bans",
                           "image_data",
                           "logits_processors",
                           "lora",
                           "lora_path",
                           "negative_prompt",
                           "plugins",
                           "prompt_embeds",
                           "prompt_logprobs",
                           "repetition_detection",
                           "response_prefix",
                           "sampler_order",
                           "sampler_priority",
                           "samplers",
                           "search_parameters",
                           "stop_regex",
                           "structural_tag",
                           "truncate_prompt_tokens",
                           "web_search_options"}) {
    const json* value = fields.get(name);
    if (value != nullptr && !is_empty(*value)) unsupported(name);
  }
  for (const char* name : {"tool_choice", "function_call"}) {
    const json* value = fields.get(name);
    const bool chosen = chat && std::string_view(name) == "tool_choice";  // read_tool_choice()
    if (value != nullptr && !chosen && !is_text(*value, "none") && !is_text(*value, "auto"))
      fields.refuse(name, "must be 'auto' or 'none' here.", "unsupported_parameter");
  }
  refuse_samplers(fields);
  refuse_switches(fields);
  if (chat && fields.boolean("echo", false)) unsupported("echo");
  if (const json* modalities = fields.get("modalities")) {
    if (*modalities != json::array({"text"})) unsupported("modalities");
  }
  if (const json* words = fields.get("verbosity"); words != nullptr && !is_text(*words, "medium")) {
    fields.refuse(
        "verbosity",
        "can only be 'medium' on this server: say in the prompt how long answers are to be.",
        "unsupported_parameter");
  }
}

// Reads OpenAI's newer name, its older one, or llama.cpp's. Absence and -1 mean as many tokens as
// the context has room for (0). `prompt_only` means no token at all, which makes sense if the
// answer echoes the prompt.
std::uint32_t read_max_tokens(Fields& fields, bool echo, bool& prompt_only) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::uint32_t chosen = 0;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const json* value = fields.get(name);
    if (value == nullptr) continue;
    if (Fields::whole_number(*value) == std::int64_t{-1}) {
      chosen = 0;
      prompt_only = false;
    } else {
      chosen = static_cast<std::uint32_t>(fields.integer(name, 0, echo ? 0 : 1, kMost));
      prompt_only = chosen == 0;
    }
  }
  return chosen;
}

// Returns the samplers that the request does not name.
std::uint32_t open_samplers(Fields& fields) {
  std::uint32_t open = 0;
  for (const ipc::OpenSampler& each : ipc::kOpenSamplers) {
    const std::string_view name = each.name;
    const bool other_name =
        (name == "temperature" && fields.get("do_sample") != nullptr) ||
        (name == "repetition_penalty" && fields.get("repeat_penalty") != nullptr);
    if (!other_name && fields.get(each.name) == nullptr) open |= each.bit;
  }
  return open;
}

// Reads OpenAI's name, or else Mistral's.
void read_seed(Fields& fields, GenerationRequest& request) {
  const char* const name = fields.get("seed") != nullptr ? "seed" : "random_seed";
  const json* seed = fields.get(name);
  if (seed == nullptr) return;
  request.has_seed = true;
  std::uint64_t& out = request.parameters.sampling.seed;
  if (!seed->is_number()) return fields.wrong_type(name, "an integer", *seed);
  if (seed->is_number_unsigned()) {
    out = seed->get<std::uint64_t>();
  } else if (const std::optional<std::int64_t> whole = Fields::whole_number(*seed)) {
    out = static_cast<std::uint64_t>(*whole);
  } else {
    fields.refuse(name, "must be an integer of 64 bits.", "invalid_type");
  }
}

}  // namespace

std::uint32_t open_sampler(std::string_view name) {
  const auto* const found = std::ranges::find(ipc::kOpenSamplers, name, &ipc::OpenSampler::name);
  return found == std::end(ipc::kOpenSamplers) ? 0 : found->bit;
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

  ipc::Sampling& sampling = request.parameters.sampling;  // its values are OpenAI's defaults
  sampling.temperature = fields.number("temperature", sampling.temperature, 0, 2);
  // the name that transformers has for temperature 0
  if (!fields.boolean("do_sample", true)) sampling.temperature = 0;
  // OpenAI allows 0, which means the most probable token alone.
  sampling.top_p = std::max(fields.number("top_p", sampling.top_p, 0, 1), 1e-6F);
  sampling.top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(
      fields.integer("top_k", sampling.top_k, -1, std::numeric_limits<std::int32_t>::max()), 0));
  sampling.min_p = fields.number("min_p", sampling.min_p, 0, 1);
  // llama.cpp's name comes first.
  sampling.repetition_penalty = fields.number(
      "repetition_penalty", fields.number("repeat_penalty", sampling.repetition_penalty, 0.01, 10),
      0.01, 10);
  sampling.frequency_penalty =
      fields.number("frequency_penalty", sampling.frequency_penalty, -2, 2);
  sampling.presence_penalty = fields.number("presence_penalty", sampling.presence_penalty, -2, 2);
  refuse_penalty_ranges(fields, sampling);
  request.parameters.open_samplers = open_samplers(fields);
  read_seed(fields, request);
  request.echo = fields.boolean("echo", false);
  if (request.echo && request.resumable)
    fields.refuse("echo", "and 'resumable' can't both be true.", "invalid_combination");
  request.parameters.max_tokens =
      read_max_tokens(fields, request.echo, request.parameters.prompt_only);
  request.parameters.one_call = !fields.boolean("parallel_tool_calls", true);
  request.parameters.ignore_eos = fields.boolean("ignore_eos", false);
  read_stop(fields, request.parameters);
  read_stop_ids(fields, request.parameters.stop_tokens);
  read_logit_bias(fields, request.parameters.logit_bias);
  refuse_unsupported(fields, request.chat);
}

void refuse_least_tokens(Fields& fields, const ipc::Submit& parameters) {
  const bool endless = parameters.ignore_eos && parameters.stop.empty() &&
                       parameters.stop_tokens.empty() &&
                       parameters.constraint.kind == ipc::ConstraintKind::kNone &&
                       parameters.tool_choice == ipc::ToolChoice::kAuto;
  const std::int64_t most = parameters.max_tokens == 0 ? std::numeric_limits<std::int32_t>::max()
                                                       : std::int64_t{parameters.max_tokens};
  for (const char* name : {"min_tokens", "min_new_tokens"}) {
    const json* value = fields.get(name);
    if (value == nullptr) continue;
    const auto least = value->is_number() ? Fields::whole_number(*value) : std::nullopt;
    if (least && (*least <= 0 || (endless && *least <= most))) continue;
    fields.refuse(name, "is not supported by this server; leave it out.", "unsupported_parameter");
  }
}

}  // namespace bulkhead::orchestrator

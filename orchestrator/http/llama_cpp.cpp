#include "orchestrator/http/llama_cpp.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/exact_json.hpp"
#include "config/base/json_members.hpp"
#include "config/base/random.hpp"
#include "ipc/utf8.hpp"
#include "orchestrator/http/request_fields.hpp"

namespace bulkhead::orchestrator {

using nlohmann::json;

namespace {

constexpr std::size_t kMostInfillFiles = 64;
constexpr std::size_t kMostResponseFields = 64;

struct LlamaDefault {
  const char* name;
  double value;
};
constexpr LlamaDefault kLlamaDefaults[] = {
    {"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}};

// llama.cpp's samplers in its usual order, with the field that sets each one and the value that switches it off. Those
// without a field do nothing here, because their own fields are refused unless they are off.
struct LlamaSampler {
  const char* name;
  const char* field;
  double off;
};
constexpr LlamaSampler kLlamaSamplers[] = {
    {"penalties", nullptr, 0},   {"dry", nullptr, 0},
    {"top_n_sigma", nullptr, 0}, {"top_k", "top_k", 0},
    {"typ_p", nullptr, 0},       {"typical_p", nullptr, 0},
    {"top_p", "top_p", 1},       {"min_p", "min_p", 0},
    {"xtc", nullptr, 0},         {"temperature", "temperature", 1}};
constexpr const char* kLlamaPenalties[] = {"repeat_penalty", "repetition_penalty",
                                           "frequency_penalty", "presence_penalty"};

// Reads `samplers`, and switches off each sampler that the list leaves out. Refuses a list that is not in llama.cpp's
// usual order. A request to /infill may list the sampler `infill`. This server lacks it, and a warning says so to the
// client.
void apply_sampler_list(Fields& fields, nlohmann::ordered_json& request, bool infill,
                        std::vector<std::string>& warnings) {
  const json* given = fields.get("samplers");
  if (given == nullptr || given->empty()) return;
  if (!given->is_array()) return fields.wrong_type("samplers", "an array", *given);
  bool listed[std::size(kLlamaSamplers)] = {};
  std::size_t next = 0;
  for (const json& item : *given) {
    if (!item.is_string()) return fields.refuse("samplers", "must list strings.", "invalid_type");
    const std::string& name = item.get_ref<const std::string&>();
    if (infill && name == "infill") {
      warnings.emplace_back("the sampler infill is left out");
      continue;
    }
    const auto* const known =
        std::ranges::find_if(kLlamaSamplers, [&](const auto& each) { return name == each.name; });
    if (known == std::end(kLlamaSamplers)) {
      return fields.refuse(
          "samplers",
          "names one that this server lacks; it has penalties, top_k, top_p, min_p, temperature.",
          "unsupported_parameter");
    }
    const auto place = static_cast<std::size_t>(known - std::begin(kLlamaSamplers));
    if (place < next) {
      return fields.refuse("samplers",
                           "can only be in the order penalties, top_k, top_p, min_p, temperature.",
                           "unsupported_parameter");
    }
    next = place + 1;
    listed[place] = true;
  }
  for (std::size_t i = 0; i < std::size(kLlamaSamplers); ++i) {
    if (!listed[i] && kLlamaSamplers[i].field != nullptr)
      request[kLlamaSamplers[i].field] = kLlamaSamplers[i].off;
  }
  if (!listed[0]) {
    for (const char* name : kLlamaPenalties)
      request.erase(name);
  }
  request.erase("samplers");
}

// Returns whether the request generates nothing (`n_predict: 0`). An editor asks for that so that a later request finds
// the prompt in the prefix cache.
bool only_reads(Fields& fields) {
  const json* most = fields.get("n_predict");
  return most != nullptr && Fields::whole_number(*most) == std::int64_t{0};
}

// Reads `input_extra`: [{"filename": NAME, "text": TEXT}, ...]
void read_infill_files(Fields& fields, std::vector<ipc::InfillFile>& files) {
  const json* extra = fields.get("input_extra");
  if (extra == nullptr) return;
  if (!extra->is_array()) return fields.wrong_type("input_extra", "an array", *extra);
  if (extra->size() > kMostInfillFiles) {
    return fields.refuse("input_extra", fmt::format("has more than {} files.", kMostInfillFiles),
                         "out_of_range");
  }
  for (std::size_t i = 0; i < extra->size(); ++i) {
    const json& file = (*extra)[i];
    const std::string where = fmt::format("input_extra[{}]", i);
    if (!file.is_object()) return fields.refuse(where, "must be an object.", "invalid_type");
    const auto name = file.find("filename"), text = file.find("text");
    if (text == file.end() || !text->is_string())
      return fields.refuse(where + ".text", "must be a string.", "invalid_type");
    const bool named = name != file.end() && !name->is_null();
    if (named && !name->is_string())
      return fields.refuse(where + ".filename", "must be a string.", "invalid_type");
    files.push_back({named ? name->get<std::string>() : "tmp", text->get<std::string>()});
  }
}

constexpr std::int64_t kMostProbabilities = 20;

// Appends the part of a token that is whole characters, and its bytes.
void append_token(std::string& out, ipc::TokenId id, std::string_view bytes) {
  fmt::format_to(std::back_inserter(out), "{{\"id\":{},\"token\":", id);
  append_json_string(out, bytes.substr(0, ipc::valid_utf8_prefix(bytes)));
  out += ",\"bytes\":[";
  for (std::size_t i = 0; i < bytes.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",",
                   static_cast<unsigned char>(bytes[i]));
  out += ']';
}

// JSON has no infinities and no NaN; llama.cpp writes the lowest float for "impossible".
void append_logprob_member(std::string& out, float value) {
  fmt::format_to(std::back_inserter(out), ",\"logprob\":{}",
                 std::isfinite(value) ? value : std::numeric_limits<float>::lowest());
}

class LlamaCompletion final : public Dialect {
 public:
  using Clock = std::chrono::steady_clock;

  // `return_tokens`: the answer has the ids of its tokens. `fields`: the paths of the answer's members that the client
  // asks for; empty: all members.
  explicit LlamaCompletion(bool return_tokens, std::vector<std::string> fields,
                           std::uint32_t index = 0)
      : return_tokens_(return_tokens), fields_(std::move(fields)), index_(index) {}

  bool tells_logprobs() const override { return true; }
  std::unique_ptr<Dialect> another(std::uint32_t index) const override {
    return std::make_unique<LlamaCompletion>(return_tokens_, fields_, index);
  }

  std::string new_id() const override { return fmt::format("cmpl-{:016x}", random_u64()); }

  void begin(const AnswerHead& head, const Usage&, std::string&) override {
    head_ = head;
    accepted_ = Clock::now();
  }

  void note_tokens(std::span<const ipc::TokenId> tokens,
                   std::span<const ipc::TokenLogprob> logprobs) override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (return_tokens_)
        fmt::format_to(std::back_inserter(new_tokens_), "{}{}", new_tokens_.empty() ? "" : ",",
                       tokens[i]);
      if (i >= logprobs.size()) continue;
      std::string& out = new_probabilities_;
      if (!out.empty()) out += ',';
      append_token(out, tokens[i], logprobs[i].bytes);
      append_logprob_member(out, logprobs[i].logprob);
      out += ",\"top_logprobs\":[";
      const char* before = "";
      for (const ipc::TopLogprob& top : logprobs[i].top) {
        out += std::exchange(before, ",");
        append_token(out, top.token, top.bytes);
        append_logprob_member(out, top.logprob);
        out += '}';
      }
      out += "]}";
    }
  }

  void add(std::string_view text, std::span<const ipc::AnswerPart>, std::string& events) override {
    if (first_ == Clock::time_point{}) first_ = Clock::now();
    said_ += text;
    const auto keep = [](std::string& all, const std::string& more) {
      if (!all.empty() && !more.empty()) all += ',';
      all += more;
    };
    keep(tokens_, new_tokens_);
    keep(probabilities_, new_probabilities_);
    const std::string tokens = std::exchange(new_tokens_, {});
    const std::string probabilities = std::exchange(new_probabilities_, {});
    if (text.empty() && tokens.empty() && probabilities.empty()) return;
    fmt::format_to(std::back_inserter(events), "data: {{\"index\":{},\"content\":", index_);
    append_json_string(events, text);
    fmt::format_to(std::back_inserter(events), ",\"tokens\":[{}],\"stop\":false", tokens);
    if (!probabilities.empty())
      fmt::format_to(std::back_inserter(events), ",\"completion_probabilities\":[{}]",
                     probabilities);
    events += "}\n\n";
  }

  ipc::FinishReason end(ipc::FinishReason reason, std::string_view stopped_by, const Usage& usage,
                        std::string& events) override {
    const Clock::time_point now = Clock::now();
    const Clock::time_point first = first_ == Clock::time_point{} ? now : first_;
    const auto ms = [](Clock::duration time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    const auto rate = [](std::uint64_t tokens, double time_ms) {
      return time_ms > 0 ? static_cast<double>(tokens) * 1000 / time_ms : 0.0;
    };
    const std::uint64_t read = usage.prompt_tokens - usage.cached_tokens;
    const double prompt_ms = ms(first - accepted_), predicted_ms = ms(now - first);
    const char* const stop_type = reason == ipc::FinishReason::kLength ? "limit"
                                  : stopped_by.empty()                 ? "eos"
                                                                       : "word";
    std::string word;
    append_json_string(word, stopped_by);
    end_ = ",\"id_slot\":-1,\"stop\":true,\"model\":";
    append_json_string(end_, head_.model);
    fmt::format_to(
        std::back_inserter(end_),
        ",\"tokens_predicted\":{},\"tokens_evaluated\":{},\"tokens_cached\":{},\"truncated\":false,"
        "\"stop_type\":\"{}\",\"stopping_word\":{},\"timings\":{{\"cache_n\":{},\"prompt_n\":{},"
        "\"prompt_ms\":{:.3f},\"prompt_per_second\":{:.3f},\"predicted_n\":{},"
        "\"predicted_ms\":{:.3f},\"predicted_per_second\":{:.3f}}}}}",
        usage.completion_tokens, usage.prompt_tokens, usage.prompt_tokens + usage.completion_tokens,
        stop_type, word, usage.cached_tokens, read, prompt_ms, rate(read, prompt_ms),
        usage.completion_tokens, predicted_ms, rate(usage.completion_tokens, predicted_ms));
    const std::string last =
        fmt::format("{{\"index\":{},\"content\":\"\",\"tokens\":[]{}", index_, end_);
    events += "data: " + selected(last) + "\n\n";
    return reason;
  }

  void fail(const ApiError& error, std::string& events) override { events += sse_error(error); }

  std::string whole() const override {
    std::string out = fmt::format("{{\"index\":{},\"content\":", index_);
    append_json_string(out, said_);
    fmt::format_to(std::back_inserter(out), ",\"tokens\":[{}]", tokens_);
    if (!probabilities_.empty())
      fmt::format_to(std::back_inserter(out), ",\"completion_probabilities\":[{}]", probabilities_);
    return selected(out + end_);
  }

 private:
  // Returns the members with these paths, each under its path, as llama.cpp does: {"timings/prompt_n": 2}.
  std::string selected(std::string answer) const {
    if (fields_.empty()) return answer;
    const auto all = nlohmann::ordered_json::parse(answer);
    auto kept = nlohmann::ordered_json::object();
    for (const std::string& path : fields_) {
      const nlohmann::ordered_json* at = &all;
      for (std::size_t begin = 0; at != nullptr && begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const auto found = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
        at = found == at->end() ? nullptr : &*found;
        begin = end + 1;
      }
      if (at != nullptr) kept[path] = *at;
    }
    return kept.dump();
  }

  const bool return_tokens_;
  const std::vector<std::string> fields_;
  const std::uint32_t index_;
  AnswerHead head_;
  std::string said_, end_;
  std::string tokens_, probabilities_;          // elements of JSON arrays
  std::string new_tokens_, new_probabilities_;  // those of the next add()
  Clock::time_point accepted_, first_;
};

// llama.cpp draws a seed itself for -1, and for the same number in 32 bits, which its clients send by default.
bool asks_for_any_seed(const Fields& fields) {
  const json* seed = fields.get("seed");
  const auto whole =
      seed != nullptr && seed->is_number() ? Fields::whole_number(*seed) : std::nullopt;
  return whole == std::int64_t{-1} ||
         whole == std::int64_t{std::numeric_limits<std::uint32_t>::max()};
}

// Replaces llama.cpp's name for the number of log-probabilities by OpenAI's, and its name for the number of answers.
void rename_counts(Fields& fields, nlohmann::ordered_json& request) {
  if (fields.get("logprobs") != nullptr)
    return fields.refuse("logprobs", "is called 'n_probs' by this endpoint.",
                         "unsupported_parameter");
  if (const std::int64_t wanted = fields.integer("n_probs", 0, 0, kMostProbabilities); wanted > 0)
    request["logprobs"] = wanted;
  request.erase("n_probs");
  if (fields.get("n_cmpl") != nullptr) request["n"] = fields.integer("n_cmpl", 1, 1, kMaxChoices);
  request.erase("n_cmpl");
}

void check_response_fields(Fields& fields) {
  const json* paths = fields.get("response_fields");
  if (paths == nullptr) return;
  if (!paths->is_array())
    return fields.wrong_type("response_fields", "an array of strings", *paths);
  if (paths->size() > kMostResponseFields)
    return fields.refuse("response_fields",
                         fmt::format("has more than {} paths.", kMostResponseFields),
                         "out_of_range");
  if (!std::ranges::all_of(*paths, [](const json& path) { return path.is_string(); }))
    fields.refuse("response_fields", "must be an array of strings.", "invalid_type");
}

Parsed<GenerationRequest> parse_llama(std::string_view body, bool infill) {
  Parsed<json> parsed = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(std::get<json>(parsed));
  (void)fields.boolean("return_tokens", false);
  check_response_fields(fields);
  if (has_wide_objects(std::get<json>(parsed)))
    return invalid("The body " + too_many_members(std::get<json>(parsed)));
  if (!fields.ok()) return fields.error();
  auto ordered = parse_exact(body);  // schemas keep their order
  for (const LlamaDefault& each : kLlamaDefaults) {
    if (fields.get(each.name) == nullptr) ordered[each.name] = each.value;
  }
  std::vector<std::string> warnings;
  apply_sampler_list(fields, ordered, infill, warnings);
  std::uint32_t open = 0;
  for (const LlamaDefault& each : kLlamaDefaults) {
    if (fields.get(each.name) == nullptr && ordered[each.name] == each.value)
      open |= open_sampler(each.name);
  }
  // It says what the temperature is.
  if (fields.get("do_sample") != nullptr) open &= ~open_sampler("temperature");
  rename_counts(fields, ordered);
  if (asks_for_any_seed(fields)) ordered.erase("seed");
  // Editors send these fields to end a suggestion early. A suggestion that is longer does no harm.
  for (const char* name : {"n_indent", "t_max_predict_ms"}) {
    if (!infill || fields.get(name) == nullptr) continue;
    if (fields.number(name, 0, 0, 1e9) != 0) warnings.push_back(std::string(name) + " is left out");
    ordered.erase(name);
  }
  const bool reads = only_reads(fields);
  if (reads) ordered["n_predict"] = 1;
  if (!fields.ok()) return fields.error();
  Parsed<GenerationRequest> request = parse_completion(dump_exact(ordered));
  if (auto* wanted = std::get_if<GenerationRequest>(&request)) {
    wanted->warnings = std::move(warnings);
    wanted->parameters.prompt_only = reads;
    // If a request lists samplers, the server uses only the samplers of this list.
    const json* const list = fields.get("samplers");
    if (list != nullptr && !list->empty()) wanted->parameters.open_samplers = 0;
    wanted->parameters.open_samplers |= open;
  }
  return request;
}

}  // namespace

Parsed<GenerationRequest> parse_llama_completion(std::string_view body) {
  return parse_llama(body, false);
}

Parsed<GenerationRequest> parse_llama_infill(std::string_view body) {
  Parsed<json> parsed = parse_object(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(std::get<json>(parsed));
  ipc::InfillPrompt prompt;
  if (const json* suffix = fields.get("suffix"); suffix != nullptr && !is_empty(*suffix)) {
    fields.refuse("suffix", "is called 'input_suffix' by this endpoint.", "unsupported_parameter");
  }
  for (const char* name : {"input_prefix", "input_suffix"}) {
    if (fields.get(name) == nullptr) fields.refuse(name, "is missing.", "missing_parameter");
  }
  // The prompt is the beginning of the gap, so it belongs to the text before the gap.
  prompt.prefix = fields.text("input_prefix") + fields.text("prompt");
  prompt.suffix = fields.text("input_suffix");
  read_infill_files(fields, prompt.files);
  if (!fields.ok()) return fields.error();
  if (has_wide_objects(std::get<json>(parsed)))
    return invalid("The body " + too_many_members(std::get<json>(parsed)));
  auto rest = parse_exact(body);  // an ordered parse keeps the order of schemas
  for (const char* name : {"input_prefix", "input_suffix", "input_extra", "suffix"})
    rest.erase(name);
  rest["prompt"] = "";
  Parsed<GenerationRequest> request = parse_llama(dump_exact(rest), true);
  if (auto* wanted = std::get_if<GenerationRequest>(&request))
    wanted->prompts = {std::move(prompt)};
  return request;
}

HttpResponse infill_refusal(const ApiError& error, std::string_view) {
  // A worker knows the fields by the names that completions have. This parser's own messages quote the field.
  static constexpr FieldName kNames[] = {{"suffix", "input_suffix"}, {"prompt", "input_prefix"}};
  const bool quotes = error.message.starts_with("'" + error.parameter + "'");
  return to_response(quotes ? error : with_own_names(error, kNames));
}

std::unique_ptr<Dialect> llama_completion_dialect(std::string_view body) {
  JsonMember members[] = {{"return_tokens"}, {"response_fields"}};
  find_json_members(body, members);
  std::vector<std::string> fields;
  if (!members[1].text.empty() && members[1].text != "null")
    fields = json::parse(members[1].text).get<std::vector<std::string>>();
  return std::make_unique<LlamaCompletion>(members[0].text == "true", std::move(fields));
}

json llama_props(const Router& router) {
  json props = {{"default_generation_settings", json::object()},
                {"modalities", {{"vision", false}, {"audio", false}}},
                {"build_info", "bulkhead"}};
  for (const ModelInfo& model : router.models()) {
    if (model.retired) continue;
    json& settings = props["default_generation_settings"];
    if (const ipc::Ready* ready = model.reported(); ready != nullptr) {
      settings["n_ctx"] = ready->context_limit;
      props["chat_template"] = ready->template_source;
      props["bos_token"] = ready->bos_token;
      props["eos_token"] = ready->eos_token;
      props["total_slots"] = router.sequences_at_once(model);
    }
    for (const LlamaDefault& each : kLlamaDefaults) {
      json& value = settings["params"][each.name];
      value = each.value;
      // Clients read top_k as an integer, and 40.0 is none to many of them.
      if (each.value == std::floor(each.value)) value = static_cast<std::int64_t>(each.value);
    }
    for (const ipc::SamplingAdvice& each : advice_of(model)) {
      json& value =
          settings["params"][each.name == "repetition_penalty" ? "repeat_penalty" : each.name];
      value = each.value;
      if (each.name == "top_k") value = static_cast<std::int64_t>(each.value);
    }
    props["model_alias"] = model.id;
    props["model_path"] = model.settings.path;
    break;
  }
  return props;
}

}  // namespace bulkhead::orchestrator

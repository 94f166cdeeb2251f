// Answers of Ollama's API: lines of JSON, whole or one for each piece. A tool call is sent in one line, when it
// is complete.
#include <chrono>
#include <ctime>
#include <iterator>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"
#include "orchestrator/http/ollama.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr FieldName kOllamaNames[] = {{"response_format.json_schema.schema", "format"},
                                      {"response_format.json_schema", "format"},
                                      {"response_format", "format"},
                                      {"max_tokens", "options.num_predict"},
                                      {"temperature", "options.temperature"},
                                      {"top_k", "options.top_k"},
                                      {"top_p", "options.top_p"},
                                      {"min_p", "options.min_p"},
                                      {"typical_p", "options.typical_p"},
                                      {"tfs_z", "options.tfs_z"},
                                      {"seed", "options.seed"},
                                      {"stop", "options.stop"},
                                      {"repeat_penalty", "options.repeat_penalty"},
                                      {"repeat_last_n", "options.repeat_last_n"},
                                      {"presence_penalty", "options.presence_penalty"},
                                      {"frequency_penalty", "options.frequency_penalty"},
                                      {"mirostat", "options.mirostat"},
                                      {"dry_multiplier", "options.dry_multiplier"},
                                      {"xtc_probability", "options.xtc_probability"},
                                      {"logit_bias", "options.logit_bias"},
                                      {".reasoning_content", ".thinking"}};

std::string as_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// "2026-01-15T12:00:00.123456Z"
std::string now_as_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1'000'000;
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:06}Z", text, micros);
}

constexpr std::uint32_t kMostLogprobs = 20;  // the most that a request may ask for

class OllamaDialect final : public Dialect {
 public:
  using Clock = std::chrono::steady_clock;

  explicit OllamaDialect(OllamaCall call) : call_(call) {}

  std::string new_id() const override { return fmt::format("ollama-{:016x}", random_u64()); }
  std::string_view content_type() const override { return "application/x-ndjson"; }

  void begin(const AnswerHead& head, const Usage&, std::string&) override {
    head_ = head;
    accepted_ = Clock::now();
  }

  bool tells_logprobs() const override { return true; }
  void note_tokens(std::span<const ipc::TokenId>,
                   std::span<const ipc::TokenLogprob> logprobs) override {
    logprobs_.add(logprobs);
  }

  void add(std::string_view text, std::span<const ipc::AnswerPart> parts,
           std::string& events) override {
    if (first_ == Clock::time_point{}) first_ = Clock::now();
    if (!text.empty()) piece(ipc::PartKind::kContent, text, events);
    for (const ipc::AnswerPart& part : parts) {
      switch (part.kind) {
        case ipc::PartKind::kContent:
        case ipc::PartKind::kReasoning:
          close_call(events, false);
          piece(part.kind, part.text, events);
          break;
        case ipc::PartKind::kCall:
          close_call(events, false);
          open_.emplace(OpenCall{part.id, part.text, {}});
          break;
        case ipc::PartKind::kArguments:
          if (open_) open_->arguments += part.text;
          break;
      }
    }
  }

  ipc::FinishReason end(ipc::FinishReason reason, std::string_view, const Usage& usage,
                        std::string& events) override {
    close_call(events, reason == ipc::FinishReason::kLength);
    const Clock::time_point now = Clock::now();
    const Clock::time_point first = first_ == Clock::time_point{} ? now : first_;
    const auto ns = [](Clock::duration time) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    };
    end_ = fmt::format(
        ",\"done\":true,\"done_reason\":\"{}\",\"total_duration\":{},\"load_duration\":{},"
        "\"prompt_eval_count\":{},\"prompt_eval_duration\":{},\"eval_count\":{},"
        "\"eval_duration\":{}}}",
        reason == ipc::FinishReason::kLength ? "length" : "stop", ns(now - arrived_),
        ns(accepted_ - arrived_), usage.prompt_tokens, ns(first - accepted_),
        usage.completion_tokens, ns(now - first));
    events += line("", "", "") + new_logprobs() + end_ + '\n';
    return reason;
  }

  void fail(const ApiError& error, std::string& events) override {
    events += ollama_refusal(error).body + '\n';
  }

  std::string whole() const override {
    return line(said_, thought_, calls_) + as_member(all_logprobs_) + end_;
  }

  // Clients read each line as a piece of the answer, so this line is an empty piece.
  std::string keep_alive() const override { return line("", "", "") + ",\"done\":false}\n"; }

 private:
  struct OpenCall {
    std::string id, name, arguments;
  };

  // Makes a line without its line break. `calls`: JSON, separated by commas.
  std::string line(std::string_view said, std::string_view thought, std::string_view calls) const {
    std::string out =
        fmt::format("{{\"model\":{},\"created_at\":\"{}\",", as_json(head_.model), now_as_text());
    const bool chat = call_ == OllamaCall::kChat;
    out += chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"response\":";
    append_json_string(out, said);
    if (!thought.empty()) out += ",\"thinking\":" + as_json(thought);
    if (!calls.empty()) fmt::format_to(std::back_inserter(out), ",\"tool_calls\":[{}]", calls);
    if (chat) out += '}';
    return out;
  }

  static std::string as_member(const std::string& logprobs) {
    return logprobs.empty() ? "" : ",\"logprobs\":[" + logprobs + "]";
  }
  // Returns the member for the tokens since the last line; empty if the client asked for none.
  std::string new_logprobs() {
    const std::string made = logprobs_.take_elements();
    if (!all_logprobs_.empty() && !made.empty()) all_logprobs_ += ',';
    all_logprobs_ += made;
    return as_member(made);
  }

  void piece(ipc::PartKind kind, std::string_view text, std::string& events) {
    const bool thought = kind == ipc::PartKind::kReasoning;
    (thought ? thought_ : said_) += text;
    events +=
        line(thought ? "" : text, thought ? text : "", "") + new_logprobs() + ",\"done\":false}\n";
  }

  // The answer leaves out a call that a limit cut; done_reason says why.
  void close_call(std::string& events, bool cut) {
    if (!open_) return;
    OpenCall call = *std::exchange(open_, std::nullopt);
    const bool whole = is_whole_object(call.arguments);
    if (!whole && cut) return;
    if (!whole) call.arguments = as_invalid_json(call.arguments);
    // A line break would end the line. Valid JSON has none inside a string.
    std::erase_if(call.arguments, [](char c) { return c == '\n' || c == '\r'; });
    const std::string made =
        fmt::format("{{\"id\":{},\"function\":{{\"index\":{},\"name\":{},\"arguments\":{}}}}}",
                    as_json(call.id), call_count_++, as_json(call.name), call.arguments);
    calls_ += (calls_.empty() ? "" : ",") + made;
    events += line("", "", made) + new_logprobs() + ",\"done\":false}\n";
  }

  const OllamaCall call_;
  AnswerHead head_;
  std::string said_, thought_, calls_, end_;
  LogprobsJson logprobs_{true, kMostLogprobs};  // since the last line
  std::string all_logprobs_;                    // elements of a JSON array
  std::optional<OpenCall> open_;
  std::size_t call_count_ = 0;
  const Clock::time_point arrived_ = Clock::now();
  Clock::time_point accepted_, first_;
};

}  // namespace

std::unique_ptr<Dialect> ollama_dialect(OllamaCall call) {
  return std::make_unique<OllamaDialect>(call);
}

std::string ollama_loaded_body(OllamaCall call, const std::string& model, const char* reason) {
  return fmt::format(
      "{{\"model\":{},\"created_at\":\"{}\",{},\"done\":true,\"done_reason\":\"{}\"}}",
      as_json(model), now_as_text(),
      call == OllamaCall::kChat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                                : "\"response\":\"\"",
      reason);
}

HttpResponse ollama_refusal(const ApiError& error, std::string_view) {
  HttpResponse response = to_response(error);
  response.body = "{\"error\":" + as_json(with_own_names(error, kOllamaNames).message) + "}";
  return response;
}

}  // namespace bulkhead::orchestrator

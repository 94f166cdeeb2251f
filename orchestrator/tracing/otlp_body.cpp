// Spans as OTLP's JSON: times are strings of nanoseconds, ids are hex, 64-bit integers are strings.
#include <algorithm>
#include <string_view>

#include <spdlog/fmt/fmt.h>

#include "config/base/clean_text.hpp"
#include "config/base/random.hpp"
#include "orchestrator/tracing/span_export.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr int kInternalKind = 1, kServerKind = 2;
constexpr int kErrorStatus = 2;

std::string quoted(std::string_view text) {
  return "\"" + cleaned(text, Escapes::kJson) + "\"";
}

std::string text_attribute(const char* key, std::string_view value) {
  return fmt::format(R"({{"key":"{}","value":{{"stringValue":{}}}}})", key, quoted(value));
}

std::string number_attribute(const char* key, std::uint64_t value) {
  return fmt::format(R"({{"key":"{}","value":{{"intValue":"{}"}}}})", key, value);
}

std::int64_t nanoseconds(GenerationSpan::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Returns a span without its closing brace.
std::string begun(std::string_view trace, std::string_view id, std::string_view parent,
                  std::string_view name, int kind, GenerationSpan::Time from,
                  GenerationSpan::Time to) {
  return fmt::format(R"({{"traceId":"{}","spanId":"{}","parentSpanId":"{}","name":{},"kind":{},)"
                     R"("startTimeUnixNano":"{}","endTimeUnixNano":"{}")",
                     trace, id, parent, quoted(name), kind, nanoseconds(from),
                     nanoseconds(std::max(from, to)));
}

void append(const GenerationSpan& span, std::string& spans) {
  if (!spans.empty()) spans += ",";
  spans += begun(span.trace_id, span.span_id, span.parent_id, span.name, kServerKind, span.began,
                 span.ended);
  spans += R"(,"attributes":[)" +
           number_attribute("http.response.status_code", static_cast<std::uint64_t>(span.status)) +
           "," + text_attribute("gen_ai.request.model", span.model) + "," +
           number_attribute("gen_ai.usage.input_tokens", span.prompt_tokens) + "," +
           number_attribute("gen_ai.usage.output_tokens", span.completion_tokens) + "," +
           number_attribute("bulkhead.cached_tokens", span.cached_tokens) + "," +
           text_attribute("bulkhead.request_id", span.request_id) + "," +
           text_attribute("bulkhead.end", span.end) + "]";
  if (span.status >= 500) spans += fmt::format(R"(,"status":{{"code":{}}})", kErrorStatus);
  spans += "}";
  if (span.first_token == GenerationSpan::Time{}) return;
  const auto child = [&](const char* name, GenerationSpan::Time from, GenerationSpan::Time to) {
    const std::string id = fmt::format("{:016x}", random_u64() | 1);
    spans += "," + begun(span.trace_id, id, span.span_id, name, kInternalKind, from, to) + "}";
  };
  if (span.reading_began != GenerationSpan::Time{}) {
    child("queue", span.began, span.reading_began);
    child("prompt", span.reading_began, span.first_token);
  }
  child("generation", span.first_token, span.ended);
}

}  // namespace

std::string otlp_body(const std::vector<GenerationSpan>& spans, const std::string& version) {
  std::string all;
  for (const GenerationSpan& span : spans)
    append(span, all);
  return R"({"resourceSpans":[{"resource":{"attributes":[)" +
         text_attribute("service.name", "bulkhead") + "," +
         text_attribute("service.version", version) +
         R"(]},"scopeSpans":[{"scope":{"name":"bulkhead"},"spans":[)" + all + "]}]}]}";
}

}  // namespace bulkhead::orchestrator

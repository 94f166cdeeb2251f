// Takes any bytes as a request's body. Each parser must give a request within its bounds, or an error in the form of
// errors.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "orchestrator/http/llama_cpp.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/http/questions.hpp"
#include "orchestrator/http/responses.hpp"

using namespace bulkhead::orchestrator;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename T>
bool refused(const Parsed<T>& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  if (error == nullptr) return false;
  require(error->status == 400 && !error->message.empty());
  require(error_body(*error).starts_with("{\"error\":{\"message\":\""));
  return true;
}

void check(const Parsed<GenerationRequest>& parsed) {
  if (refused(parsed)) return;
  const auto& request = std::get<GenerationRequest>(parsed);
  require(!request.prompts.empty() && request.prompts.size() <= kMaxPrompts);
  require(request.n >= 1 && request.n <= kMaxChoices);
  require(request.parameters.stop.size() <= kMaxStops);
  require(request.parameters.logprobs >= -1 && request.parameters.logprobs <= 20);
  const auto& sampling = request.parameters.sampling;
  require(sampling.temperature >= 0 && sampling.temperature <= 2);
  require(sampling.top_p > 0 && sampling.top_p <= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view body(reinterpret_cast<const char*>(data), size);
  check(parse_completion(body));
  check(parse_chat(body));
  // The writers of these answers read their requests' bodies again, and rely on the parsers' checks.
  check(parse_messages(body));
  const auto response = parse_responses(body);
  check(response);
  if (!refused(response)) (void)responses_dialect(body);
  for (const auto parse : {parse_llama_completion, parse_llama_infill}) {
    const auto completion = parse(body);
    check(completion);
    if (!refused(completion)) (void)llama_completion_dialect(body);
  }
  for (const auto parse : {parse_ollama_chat, parse_ollama_generate}) {
    const auto asked = parse(body);
    if (refused(asked)) continue;
    const auto& request = std::get<OllamaRequest>(asked);
    if (!request.load_only) check(request.wanted);
  }
  (void)refused(parse_tokenize(body));
  (void)refused(parse_detokenize(body));
  std::string quoted;
  append_json_string(quoted, body);
  require(quoted.size() >= 2 && quoted.find('\n') == std::string::npos);
  return 0;
}

// The one place with OpenAI's wire format: it turns a request's bytes into a checked GenerationRequest, and
// results into JSON and server-sent events. These functions use no sockets and no workers; only those that say so
// read the clock.
//
// Unknown fields are ignored, because clients send many that mean nothing here. Fields that would change the answer
// and are not supported are refused by name. A null counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ipc/messages.hpp"

namespace bulkhead::orchestrator {

// {"error": {"message", "type", "param", "code"}} with its HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string parameter;                                // empty: null
  std::string code;                                     // empty: null
  int retry_after_s = 0;                                // 0: no Retry-After
  const char* messages_type = "invalid_request_error";  // its type in the Messages API
};
std::string error_body(const ApiError& error);

template <typename T>
using Parsed = std::variant<T, ApiError>;

// Hostile input is bounded before anything is built from it.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonValues = 1U << 20;
// Evaluation harnesses send batches of hundreds. The answers of one request, its prompts times n, are also bounded by
// server.max_choices and server.max_queue, and their memory by server.max_memory_mb.
inline constexpr std::size_t kMaxPrompts = 1024;
inline constexpr std::uint32_t kMaxChoices = 128;  // n
// Editors send over twenty stops. A worker looks for each of them at each token, in time that grows with the square of
// its length.
inline constexpr std::size_t kMaxStops = 128;
inline constexpr std::size_t kMaxStopBytes = 1024;                          // of one
inline constexpr std::size_t kMaxStopsBytes = 16'384;                       // of all
inline constexpr std::size_t kMaxBiases = 1024;                             // entries of logit_bias
inline constexpr std::size_t kMaxConstraintBytes = std::size_t{256} << 10;  // a schema, a grammar

using Prompt = decltype(ipc::Submit::prompt);

struct ModelInfo;

struct GenerationRequest {
  bool chat = false;
  std::string model;            // empty: the only model
  std::vector<Prompt> prompts;  // one prompt for a chat, which still lacks the time
  ipc::Submit parameters;       // all but the request, the prompt and (if no seed was given) the seed
  bool has_seed = false;
  std::uint32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  bool resumable = false;       // requires `stream` and one choice
  bool hide_reasoning = false;  // the client gets the answer without its reasoning
  bool echo = false;  // the prompt precedes the answer, in its text and its log-probabilities
  std::vector<std::string> warnings;  // for the client: what of the request is left out
};
// Choice number `index` is the (index % n)-th answer to prompt index / n; its seed is the request's seed plus index %
// n.
Parsed<GenerationRequest> parse_completion(std::string_view body);
Parsed<GenerationRequest> parse_chat(std::string_view body);
// Draws the seed and sets the chat's present time, if the client left them open. Leaves samplers to the model's file
// only if models[].sampling_defaults says so.
void resolve(GenerationRequest& request, const ModelInfo& model);
// Returns what the model's file recommends, if requests get it: models[].sampling_defaults, and the file is known.
std::span<const ipc::SamplingAdvice> advice_of(const ModelInfo& model);
// Returns the seconds since 1970 by the local time of the daemon's time zone.
std::uint64_t local_seconds();

// Returns the name in {"model": NAME}; other members are ignored.
Parsed<std::string> parse_model_name(std::string_view body);

// Appends `text` as a JSON string with quotes; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

// Builds the log-probabilities of a choice piece by piece, in the shape of its endpoint.
class LogprobsJson {
 public:
  LogprobsJson(bool chat, std::uint32_t top) : chat_(chat), top_(top) {}
  void add(std::span<const ipc::TokenLogprob> logprobs);
  // Adds a completion's first token, which no token precedes.
  void add_first(const ipc::TokenLogprob& token);
  // Returns the object for everything added since the last call.
  std::string take();
  // Returns only the elements of a chat's list, with commas between them.
  std::string take_elements();

 private:
  void add_offset(const std::string& bytes);

  bool chat_;
  std::uint32_t top_;
  std::size_t offset_ = 0;  // characters before the next token
  std::string content_, tokens_, values_, tops_, offsets_;
};

// What all pieces of one answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint = {};  // see system_fingerprint(); empty: left out
};

// Returns "fp_...". It changes when anything changes on which the tokens of an equal request depend
// (Router::identity).
std::string system_fingerprint(std::string_view identity);

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
  std::uint64_t cached_tokens = 0;     // of the prompt's, reused from earlier requests
  std::uint64_t reasoning_tokens = 0;  // of the completion's
  // Tokens that the worker guessed. `completion_tokens` counts the right guesses, too; the worker
  // dropped the wrong ones.
  std::uint64_t accepted_drafts = 0, rejected_drafts = 0;
};

// A tool call, whole or as far as it has come.
struct ToolCall {
  std::string id, name, arguments;
};

// A part of a choice, or the whole of it.
struct ChoicePart {
  std::uint32_t index = 0;
  std::string_view text;
  const ipc::AnswerPart* piece = nullptr;  // for a chunk, instead of text
  std::string_view reasoning = {};         // for the whole choice, like the calls
  std::span<const ToolCall> calls = {};
  const std::vector<ipc::TokenId>* prompt_token_ids = nullptr;
  std::optional<std::span<const ipc::TokenId>> token_ids;
  std::string_view logprobs;       // JSON; empty: null
  std::string_view finish_reason;  // empty: null
  bool role = false;               // true for the first of a chat's chunks
};

// Returns "length", "tool_calls" or "stop".
const char* finish_reason_name(ipc::FinishReason reason, bool calls_tools);

// Returns one `data:` event, including its blank line.
std::string sse_chunk(const AnswerHead& head, const ChoicePart& part, bool null_usage);
std::string sse_usage(const AnswerHead& head, const Usage& usage);
std::string sse_error(const ApiError& error);
// An event that clients ignore.
inline constexpr std::string_view kSseComment = ": alive\n\n";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

std::string answer_body(const AnswerHead& head, std::span<const ChoicePart> choices,
                        const Usage& usage);

}  // namespace bulkhead::orchestrator

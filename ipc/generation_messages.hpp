// Messages about generating an answer: the request, the tokens that the worker generates, and a request's end or
// failure. messages.hpp says what all messages have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/base/strong_id.hpp"
#include "ipc/fields.hpp"

namespace bulkhead::ipc {

using TokenId = std::uint32_t;

// ---- daemon -> worker ----

// A chat as the client sent it. The worker renders it to a prompt with the model's own template.
struct ChatPrompt {
  std::string json;  // an object; jinja::ChatRequest (worker/model/template) says which keys count
  // The time that the template sees: seconds since 1970 in the daemon's time zone. The request
  // contains the time, so that a successor renders the same prompt.
  std::uint64_t local_seconds = 0;
  bool operator==(const ChatPrompt&) const = default;
  BULKHEAD_FIELDS(json, local_seconds)
};

struct InfillFile {
  std::string name, text;
  bool operator==(const InfillFile&) const = default;
  BULKHEAD_FIELDS(name, text)
};

// A prompt for the text between two given texts. The worker makes the prompt with the special tokens of the model's
// vocabulary.
struct InfillPrompt {
  std::string prefix, suffix;
  std::vector<InfillFile> files;  // other files of the same project
  bool operator==(const InfillPrompt&) const = default;
  BULKHEAD_FIELDS(prefix, suffix, files)
};

// A chat message in the journals of older builds. Clients can still read such a stream to its end, but no worker
// resumes it.
struct ChatMessage {
  std::string role;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
  BULKHEAD_FIELDS(role, content)
};

struct Sampling {
  float temperature = 1.0F;  // 0: greedy
  float top_p = 1.0F;
  std::uint32_t top_k = 0;  // 0: all tokens
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::uint64_t seed = 0;
  bool operator==(const Sampling&) const = default;
  BULKHEAD_FIELDS(temperature, top_p, top_k, min_p, repetition_penalty, frequency_penalty,
                  presence_penalty, seed)
};

// The fields of Sampling that a request may leave to the model's file, by the names that requests have, and their bits
// in Submit::open_samplers.
struct OpenSampler {
  const char* name;
  std::uint32_t bit;
};
inline constexpr OpenSampler kOpenSamplers[] = {
    {"temperature", 1}, {"top_p", 2}, {"top_k", 4}, {"min_p", 8}, {"repetition_penalty", 16}};

// The form that the client demands of the answer.
enum class ConstraintKind {
  kNone,
  kJsonObject,  // any JSON object; `text` is empty
  kJsonSchema,
  kGrammar,  // llama.cpp's GBNF
  kRegex,    // the whole answer matches the expression
};
constexpr ConstraintKind last_enumerator(ConstraintKind) {
  return ConstraintKind::kRegex;
}

struct Constraint {
  ConstraintKind kind = ConstraintKind::kNone;
  std::string text;
  std::string parameter;  // the request's field that asks for the form; errors name it
  bool operator==(const Constraint&) const = default;
  BULKHEAD_FIELDS(kind, text, parameter)
};

// The sampler adds `bias` to the token's logit before all its other steps.
struct TokenBias {
  TokenId token = 0;
  float bias = 0;
  bool operator==(const TokenBias&) const = default;
  BULKHEAD_FIELDS(token, bias)
};

// Whether the answer may or must call a tool, and which one. The prompt leaves out tools that the answer must not
// call.
enum class ToolChoice {
  kAuto,
  kRequired,  // the answer calls at least one tool
  kNamed,     // the answer calls Submit::tool_name once
};
constexpr ToolChoice last_enumerator(ToolChoice) {
  return ToolChoice::kNamed;
}

struct Submit {
  RequestId request;
  std::variant<std::string, std::vector<TokenId>, std::vector<ChatMessage>, ChatPrompt,
               InfillPrompt>
      prompt;
  Sampling sampling;
  std::uint32_t max_tokens = 0;  // 0: the answer may fill the context
  std::vector<std::string> stop;
  std::int32_t logprobs = -1;  // -1: no log-probabilities; n: those of the chosen token and of the n best tokens
  bool ignore_eos = false;
  // Tokens that another worker generated and the client already has. The worker continues after them.
  std::vector<TokenId> accepted_tokens;
  Constraint constraint;
  std::vector<TokenBias> logit_bias;  // each token occurs once
  std::vector<TokenId> stop_tokens;   // tokens that end the answer just as the end-of-text token does
  bool one_call = false;              // the answer ends before a second tool call
  bool tell_prompt = false;  // asks for PromptTokens; with `logprobs`, also for the prompt tokens' log-probabilities
  bool prompt_only = false;  // the answer ends before its first token, with kLength
  ToolChoice tool_choice = ToolChoice::kAuto;  // counts only for a chat that offers tools
  std::string tool_name;
  std::int32_t reasoning_budget = -1;  // the worker ends the reasoning after this many tokens; -1: no limit
  std::vector<std::string> allowed_tools;  // offered tools that the answer may call; empty: all
  // The worker prepares and checks the request and computes nothing: Finished, with kLength, follows Accepted at once.
  bool count_only = false;
  // The fields of `sampling` in whose place the worker takes what the model's file recommends, if it recommends
  // anything: bits of kOpenSamplers.
  std::uint32_t open_samplers = 0;
  bool operator==(const Submit&) const = default;
  BULKHEAD_MESSAGE(14, "submit", request, prompt, sampling, max_tokens, stop, logprobs, ignore_eos,
                   accepted_tokens, constraint, logit_bias, stop_tokens, one_call, tell_prompt,
                   prompt_only, tool_choice, tool_name, reasoning_budget, allowed_tools, count_only,
                   open_samplers)
};

struct Cancel {
  RequestId request;
  bool operator==(const Cancel&) const = default;
  BULKHEAD_MESSAGE(15, "cancel", request)
};

// ---- worker -> daemon ----

struct Accepted {
  RequestId request;
  std::vector<TokenId> prompt_tokens;
  std::uint32_t max_tokens = 0;  // what the request asked for, or what the context has room for
  // Warnings for the client. Each names a part of the request that the worker ignores.
  std::vector<std::string> warnings = {};
  bool operator==(const Accepted&) const = default;
  BULKHEAD_MESSAGE(3, "accepted", request, prompt_tokens, max_tokens, warnings)
};

enum class PartKind {
  kContent,
  kReasoning,
  kCall,       // a tool call begins: `text` is the tool's name
  kArguments,  // a piece of the arguments, which are JSON, of the last call
};
constexpr PartKind last_enumerator(PartKind) {
  return PartKind::kArguments;
}

// A piece of an answer. The worker cuts answers according to the format of its model's family.
struct AnswerPart {
  PartKind kind = PartKind::kContent;
  std::uint32_t call = 0;  // kCall, kArguments: the call's index, from 0
  std::string text;
  std::string id;  // the call's id, for a kCall
  bool operator==(const AnswerPart&) const = default;
  BULKHEAD_FIELDS(kind, call, text, id)
};

enum class FinishReason {
  kStop,    // the end-of-text token, or a stop string
  kLength,  // max_tokens was reached, or the context is full
  kCancelled,
};
constexpr FinishReason last_enumerator(FinishReason) {
  return FinishReason::kCancelled;
}

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // the remaining text that the worker had held back; whole UTF-8 characters
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint64_t prefill_microseconds = 0;
  std::uint64_t decode_microseconds = 0;
  std::uint32_t cached_tokens = 0;     // tokens of the prompt that came from the prefix cache
  std::vector<AnswerPart> parts = {};  // the remaining parts of an answer that comes in parts
  std::uint32_t reasoning_tokens = 0;  // how many of the generated tokens are reasoning
  // How many of this worker's guesses were right and wrong. `completion_tokens` includes the right ones.
  std::uint32_t accepted_drafts = 0, rejected_drafts = 0;
  std::string stopped_by = {};  // the stop string that ended the answer; empty if none did
  bool operator==(const Finished&) const = default;
  BULKHEAD_MESSAGE(5, "finished", request, reason, whole_text(text), prompt_tokens,
                   completion_tokens, prefill_microseconds, decode_microseconds, cached_tokens,
                   parts, reasoning_tokens, accepted_drafts, rejected_drafts, stopped_by)
};

// Why a request failed. Workers, the daemon and clients share this list (http/errors.cpp has the HTTP status of
// each).
enum class FailureCode {
  // Workers and the daemon use these:
  kInvalidRequest,     // the request itself is at fault
  kContextExceeded,    // the prompt does not fit
  kUnsupported,        // this model can't do that; for example, it has no chat template
  kResourceExhausted,  // the queue is full; the client may try again later
  kInternal,
  // Only the daemon uses these. A worker that sends one violates the protocol.
  kUnknownModel,
  kUnavailable,    // the model is loading or draining; the client may try again later
  kWorkerFailed,   // the daemon has given up the model's workers
  kTimeout,        // the request took longer than server.request_timeout_s
  kWorkerCrashed,  // workers died while they had the request, or because of it
  kNotResumable,   // no worker can continue this stream of an earlier daemon exactly
  kModelTooLarge,  // the model's device never has the memory for it (server.device_memory_mb)
};
// Returns the last code that a worker may send.
constexpr FailureCode last_enumerator(FailureCode) {
  return FailureCode::kInternal;
}

struct Failed {
  RequestId request;
  FailureCode code = FailureCode::kInternal;
  std::string message;
  std::string parameter;  // the request's field that caused the failure, if there is one
  bool operator==(const Failed&) const = default;
  BULKHEAD_MESSAGE(6, "failed", request, code, message, parameter)
};

// ---- tokens, as plain data and as a view ----

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;
  bool operator==(const TopLogprob&) const = default;
  BULKHEAD_FIELDS(token, logprob, any_bytes(bytes))
};

struct TokenLogprob {
  float logprob = 0;
  std::string bytes;            // the bytes of this token alone, which may end within a character
  std::vector<TopLogprob> top;  // the most probable tokens, the best first
  bool operator==(const TokenLogprob&) const = default;
  BULKHEAD_FIELDS(logprob, any_bytes(bytes), top)
};

// The prompt's tokens, for a Submit with tell_prompt. The worker sends them in order, in one or several messages,
// after Accepted and before the first generated token. Only `bytes` is meaningful for the prompt's first token, and
// for every token if the request does not ask for `logprobs`.
struct PromptTokens {
  RequestId request;
  std::uint32_t first_index = 0;  // index of tokens[0] within the prompt
  std::vector<TokenLogprob> tokens;
  bool operator==(const PromptTokens&) const = default;
  BULKHEAD_MESSAGE(29, "prompt tokens", request, first_index, tokens)
};

// Returns which rule a SequenceTokens or its view breaks; empty if it breaks none.
std::string broken_rule_of_tokens(std::uint32_t first_index, std::size_t tokens,
                                  std::size_t logprobs);

struct SequenceTokens {
  RequestId request;
  std::uint32_t first_index = 0;  // index of tokens[0] among the request's generated tokens
  std::vector<TokenId> tokens;
  std::string text;                    // the whole characters that these tokens complete; may be empty
  std::vector<TokenLogprob> logprobs;  // empty, or one for each token
  // An answer comes either in parts or as text: if these tokens complete parts, `text` is empty.
  std::vector<AnswerPart> parts = {};
  std::string broken_rule() const {
    return broken_rule_of_tokens(first_index, tokens.size(), logprobs.size());
  }
  bool operator==(const SequenceTokens&) const = default;
  BULKHEAD_FIELDS(request, first_index, tokens, whole_text(text), logprobs, parts)
};

// A worker sends one of these per step, with all of the step's sequences.
struct TokenBatch {
  std::uint64_t step = 0;
  std::vector<SequenceTokens> sequences;
  bool operator==(const TokenBatch&) const = default;
  BULKHEAD_MESSAGE(4, "tokens", step, sequences)
};

// One sequence's share of a TokenBatch. It points into the record and is valid until the record is released. `text`
// is valid UTF-8. Only log-probabilities and parts allocate memory.
struct SequenceTokensView {
  RequestId request;
  std::uint32_t first_index = 0;
  std::span<const TokenId> tokens;
  std::string_view text;
  std::vector<TokenLogprob> logprobs;  // empty, or one for each token
  std::vector<AnswerPart> parts = {};
  std::string broken_rule() const {
    return broken_rule_of_tokens(first_index, tokens.size(), logprobs.size());
  }
  BULKHEAD_FIELDS(request, first_index, tokens, whole_text(text), logprobs, parts)
};
static_assert(SequenceTokensView::kFields == SequenceTokens::kFields);

}  // namespace bulkhead::ipc

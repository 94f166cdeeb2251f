// Every message between the daemon and a worker, declared once: a struct with one row of its fields
// (fields.hpp), from which its size, its encoding and its decoding follow (wire.hpp). Both transports
// carry these, one message in one record.
//
// A new message is a struct here, with the next free number, and its name in FromWorker or ToWorker.
//
// decode() trusts nothing: every length, count, enumerator and text is checked before a value reaches
// the caller. encode() and decode() are stateless and thread-safe. Tokens are the hot path and have
// their own reader and writer (below), which neither copy nor allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/strong_id.hpp"
#include "ipc/fields.hpp"

namespace bulkhead::ipc {

// Made from the layout of all messages: a worker that has another one is of another build than the
// daemon, and they would misread each other. Hello itself must stay readable: its row never changes.
std::uint32_t protocol_version();

using TokenId = std::uint32_t;

// ---- worker -> daemon ----

// The worker's first message.
struct Hello {
  std::uint32_t protocol = protocol_version();
  std::uint32_t pid = 0;
  std::string build;
  bool operator==(const Hello&) const = default;
  BULKHEAD_MESSAGE(0, "hello", protocol, pid, build)
};

// While a model loads.
struct Progress {
  std::string stage;  // "reading weights", "compiling pipelines", "warming up"
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool operator==(const Progress&) const = default;
  BULKHEAD_MESSAGE(1, "progress", stage, done, total)
};

struct Optimization {
  std::string name;
  bool active = false;
  std::string reason;  // why it is not active
  bool operator==(const Optimization&) const = default;
  BULKHEAD_FIELDS(name, active, reason)
};

enum class VaultState {
  kOff,       // nothing of this process can be taken over; `reason` says why
  kKept,      // loaded, and offered to a successor
  kImported,  // taken over from a predecessor, and there for a successor
  kWaiting,   // loaded; VaultOffer follows once there is room for its descriptors
};
constexpr VaultState last_enumerator(VaultState) {
  return VaultState::kWaiting;
}

struct VaultReport {
  VaultState state = VaultState::kOff;
  std::string reason;                     // why it is off, or why KV pages are not kept
  std::uint64_t import_microseconds = 0;  // mapping the predecessor's memory
  std::uint64_t check_microseconds = 0;   // the weights' checksum on the device
  std::uint64_t adopt_microseconds = 0;   // reading the directory of KV pages
  std::uint64_t pages_adopted = 0;        // full KV pages that need not be computed again
  // That are not written to before Settled: the predecessor's last steps may write to them.
  std::uint64_t pages_withheld = 0;
  bool operator==(const VaultReport&) const = default;
  BULKHEAD_FIELDS(state, reason, import_microseconds, check_microseconds, adopt_microseconds,
                  pages_adopted, pages_withheld)
};

// The model is loaded, and one forward pass has run.
struct Ready {
  std::string model_name;
  std::string architecture;
  std::string device;
  std::string numerics_id;
  std::uint32_t context_limit = 0;  // tokens that one sequence may have
  std::uint32_t vocabulary_size = 0;
  std::uint64_t kv_cache_tokens = 0;  // that fit in the KV cache, all sequences together
  std::uint64_t weight_bytes = 0;
  std::uint64_t load_milliseconds = 0;
  bool has_chat_template = false;
  std::string chat_template;  // how its answers are written, or why there is none
  // What its answers can be, in Ollama's words: "completion", "tools", "thinking", "embedding".
  std::vector<std::string> capabilities;
  std::vector<Optimization> optimizations;
  VaultReport vault;
  bool operator==(const Ready&) const = default;
  BULKHEAD_MESSAGE(2, "ready", model_name, architecture, device, numerics_id, context_limit,
                   vocabulary_size, kv_cache_tokens, weight_bytes, load_milliseconds,
                   has_chat_template, chat_template, capabilities, optimizations, vault)
};

// Descriptors that one vault may have.
inline constexpr std::size_t kMostVaultDescriptors = 224;

// Names descriptors that were sent just before. Comes before Ready, or after one that said kWaiting.
struct VaultOffer {
  std::uint64_t epoch = 0;   // also the tag of the packets that carry them
  std::uint32_t files = 0;   // first the directory, then so many model files,
  std::uint32_t blocks = 0;  // then so many blocks of device memory
  bool operator==(const VaultOffer&) const = default;
  BULKHEAD_MESSAGE(25, "vault offer", epoch, files, blocks)
};

struct Accepted {
  RequestId request;
  std::vector<TokenId> prompt_tokens;
  std::uint32_t max_tokens = 0;  // resolved: what was asked for, or what the context leaves
  // What of the request is not heeded, and does not keep it from being answered: words for its client.
  std::vector<std::string> warnings = {};
  bool operator==(const Accepted&) const = default;
  BULKHEAD_MESSAGE(3, "accepted", request, prompt_tokens, max_tokens, warnings)
};

enum class PartKind {
  kContent,
  kReasoning,
  kCall,       // a tool call begins: `text` is the tool's name
  kArguments,  // a piece of the last call's arguments, which are JSON
};
constexpr PartKind last_enumerator(PartKind) {
  return PartKind::kArguments;
}

// A piece of an answer that the worker has read as its model's family writes answers.
struct AnswerPart {
  PartKind kind = PartKind::kContent;
  std::uint32_t call = 0;  // kCall, kArguments: the call's index, from 0
  std::string text;
  std::string id;  // of a kCall
  bool operator==(const AnswerPart&) const = default;
  BULKHEAD_FIELDS(kind, call, text, id)
};

enum class FinishReason {
  kStop,    // end of text, or a stop string
  kLength,  // max_tokens, or the context is full
  kCancelled,
};
constexpr FinishReason last_enumerator(FinishReason) {
  return FinishReason::kCancelled;
}

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // held-back rest; whole UTF-8 characters
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint64_t prefill_microseconds = 0;
  std::uint64_t decode_microseconds = 0;
  std::uint32_t cached_tokens = 0;     // of the prompt, taken over from the prefix cache
  std::vector<AnswerPart> parts = {};  // the rest of an answer that comes in parts
  std::uint32_t reasoning_tokens = 0;  // of those generated
  // Tokens that this worker guessed, and that turned out right and wrong; the right ones are among
  // those generated.
  std::uint32_t accepted_drafts = 0, rejected_drafts = 0;
  bool operator==(const Finished&) const = default;
  BULKHEAD_MESSAGE(5, "finished", request, reason, whole_text(text), prompt_tokens,
                   completion_tokens, prefill_microseconds, decode_microseconds, cached_tokens,
                   parts, reasoning_tokens, accepted_drafts, rejected_drafts)
};

// Why a request failed: one vocabulary from the worker to the client (http/errors.cpp has the HTTP
// status of each).
enum class FailureCode {
  // A worker's, and the daemon's:
  kInvalidRequest,     // the request itself
  kContextExceeded,    // the prompt does not fit
  kUnsupported,        // this model can't do that: no chat template, for one
  kResourceExhausted,  // try again later: the queue is full
  kInternal,
  // The daemon's own. A worker that sends one broke a rule.
  kUnknownModel,
  kUnavailable,    // try again later: loading, draining
  kWorkerFailed,   // the model's workers have been given up
  kTimeout,        // server.request_timeout_s
  kWorkerCrashed,  // workers died of it, or for it
  kNotResumable,   // an earlier daemon's, and no worker can go on with it exactly
};
// Of those that a worker may send.
constexpr FailureCode last_enumerator(FailureCode) {
  return FailureCode::kInternal;
}

struct Failed {
  RequestId request;
  FailureCode code = FailureCode::kInternal;
  std::string message;
  std::string parameter;  // the request's field, where one is to blame
  bool operator==(const Failed&) const = default;
  BULKHEAD_MESSAGE(6, "failed", request, code, message, parameter)
};

struct Tokenized {
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Tokenized&) const = default;
  BULKHEAD_MESSAGE(7, "tokenized", request, tokens)
};

struct Detokenized {
  RequestId request;
  std::string text;  // bytes; need not be UTF-8
  bool operator==(const Detokenized&) const = default;
  BULKHEAD_MESSAGE(8, "detokenized", request, any_bytes(text))
};

struct AppliedTemplate {
  RequestId request;
  std::string text;                        // the whole prompt
  std::vector<std::string> warnings = {};  // as in Accepted
  bool operator==(const AppliedTemplate&) const = default;
  BULKHEAD_MESSAGE(27, "applied template", request, text, warnings)
};

// What a model makes of a text: its last hidden states, pooled to one, as they are (not normalised).
struct Embedded {
  RequestId request;
  std::uint32_t tokens = 0;  // of the input
  std::vector<float> values;
  bool operator==(const Embedded&) const = default;
  BULKHEAD_MESSAGE(30, "embedded", request, tokens, values)
};

struct Counter {
  std::string name;  // a Prometheus name without the prefix "bulkhead_worker_"
  double value = 0;
  bool operator==(const Counter&) const = default;
  BULKHEAD_FIELDS(name, value)
};

struct Stats {
  std::uint64_t steps = 0;
  std::uint32_t active_sequences = 0;
  std::uint32_t waiting_sequences = 0;
  std::uint64_t kv_pages_used = 0;
  std::uint64_t kv_pages_total = 0;
  std::vector<Counter> counters;
  bool operator==(const Stats&) const = default;
  BULKHEAD_MESSAGE(10, "stats", steps, active_sequences, waiting_sequences, kv_pages_used,
                   kv_pages_total, counters)
};

struct Pong {
  std::uint64_t nonce = 0;
  bool operator==(const Pong&) const = default;
  BULKHEAD_MESSAGE(11, "pong", nonce)
};

// The worker's last word before it exits.
struct Fatal {
  std::string message;
  bool operator==(const Fatal&) const = default;
  BULKHEAD_MESSAGE(12, "fatal", message)
};

struct Drained {
  bool operator==(const Drained&) const = default;
  BULKHEAD_MESSAGE(13, "drained")
};

// ---- daemon -> worker ----

// A chat as its client sent it. The worker makes the prompt of it, by the model's own template.
struct ChatPrompt {
  std::string json;  // an object; jinja::ChatRequest (worker/model/template) says which keys count
  // What the template takes for the present time: seconds since 1970 by a clock on the daemon's wall.
  // It is part of the request, so that a successor renders the same prompt.
  std::uint64_t local_seconds = 0;
  bool operator==(const ChatPrompt&) const = default;
  BULKHEAD_FIELDS(json, local_seconds)
};

// As journals of older builds have a chat. Such a stream can be read to its end, and never goes on.
struct ChatMessage {
  std::string role;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
  BULKHEAD_FIELDS(role, content)
};

struct Sampling {
  float temperature = 1.0F;  // 0: greedy
  float top_p = 1.0F;
  std::uint32_t top_k = 0;  // 0: all
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::uint64_t seed = 0;
  bool operator==(const Sampling&) const = default;
  BULKHEAD_FIELDS(temperature, top_p, top_k, min_p, repetition_penalty, frequency_penalty,
                  presence_penalty, seed)
};

// What an answer must be, whatever the model would rather say.
enum class ConstraintKind {
  kNone,
  kJsonObject,  // any JSON object; `text` is empty
  kJsonSchema,
  kGrammar,  // llama.cpp's GBNF
  kRegex,    // the whole answer matches it
};
constexpr ConstraintKind last_enumerator(ConstraintKind) {
  return ConstraintKind::kRegex;
}

struct Constraint {
  ConstraintKind kind = ConstraintKind::kNone;
  std::string text;
  std::string parameter;  // the request's field that asks for it, for errors
  bool operator==(const Constraint&) const = default;
  BULKHEAD_FIELDS(kind, text, parameter)
};

// Added to a token's logit before everything else that sampling does.
struct TokenBias {
  TokenId token = 0;
  float bias = 0;
  bool operator==(const TokenBias&) const = default;
  BULKHEAD_FIELDS(token, bias)
};

// Says whether the answer may or must call a tool, and which one. Tools that it must not call are not in the prompt.
enum class ToolChoice {
  kAuto,
  kRequired,  // one at least
  kNamed,     // Submit::tool_name, once
};
constexpr ToolChoice last_enumerator(ToolChoice) {
  return ToolChoice::kNamed;
}

struct Submit {
  RequestId request;
  std::variant<std::string, std::vector<TokenId>, std::vector<ChatMessage>, ChatPrompt> prompt;
  Sampling sampling;
  std::uint32_t max_tokens = 0;  // 0: until the context is full
  std::vector<std::string> stop;
  std::int32_t logprobs = -1;  // -1: none; n: the chosen token's and the n best
  bool ignore_eos = false;
  // Generated before and sent already: a resumed request goes on after them.
  std::vector<TokenId> accepted_tokens;
  Constraint constraint;
  std::vector<TokenBias> logit_bias;  // each token once
  std::vector<TokenId> stop_tokens;   // end the answer as the end of the text does
  bool one_call = false;              // the answer ends before a second tool call
  bool tell_prompt = false;  // PromptTokens, with log-probabilities where `logprobs` says so
  bool prompt_only = false;  // the answer ends before its first token, with kLength
  ToolChoice tool_choice = ToolChoice::kAuto;  // of a chat that offers tools
  std::string tool_name;
  std::int32_t reasoning_budget = -1;  // tokens of reasoning, then its end is forced; -1: no limit
  std::vector<std::string> allowed_tools;  // of those offered, which may be called; empty: all
  bool operator==(const Submit&) const = default;
  BULKHEAD_MESSAGE(14, "submit", request, prompt, sampling, max_tokens, stop, logprobs, ignore_eos,
                   accepted_tokens, constraint, logit_bias, stop_tokens, one_call, tell_prompt,
                   prompt_only, tool_choice, tool_name, reasoning_budget, allowed_tools)
};

struct Cancel {
  RequestId request;
  bool operator==(const Cancel&) const = default;
  BULKHEAD_MESSAGE(15, "cancel", request)
};

struct Tokenize {
  using Answer = Tokenized;
  RequestId request;
  std::string text;
  bool add_special = true;    // BOS and EOS as the model wants
  bool parse_special = true;  // special tokens' text counts as the token
  bool operator==(const Tokenize&) const = default;
  BULKHEAD_MESSAGE(16, "tokenize", request, text, add_special, parse_special)
};

struct Detokenize {
  using Answer = Detokenized;
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Detokenize&) const = default;
  BULKHEAD_MESSAGE(17, "detokenize", request, tokens)
};

// Asks for a chat's prompt without an answer to it.
struct ApplyTemplate {
  using Answer = AppliedTemplate;
  RequestId request;
  ChatPrompt prompt;
  bool operator==(const ApplyTemplate&) const = default;
  BULKHEAD_MESSAGE(28, "apply template", request, prompt)
};

struct Embed {
  using Answer = Embedded;
  RequestId request;
  std::variant<std::string, std::vector<TokenId>> input;
  bool operator==(const Embed&) const = default;
  BULKHEAD_MESSAGE(31, "embed", request, input)
};

struct Ping {
  std::uint64_t nonce = 0;
  bool operator==(const Ping&) const = default;
  BULKHEAD_MESSAGE(19, "ping", nonce)
};

// The daemon's first message to a worker that was started with --vault.
struct Vault {
  std::uint64_t epoch = 0;  // 0: nothing was left
  std::uint32_t files = 0;
  std::uint32_t blocks = 0;
  bool keep_kv = false;   // false: the predecessor's end casts doubt on its KV pages
  bool replaced = false;  // a new one was asked for, and with it a changed model file
  bool operator==(const Vault&) const = default;
  BULKHEAD_MESSAGE(20, "vault", epoch, files, blocks, keep_kv, replaced)
};

struct Drain {
  bool operator==(const Drain&) const = default;
  BULKHEAD_MESSAGE(21, "drain")
};
struct Shutdown {
  bool operator==(const Shutdown&) const = default;
  BULKHEAD_MESSAGE(22, "shutdown")
};
// Time the kernels of one step; the figures come with the Stats that follow.
struct Profile {
  bool operator==(const Profile&) const = default;
  BULKHEAD_MESSAGE(23, "profile")
};

// Tells a standby, which is ready and has had no request, to serve from now on. It answers with a second
// Ready (and Progress before that, if it takes time); the daemon sends requests after that.
struct Promote {
  bool keep_kv = false;  // as in Vault: of a standby that took its memory over
  bool unsettled =
      false;  // the predecessor's last steps may still write to its KV pages: Settled follows
  bool operator==(const Promote&) const = default;
  BULKHEAD_MESSAGE(24, "promote", keep_kv, unsettled)
};

// Tells a successor that the process it took over from is gone, and its work on the device has ended.
struct Settled {
  bool operator==(const Settled&) const = default;
  BULKHEAD_MESSAGE(26, "settled")
};

// ---- tokens, both as plain data and as a view ----

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;
  bool operator==(const TopLogprob&) const = default;
  BULKHEAD_FIELDS(token, logprob, any_bytes(bytes))
};

struct TokenLogprob {
  float logprob = 0;
  std::string bytes;            // of this token alone; may be part of a character
  std::vector<TopLogprob> top;  // best first
  bool operator==(const TokenLogprob&) const = default;
  BULKHEAD_FIELDS(logprob, any_bytes(bytes), top)
};

// Tokens of a prompt, for a Submit with tell_prompt: in their order, in as many messages as it takes, after
// Accepted and before the first token. Of a prompt's first token, and without `logprobs`, only `bytes` counts.
struct PromptTokens {
  RequestId request;
  std::uint32_t first_index = 0;  // within the prompt
  std::vector<TokenLogprob> tokens;
  bool operator==(const PromptTokens&) const = default;
  BULKHEAD_MESSAGE(29, "prompt tokens", request, first_index, tokens)
};

// What SequenceTokens and its view must be; empty when they are.
std::string broken_rule_of_tokens(std::uint32_t first_index, std::size_t tokens,
                                  std::size_t logprobs);

struct SequenceTokens {
  RequestId request;
  std::uint32_t first_index = 0;  // index of tokens[0] among the request's generated tokens
  std::vector<TokenId> tokens;
  std::string text;                    // whole characters released by these tokens; may be empty
  std::vector<TokenLogprob> logprobs;  // empty, or one for each token
  // An answer comes in parts or as text: where the tokens released parts, `text` is empty.
  std::vector<AnswerPart> parts = {};
  std::string broken_rule() const {
    return broken_rule_of_tokens(first_index, tokens.size(), logprobs.size());
  }
  bool operator==(const SequenceTokens&) const = default;
  BULKHEAD_FIELDS(request, first_index, tokens, whole_text(text), logprobs, parts)
};

// One for each step, with all of its sequences.
struct TokenBatch {
  std::uint64_t step = 0;
  std::vector<SequenceTokens> sequences;
  bool operator==(const TokenBatch&) const = default;
  BULKHEAD_MESSAGE(4, "tokens", step, sequences)
};

// What a request can ask of a worker: to generate, or something that one message answers (`Answer`).
using Work = std::variant<Submit, Tokenize, Detokenize, ApplyTemplate, Embed>;

using FromWorker = std::variant<Hello, Progress, Ready, Accepted, TokenBatch, Finished, Failed,
                                Tokenized, Detokenized, Stats, Pong, Fatal, Drained, VaultOffer,
                                AppliedTemplate, PromptTokens, Embedded>;
using ToWorker = std::variant<Submit, Cancel, Tokenize, Detokenize, Ping, Vault, Drain, Shutdown,
                              Profile, Promote, Settled, ApplyTemplate, Embed>;

// Bytes that encoding takes at most: what to reserve in a channel.
std::size_t encoded_bound(const FromWorker& message);
std::size_t encoded_bound(const ToWorker& message);
std::size_t encoded_bound(const TokenBatch& batch);

// Writes the message into `record` (8-byte aligned, zeroed or not; at least encoded_bound() bytes)
// and returns the bytes used. kResourceExhausted when it does not fit.
Result<std::size_t> encode(const FromWorker& message, std::span<std::byte> record);
Result<std::size_t> encode(const ToWorker& message, std::span<std::byte> record);
// The hot path: no variant to fill, nothing allocated.
Result<std::size_t> encode(const TokenBatch& batch, std::span<std::byte> record);

// Reads a record that nobody else can write meanwhile (the daemon copies records before this; the
// worker trusts the daemon). kCorrupt with the reason when the record breaks any rule or goes in
// the other direction.
Result<FromWorker> decode_from_worker(std::span<const std::byte> record);
Result<ToWorker> decode_to_worker(std::span<const std::byte> record);

// One sequence's share of a TokenBatch, pointing into the record: valid until the record is
// released. `text` is valid UTF-8. Only log-probabilities and parts take memory of their own.
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

// Visits a TokenBatch; allocates for log-probabilities and parts only. `visit` must not throw. Returns false, having visited
// nothing, when the record is another message; kCorrupt (some sequences may have been visited) when
// it breaks a rule.
Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit);

}  // namespace bulkhead::ipc

// The messages of messages.capnp as plain data, so that no other folder includes Cap'n Proto.
//
// decode() trusts nothing: every length, enumerator and nesting level is checked, and text that
// claims to be UTF-8 is validated, before a value reaches the caller. encode() and decode() are
// stateless and thread-safe. Tokens are the hot path and have their own reader and writer (below),
// which neither copy nor allocate.
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

namespace bulkhead::ipc {

inline constexpr std::uint32_t kProtocolVersion = 1;

using TokenId = std::uint32_t;

// ---- worker -> daemon ----

struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  std::uint32_t pid = 0;
  std::string build;
  bool operator==(const Hello&) const = default;
};

struct Progress {
  std::string stage;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool operator==(const Progress&) const = default;
};

struct Optimization {
  std::string name;
  bool active = false;
  std::string reason;
  bool operator==(const Optimization&) const = default;
};

enum class VaultState { kOff, kKept, kImported, kWaiting };

struct VaultReport {
  VaultState state = VaultState::kOff;
  std::string reason;
  std::uint64_t import_microseconds = 0;
  std::uint64_t check_microseconds = 0;
  std::uint64_t adopt_microseconds = 0;
  std::uint64_t pages_adopted = 0;
  std::uint64_t pages_withheld = 0;  // until Settled
  bool operator==(const VaultReport&) const = default;
};

struct Ready {
  std::string model_name;
  std::string architecture;
  std::string device;
  std::string numerics_id;
  std::uint32_t context_limit = 0;
  std::uint32_t vocabulary_size = 0;
  std::uint64_t kv_cache_tokens = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t load_milliseconds = 0;
  bool has_chat_template = false;
  std::string chat_template;
  std::vector<Optimization> optimizations;
  VaultReport vault;
  bool operator==(const Ready&) const = default;
};

// Descriptors that one vault may have.
inline constexpr std::size_t kMostVaultDescriptors = 224;

// Names descriptors that were sent just before: the directory, model files, blocks of device memory.
struct VaultOffer {
  std::uint64_t epoch = 0;
  std::uint32_t files = 0;
  std::uint32_t blocks = 0;
  bool operator==(const VaultOffer&) const = default;
};

struct Accepted {
  RequestId request;
  std::vector<TokenId> prompt_tokens;
  std::uint32_t max_tokens = 0;
  bool operator==(const Accepted&) const = default;
};

enum class FinishReason { kStop, kLength, kCancelled };

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  std::string text;  // held-back rest; whole UTF-8 characters
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint64_t prefill_microseconds = 0;
  std::uint64_t decode_microseconds = 0;
  std::uint32_t cached_tokens = 0;  // of the prompt, taken over from the prefix cache
  bool operator==(const Finished&) const = default;
};

enum class FailureCode {
  kInvalidRequest,
  kContextExceeded,
  kUnsupported,
  kResourceExhausted,
  kInternal
};

struct Failed {
  RequestId request;
  FailureCode code = FailureCode::kInternal;
  std::string message;
  std::string parameter;
  bool operator==(const Failed&) const = default;
};

struct Tokenized {
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Tokenized&) const = default;
};

struct Detokenized {
  RequestId request;
  std::string text;  // bytes; need not be UTF-8
  bool operator==(const Detokenized&) const = default;
};

struct Embedded {
  RequestId request;
  std::vector<float> values;
  bool operator==(const Embedded&) const = default;
};

struct Counter {
  std::string name;
  double value = 0;
  bool operator==(const Counter&) const = default;
};

struct Stats {
  std::uint64_t steps = 0;
  std::uint32_t active_sequences = 0;
  std::uint32_t waiting_sequences = 0;
  std::uint64_t kv_pages_used = 0;
  std::uint64_t kv_pages_total = 0;
  std::vector<Counter> counters;
  bool operator==(const Stats&) const = default;
};

struct Pong {
  std::uint64_t nonce = 0;
  bool operator==(const Pong&) const = default;
};

struct Fatal {
  std::string message;
  bool operator==(const Fatal&) const = default;
};

struct Drained {
  bool operator==(const Drained&) const = default;
};

// ---- daemon -> worker ----

struct ChatMessage {
  std::string role;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
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
};

struct Submit {
  RequestId request;
  std::variant<std::string, std::vector<TokenId>, std::vector<ChatMessage>> prompt;
  Sampling sampling;
  std::uint32_t max_tokens = 0;  // 0: until the context is full
  std::vector<std::string> stop;
  std::int32_t logprobs = -1;
  bool ignore_eos = false;
  std::vector<TokenId> accepted_tokens;
  bool operator==(const Submit&) const = default;
};

struct Cancel {
  RequestId request;
  bool operator==(const Cancel&) const = default;
};

struct Tokenize {
  RequestId request;
  std::string text;
  bool add_special = true;
  bool parse_special = true;
  bool operator==(const Tokenize&) const = default;
};

struct Detokenize {
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Detokenize&) const = default;
};

struct Embed {
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Embed&) const = default;
};

struct Ping {
  std::uint64_t nonce = 0;
  bool operator==(const Ping&) const = default;
};

// The daemon's first message to a worker that was started with --vault.
struct Vault {
  std::uint64_t epoch = 0;  // 0: nothing was left
  std::uint32_t files = 0;
  std::uint32_t blocks = 0;
  bool keep_kv = false;   // false: the predecessor's end casts doubt on its KV pages
  bool replaced = false;  // a new one was asked for, and with it a changed model file
  bool operator==(const Vault&) const = default;
};

struct Drain {
  bool operator==(const Drain&) const = default;
};
struct Shutdown {
  bool operator==(const Shutdown&) const = default;
};
// Time the kernels of one step; the figures come with the Stats that follow.
struct Profile {
  bool operator==(const Profile&) const = default;
};

// To a standby, which was ready and has had no request: serve from now on. It answers with a second
// Ready (and Progress before that, if it takes time); requests come after that one.
struct Promote {
  bool keep_kv = false;  // as in Vault: of a standby that took its memory over
  bool unsettled =
      false;  // the predecessor's last steps may still write to its KV pages: Settled follows
  bool operator==(const Promote&) const = default;
};

// The process that it took over from is gone, and its work on the device has ended.
struct Settled {
  bool operator==(const Settled&) const = default;
};

// ---- tokens, both as plain data and as a view ----

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;
  bool operator==(const TopLogprob&) const = default;
};

struct TokenLogprob {
  float logprob = 0;
  std::string bytes;
  std::vector<TopLogprob> top;
  bool operator==(const TokenLogprob&) const = default;
};

struct SequenceTokens {
  RequestId request;
  std::uint32_t first_index = 0;
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<TokenLogprob> logprobs;  // empty, or one for each token
  bool operator==(const SequenceTokens&) const = default;
};

struct TokenBatch {
  std::uint64_t step = 0;
  std::vector<SequenceTokens> sequences;
  bool operator==(const TokenBatch&) const = default;
};

using FromWorker =
    std::variant<Hello, Progress, Ready, Accepted, TokenBatch, Finished, Failed, Tokenized,
                 Detokenized, Embedded, Stats, Pong, Fatal, Drained, VaultOffer>;
using ToWorker = std::variant<Submit, Cancel, Tokenize, Detokenize, Embed, Ping, Vault, Drain,
                              Shutdown, Profile, Promote, Settled>;

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
// released. `text` is valid UTF-8.
struct SequenceTokensView {
  RequestId request;
  std::uint32_t first_index = 0;
  std::span<const TokenId> tokens;
  std::string_view text;
  std::uint32_t logprob_count = 0;  // 0 or tokens.size(); decode_from_worker() gives them
};

// Visits a TokenBatch without allocating; `visit` must not throw. Returns false, having visited
// nothing, when the record is another message; kCorrupt (some sequences may have been visited) when
// it breaks a rule.
Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit);

}  // namespace bulkhead::ipc

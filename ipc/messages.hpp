// Every message between the daemon and a worker, declared once: a struct with one row of its fields
// (fields.hpp), from which its size, its encoding and its decoding follow (wire.hpp). Both transports
// carry these, one message in one record. Messages about the process are in process_messages.hpp, those
// about generating in generation_messages.hpp; questions that one message answers are here.
//
// A new message is a struct with the next free number, and its name in FromWorker or ToWorker.
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
#include "ipc/generation_messages.hpp"
#include "ipc/process_messages.hpp"

namespace bulkhead::ipc {

// ---- questions, each with the message that answers the question ----

struct Tokenized {
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Tokenized&) const = default;
  BULKHEAD_MESSAGE(7, "tokenized", request, tokens)
};

struct Tokenize {
  using Answer = Tokenized;
  RequestId request;
  std::string text;
  bool add_special = true;    // puts BOS and EOS where the model wants them
  bool parse_special = true;  // reads the text of a special token as that token
  bool operator==(const Tokenize&) const = default;
  BULKHEAD_MESSAGE(16, "tokenize", request, text, add_special, parse_special)
};

struct Detokenized {
  RequestId request;
  std::string text;  // any bytes; they need not be UTF-8
  bool operator==(const Detokenized&) const = default;
  BULKHEAD_MESSAGE(8, "detokenized", request, any_bytes(text))
};

struct Detokenize {
  using Answer = Detokenized;
  RequestId request;
  std::vector<TokenId> tokens;
  bool operator==(const Detokenize&) const = default;
  BULKHEAD_MESSAGE(17, "detokenize", request, tokens)
};

struct AppliedTemplate {
  RequestId request;
  std::string text;                        // the whole prompt
  std::vector<std::string> warnings = {};  // warnings for the client, as in Accepted
  bool operator==(const AppliedTemplate&) const = default;
  BULKHEAD_MESSAGE(27, "applied template", request, text, warnings)
};

// Asks for the prompt that the worker renders from a chat. The worker generates no answer.
struct ApplyTemplate {
  using Answer = AppliedTemplate;
  RequestId request;
  ChatPrompt prompt;
  bool operator==(const ApplyTemplate&) const = default;
  BULKHEAD_MESSAGE(28, "apply template", request, prompt)
};

// The answer can be held to the form.
struct CheckedConstraint {
  RequestId request;
  bool operator==(const CheckedConstraint&) const = default;
  BULKHEAD_MESSAGE(32, "checked constraint", request)
};

// Asks whether an answer can be held to a form; if not, Failed says why. The worker generates no answer.
struct CheckConstraint {
  using Answer = CheckedConstraint;
  RequestId request;
  Constraint constraint;
  bool operator==(const CheckConstraint&) const = default;
  BULKHEAD_MESSAGE(33, "check constraint", request, constraint)
};

// A text's embedding: the model's last hidden states, pooled to one vector, not normalised.
struct Embedded {
  RequestId request;
  std::uint32_t tokens = 0;  // tokens of the input
  std::vector<float> values;
  bool operator==(const Embedded&) const = default;
  BULKHEAD_MESSAGE(30, "embedded", request, tokens, values)
};

struct Embed {
  using Answer = Embedded;
  RequestId request;
  std::variant<std::string, std::vector<TokenId>> input;
  bool operator==(const Embed&) const = default;
  BULKHEAD_MESSAGE(31, "embed", request, input)
};

// ---- all messages ----

// The questions that a worker answers beside its steps. It runs no model for them.
using Question = std::variant<Tokenize, Detokenize, ApplyTemplate, CheckConstraint>;

// What a request can ask of a worker: an answer to generate, or something that one message answers (`Answer`).
using Work = std::variant<Submit, Tokenize, Detokenize, ApplyTemplate, CheckConstraint, Embed>;

using FromWorker = std::variant<Hello, Progress, Ready, Accepted, TokenBatch, Finished, Failed,
                                Tokenized, Detokenized, Stats, Pong, Fatal, Drained, VaultOffer,
                                AppliedTemplate, PromptTokens, Embedded, CheckedConstraint>;
using ToWorker = std::variant<Submit, Cancel, Tokenize, Detokenize, Ping, Vault, Drain, Shutdown,
                              Profile, Promote, Settled, ApplyTemplate, Embed, CheckConstraint>;

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

// Visits a TokenBatch; allocates for log-probabilities and parts only. `visit` must not throw. Returns false, having visited
// nothing, when the record is another message; kCorrupt (some sequences may have been visited) when
// it breaks a rule.
Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit);

}  // namespace bulkhead::ipc

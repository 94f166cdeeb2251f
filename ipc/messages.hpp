// Declares every message between the daemon and a worker once, as a struct with a row of its fields (fields.hpp). Its
// size, encoding and decoding follow from the row (wire.hpp). Both transports carry the same messages, one per
// record. process_messages.hpp has the messages about the process, generation_messages.hpp those about generating;
// this file has the questions that one message answers.
//
// To add a message, write a struct with the next free number, and add its name to FromWorker or ToWorker.
//
// decode() trusts nothing: it checks every length, count, enumerator and text before a value reaches the caller.
// encode() and decode() are stateless and thread-safe. Tokens are the hot path and have their own reader and writer
// (below), which neither copy nor allocate, except for log-probabilities and parts.
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

// ---- questions, each followed by the message that answers it ----

// In which form the answer has the text of each token.
enum class TokenTexts {
  kNone,
  kPieces,      // the bytes that the token stands for
  kVocabulary,  // the token as the vocabulary writes it
};
constexpr TokenTexts last_enumerator(TokenTexts) {
  return TokenTexts::kVocabulary;
}

struct TokenText {
  std::string bytes;  // any bytes; they need not be UTF-8
  bool operator==(const TokenText&) const = default;
  BULKHEAD_FIELDS(any_bytes(bytes))
};

struct Tokenized {
  RequestId request;
  std::vector<TokenId> tokens;
  TokenTexts form = TokenTexts::kNone;  // what was asked for
  std::vector<TokenText> texts = {};    // as many as tokens, unless `form` is kNone
  bool operator==(const Tokenized&) const = default;
  BULKHEAD_MESSAGE(7, "tokenized", request, tokens, form, texts)
};

struct Tokenize {
  using Answer = Tokenized;
  RequestId request;
  std::string text;
  bool add_special = true;    // adds BOS and EOS where the model's vocabulary says so
  bool parse_special = true;  // reads the text of a special token as that token
  TokenTexts texts = TokenTexts::kNone;
  bool operator==(const Tokenize&) const = default;
  BULKHEAD_MESSAGE(16, "tokenize", request, text, add_special, parse_special, texts)
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
  // The worker reads the beginning of an input that does not fit the context, instead of refusing it.
  bool truncate = false;
  bool operator==(const Embed&) const = default;
  BULKHEAD_MESSAGE(31, "embed", request, input, truncate)
};

// How well a document answers a query, by a model that ranks. Larger is better.
struct Ranked {
  RequestId request;
  std::uint32_t tokens = 0;  // tokens that the model read
  float score = 0;
  bool operator==(const Ranked&) const = default;
  BULKHEAD_MESSAGE(34, "ranked", request, tokens, score)
};

struct Rank {
  using Answer = Ranked;
  RequestId request;
  std::string query, document;
  bool operator==(const Rank&) const = default;
  BULKHEAD_MESSAGE(35, "rank", request, query, document)
};

// ---- all messages ----

// The questions that a worker answers beside its steps. It runs no model for them.
using Question = std::variant<Tokenize, Detokenize, ApplyTemplate, CheckConstraint>;

// What a request can ask of a worker: an answer to generate, or something that one message answers (`Answer`).
using Work =
    std::variant<Submit, Tokenize, Detokenize, ApplyTemplate, CheckConstraint, Embed, Rank>;

using FromWorker =
    std::variant<Hello, Progress, Ready, Accepted, TokenBatch, Finished, Failed, Tokenized,
                 Detokenized, Stats, Pong, Fatal, Drained, VaultOffer, AppliedTemplate,
                 PromptTokens, Embedded, CheckedConstraint, Ranked, VaultSlab>;
using ToWorker = std::variant<Submit, Cancel, Tokenize, Detokenize, Ping, Vault, Drain, Shutdown,
                              Profile, Promote, Settled, ApplyTemplate, Embed, CheckConstraint,
                              Rank>;

// Returns the most bytes that encoding takes, which is what to reserve in a channel.
std::size_t encoded_bound(const FromWorker& message);
std::size_t encoded_bound(const ToWorker& message);
std::size_t encoded_bound(const TokenBatch& batch);

// Writes the message into `record` (8-byte aligned, at least encoded_bound() bytes, not necessarily zeroed) and
// returns the number of bytes used. kResourceExhausted if it does not fit.
Result<std::size_t> encode(const FromWorker& message, std::span<std::byte> record);
Result<std::size_t> encode(const ToWorker& message, std::span<std::byte> record);
// The hot path: it fills no variant and allocates nothing.
Result<std::size_t> encode(const TokenBatch& batch, std::span<std::byte> record);

// Decodes a record that nobody else can write meanwhile (the daemon copies records first; the worker trusts the
// daemon). kCorrupt, with the reason, if the record breaks any rule or is a message for the other direction.
Result<FromWorker> decode_from_worker(std::span<const std::byte> record);
Result<ToWorker> decode_to_worker(std::span<const std::byte> record);

// Visits the sequences of a TokenBatch; allocates only for log-probabilities and parts. Exceptions of `visit` pass
// through, and end the visit. Returns false, without a visit, if the record is another message. kCorrupt if it breaks
// a rule; some sequences may have been visited by then.
Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit);

}  // namespace bulkhead::ipc

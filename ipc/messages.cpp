// Encodes and decodes the messages of messages.hpp by the rows of their structs.
#include "ipc/messages.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "config/base/fnv1a.hpp"
#include "ipc/wire_reader.hpp"

namespace bulkhead::ipc {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // lengths are 32-bit numbers
constexpr std::size_t kRecordUnit = 8;

// ---- which message is which ----

template <typename Variant>
struct Kinds;
template <typename... Messages>
struct Kinds<std::variant<Messages...>> {
  static constexpr bool are_distinct() {
    const std::uint32_t kinds[] = {Messages::kKind...};
    for (std::size_t i = 0; i < sizeof...(Messages); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (kinds[i] == kinds[j]) return false;
      }
    }
    return true;
  }
  template <typename Message>
  static constexpr bool has() {
    return ((Message::kKind == Messages::kKind) || ...);
  }
  template <typename Other>
  static constexpr bool has_none_of() {
    return !(Other::template has<Messages>() || ...);
  }
  static std::string layout() {
    return ((std::to_string(Messages::kKind) + " " + std::string(Messages::kName) +
             wire::layout<Messages>()) +
            ...);
  }
  // Reads the message of that kind; returns false if there is none.
  static bool read(std::uint32_t kind, wire::Reader& reader, std::variant<Messages...>& message) {
    return ((kind == Messages::kKind ? (reader.message(message.template emplace<Messages>()), true)
                                     : false) ||
            ...);
  }
};
static_assert(Kinds<FromWorker>::are_distinct() && Kinds<ToWorker>::are_distinct());
static_assert(Kinds<FromWorker>::has_none_of<Kinds<ToWorker>>(),
              "a record that goes the other way is a broken rule");

// ---- encoding ----

template <typename Message>
std::size_t bound_bytes(const Message& message) {
  const std::size_t bytes = sizeof(std::uint32_t) + wire::Sizes::of(message);
  return (bytes + kRecordUnit - 1) / kRecordUnit * kRecordUnit;
}

template <typename Message>
Result<std::size_t> encode_message(const Message& message, std::span<std::byte> record,
                                   wire::Texts texts) {
  const std::size_t bytes = bound_bytes(message);
  if (reinterpret_cast<std::uintptr_t>(record.data()) % kRecordUnit != 0) {
    return Error(ErrorCode::kInvalidArgument, "encode: the record is not 8-byte aligned");
  }
  if (bytes > kMostBytes || record.size() < bytes) {
    return Error(ErrorCode::kResourceExhausted,
                 "encode: the message takes " + std::to_string(bytes) + " bytes, the record has " +
                     std::to_string(record.size()));
  }
  wire::Writer writer(record.data(), texts);
  writer.put(Message::kKind);
  writer.put(message);
  std::fill(writer.at(), record.data() + bytes, std::byte{0});
  return bytes;
}

// ---- decoding ----

// Runs `read` on the record. A broken rule becomes kCorrupt. Exceptions pass through, those of a callback and those
// for lack of memory, because they say nothing about the record.
template <typename T, typename Read>
Result<T> guarded(std::span<const std::byte> record, wire::Trust trust, Read read) {
  if (reinterpret_cast<std::uintptr_t>(record.data()) % kRecordUnit != 0) {
    return Error(ErrorCode::kInvalidArgument, "decode: the record is not 8-byte aligned");
  }
  if (record.empty() || record.size() % kRecordUnit != 0) {
    return Error(ErrorCode::kCorrupt, "message: a record of " + std::to_string(record.size()) +
                                          " bytes is not a whole message");
  }
  wire::Reader reader(record, trust);
  T value{};
  read(reader, value);
  if (!reader.failed()) return value;
  return Error(ErrorCode::kCorrupt, "message: " + reader.failure());
}

template <typename Message>
Result<Message> decode(std::span<const std::byte> record, wire::Trust trust, const char* sender) {
  return guarded<Message>(record, trust, [sender](wire::Reader& reader, Message& message) {
    const std::uint32_t kind = reader.kind();
    if (Kinds<Message>::read(kind, reader, message)) return;
    reader.fail("kind " + std::to_string(kind) + " is none that " + sender + " may send");
  });
}

// A TokenBatch whose sequences are visited one by one.
struct VisitedSequences {
  const std::function<void(const SequenceTokensView&)>* visit = nullptr;
  void read_from(wire::Reader& reader) const {
    SequenceTokensView view;
    reader.for_each(view, *visit);
  }
};
struct VisitedBatch {
  std::uint64_t step = 0;
  VisitedSequences sequences;
  static constexpr std::string_view kName = TokenBatch::kName;
  BULKHEAD_FIELDS(step, sequences)
};
static_assert(VisitedBatch::kFields == TokenBatch::kFields);

}  // namespace

std::uint32_t protocol_version() {
  static const auto version =
      static_cast<std::uint32_t>(fnv1a(Kinds<FromWorker>::layout() + Kinds<ToWorker>::layout()));
  return version;
}

std::string broken_rule_of_tokens(std::uint32_t first_index, std::size_t tokens,
                                  std::size_t logprobs) {
  if (tokens > std::numeric_limits<std::uint32_t>::max() - first_index)
    return "the index of the last token does not fit in 32 bits";
  if (logprobs != 0 && logprobs != tokens) {
    return std::to_string(logprobs) + " log-probabilities for " + std::to_string(tokens) +
           " tokens";
  }
  return {};
}

std::size_t encoded_bound(const FromWorker& message) {
  return std::visit([](const auto& each) { return bound_bytes(each); }, message);
}
std::size_t encoded_bound(const ToWorker& message) {
  return std::visit([](const auto& each) { return bound_bytes(each); }, message);
}
std::size_t encoded_bound(const TokenBatch& batch) {
  return bound_bytes(batch);
}

// Text from the worker must be UTF-8, or the daemon ends the worker; but a stray byte in a model file's metadata
// should not end it. A prompt goes to the worker exactly as the client sent it.
Result<std::size_t> encode(const FromWorker& message, std::span<std::byte> record) {
  return std::visit(
      [&](const auto& each) { return encode_message(each, record, wire::Texts::kRepaired); },
      message);
}
Result<std::size_t> encode(const ToWorker& message, std::span<std::byte> record) {
  return std::visit(
      [&](const auto& each) { return encode_message(each, record, wire::Texts::kExact); }, message);
}
Result<std::size_t> encode(const TokenBatch& batch, std::span<std::byte> record) {
  return encode_message(batch, record, wire::Texts::kRepaired);
}

Result<FromWorker> decode_from_worker(std::span<const std::byte> record) {
  return decode<FromWorker>(record, wire::Trust::kHostile, "a worker");
}
Result<ToWorker> decode_to_worker(std::span<const std::byte> record) {
  return decode<ToWorker>(record, wire::Trust::kTrusted, "the daemon");
}

Result<bool> visit_tokens(std::span<const std::byte> record,
                          const std::function<void(const SequenceTokensView&)>& visit) {
  return guarded<bool>(record, wire::Trust::kHostile, [&](wire::Reader& reader, bool& visited) {
    if (reader.kind() != TokenBatch::kKind) return;
    visited = true;
    VisitedBatch batch;
    batch.sequences.visit = &visit;
    reader.message(batch);
  });
}

}  // namespace bulkhead::ipc

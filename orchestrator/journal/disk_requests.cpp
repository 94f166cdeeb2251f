#include "orchestrator/journal/disk_requests.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

namespace {

constexpr unsigned char kChat = 1, kIncludeUsage = 2, kReturnTokenIds = 4, kKeyName = 8,
                        kTrace = 16;

Error corrupt(std::string what) {
  return Error(ErrorCode::kCorrupt, std::move(what));
}

// Copies the payload to words: ipc decodes from words, but a payload may be at any address.
std::vector<std::uint64_t> aligned(std::string_view payload) {
  std::vector<std::uint64_t> words((payload.size() + 7) / 8, 0);
  if (!payload.empty()) std::memcpy(words.data(), payload.data(), payload.size());
  return words;
}

std::span<const std::byte> bytes_of(const std::vector<std::uint64_t>& words, std::size_t size) {
  return std::as_bytes(std::span(words)).first(size);
}

template <typename Message>
Result<std::string> encode_any(const Message& message) {
  const std::size_t bound = ipc::encoded_bound(message);
  if (bound > kMaxRecordBytes) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{} bytes are too many for a record of the journal", bound));
  }
  std::vector<std::uint64_t> words((bound + 7) / 8, 0);
  BULKHEAD_TRY(std::size_t size, ipc::encode(message, std::as_writable_bytes(std::span(words))));
  return std::string(reinterpret_cast<const char*>(words.data()), size);
}

template <typename Message>
Result<Message> decode_any(std::string_view payload) {
  const std::vector<std::uint64_t> words = aligned(payload);
  BULKHEAD_TRY(ipc::FromWorker message, ipc::decode_from_worker(bytes_of(words, payload.size())));
  auto* wanted = std::get_if<Message>(&message);
  if (wanted == nullptr) return corrupt("a record holds another message than its type says");
  return std::move(*wanted);
}

void put_text(std::string& out, std::string_view text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  for (int i = 0; i < 4; ++i)
    out += static_cast<char>(static_cast<unsigned char>(size >> (8 * i)));
  out += text;
}

// Takes a text from the front of `in`; nothing if the text is cut off.
std::optional<std::string> get_text(std::string_view& in) {
  if (in.size() < 4) return std::nullopt;
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= std::size_t{static_cast<unsigned char>(in[i])} << (8 * i);
  in.remove_prefix(4);
  if (size > in.size()) return std::nullopt;
  std::string text(in.substr(0, size));
  in.remove_prefix(size);
  return text;
}

}  // namespace

Result<std::string> encode_begun(const BegunRequest& request) {
  BULKHEAD_TRY(std::string submit, encode_any(ipc::ToWorker(request.submit)));
  std::string out;
  out += static_cast<char>(
      (request.chat ? kChat : 0) | (request.include_usage ? kIncludeUsage : 0) |
      (request.return_token_ids ? kReturnTokenIds : 0) | (request.key_name.empty() ? 0 : kKeyName) |
      (request.trace.empty() ? 0 : kTrace));
  put_text(out, std::to_string(request.created));
  put_text(out, request.id);
  put_text(out, request.model);
  put_text(out, request.file);
  if (!request.key_name.empty()) put_text(out, request.key_name);
  if (!request.trace.empty()) put_text(out, request.trace);
  out += submit;
  if (out.size() > kMaxRecordBytes)
    return Error(ErrorCode::kResourceExhausted, "the request is too large for the journal");
  return out;
}

Result<BegunRequest> decode_begun(std::string_view payload) {
  BegunRequest request;
  if (payload.empty()) return corrupt("a request's record is empty");
  const auto flags = static_cast<unsigned char>(payload.front());
  payload.remove_prefix(1);
  request.chat = (flags & kChat) != 0;
  request.include_usage = (flags & kIncludeUsage) != 0;
  request.return_token_ids = (flags & kReturnTokenIds) != 0;
  std::optional<std::string> created = get_text(payload), id, model, file;
  if (created) id = get_text(payload);
  if (id) model = get_text(payload);
  if (model) file = get_text(payload);
  // Earlier daemons did not write all of these flags, so their records lack them.
  std::optional<std::string> key_name = "", trace = "";
  if (file && (flags & kKeyName) != 0) key_name = get_text(payload);
  if (key_name && (flags & kTrace) != 0) trace = get_text(payload);
  if (!file || !key_name || !trace) return corrupt("a request's record is cut off");
  request.created = std::strtoll(created->c_str(), nullptr, 10);
  request.id = *std::move(id);
  request.model = *std::move(model);
  request.file = *std::move(file);
  request.key_name = *std::move(key_name);
  request.trace = *std::move(trace);
  if (request.id.empty()) return corrupt("a request's record has no id");
  const std::vector<std::uint64_t> words = aligned(payload);
  BULKHEAD_TRY(ipc::ToWorker message, ipc::decode_to_worker(bytes_of(words, payload.size())));
  auto* submit = std::get_if<ipc::Submit>(&message);
  if (submit == nullptr) return corrupt("a request's record holds no request");
  request.submit = std::move(*submit);
  return request;
}

Result<std::string> encode_message(const ipc::FromWorker& message) {
  return encode_any(message);
}
Result<std::string> encode_tokens(const ipc::TokenBatch& batch) {
  return encode_any(batch);
}

void DiskRequests::add(const JournalRecord& record) {
  last_key = std::max(last_key, record.key);
  if (record.type == RecordType::kDropped) {
    requests_.erase(record.key);
    return;
  }
  const bool known = requests_.contains(record.key);
  if (!known && record.type != RecordType::kBegun) return;  // the record is of a request that was removed
  DiskRequest& request = requests_[record.key];
  Status applied = known && record.type == RecordType::kBegun
                       ? Status(corrupt("it begins a second time"))
                       : apply(request, record);
  if (!applied.ok()) {
    problems.push_back(fmt::format("request {} ({}): {}", record.key, request.begun.id,
                                   applied.error().message()));
    requests_.erase(record.key);
    return;
  }
  request.key = record.key;
  request.last_seconds = record.unix_seconds;
  append_record(request.records, record, salt_);
}

Status DiskRequests::apply(DiskRequest& request, const JournalRecord& record) {
  if (request.over()) return corrupt("it has records after its end");
  switch (record.type) {
    case RecordType::kBegun: {
      BULKHEAD_TRY(request.begun, decode_begun(record.payload));
      return {};
    }
    case RecordType::kWorker:
      if (!request.tokens.empty() && request.worker != record.payload)
        return corrupt("its tokens are of two kinds of worker");
      request.worker = std::string(record.payload);
      return {};
    case RecordType::kAccepted: {
      if (request.accepted) return corrupt("it was accepted twice");
      BULKHEAD_TRY(request.accepted, decode_any<ipc::Accepted>(record.payload));
      return {};
    }
    case RecordType::kTokens: {
      if (!request.accepted) return corrupt("it has tokens, but was not accepted");
      BULKHEAD_TRY(ipc::TokenBatch batch, decode_any<ipc::TokenBatch>(record.payload));
      std::size_t next = 0;
      if (!request.tokens.empty())
        next = request.tokens.back().first_index + request.tokens.back().tokens.size();
      if (batch.sequences.size() != 1 || batch.sequences.front().first_index != next)
        return corrupt(fmt::format("a gap in its tokens at {}", next));
      const ipc::SequenceTokens& sequence = batch.sequences.front();
      if (sequence.tokens.size() > request.accepted->max_tokens - next)
        return corrupt("it has more tokens than it may");
      const bool wanted = request.begun.submit.logprobs >= 0;
      if (sequence.logprobs.size() != (wanted ? sequence.tokens.size() : 0))
        return corrupt("its log-probabilities do not match what was asked");
      request.tokens.push_back(std::move(batch.sequences.front()));
      return {};
    }
    case RecordType::kFinished: {
      if (!request.accepted) return corrupt("it is finished, but was not accepted");
      BULKHEAD_TRY(request.finished, decode_any<ipc::Finished>(record.payload));
      return {};
    }
    case RecordType::kFailed:
      if (record.payload.empty()) return corrupt("it failed without a word");
      request.failed = std::string(record.payload);
      return {};
    case RecordType::kDropped:
      break;
  }
  return {};
}

std::vector<DiskRequest> DiskRequests::take() {
  std::vector<DiskRequest> out;
  for (auto& [key, request] : requests_) {
    if (request.accepted) out.push_back(std::move(request));
  }
  requests_.clear();
  std::ranges::sort(out, {}, &DiskRequest::key);
  return out;
}

}  // namespace bulkhead::orchestrator

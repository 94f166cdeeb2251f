// What a request's records say: from a request to payloads, and from a file's records back to
// requests. No files; the messages are ipc's own encodings, whose decoder trusts nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/messages.hpp"
#include "orchestrator/journal/record.hpp"

namespace bulkhead::orchestrator {

// What was asked, and all that answers repeat of it.
struct BegunRequest {
  std::string id;     // the client's name for it
  std::string model;  // as answers name it
  std::string file;   // as the configuration names it
  std::int64_t created = 0;
  bool chat = false;
  bool include_usage = false;
  bool return_token_ids = false;
  ipc::Submit submit;  // accepted_tokens empty
  std::string key_name =
      {};  // name of the client's key (server.keys), never the key itself; empty: no key
  std::string trace = {};  // its place in a client's trace (TraceContext::record()); empty: none
  bool operator==(const BegunRequest&) const = default;
};

// A request as a file had it.
struct DiskRequest {
  std::uint64_t key = 0;
  BegunRequest begun;
  std::string worker;  // identity; see RecordType::kWorker
  std::optional<ipc::Accepted> accepted;
  std::vector<ipc::SequenceTokens> tokens;  // in order, without gaps
  std::optional<ipc::Finished> finished;
  std::string failed;              // empty: it did not fail
  std::uint32_t last_seconds = 0;  // of its last record
  std::string records;             // all of them, as a file has them
  bool over() const { return finished.has_value() || !failed.empty(); }
};

// Payloads. kResourceExhausted for what no record can hold.
Result<std::string> encode_begun(const BegunRequest& request);
Result<BegunRequest> decode_begun(std::string_view payload);
Result<std::string> encode_message(const ipc::FromWorker& message);
Result<std::string> encode_tokens(const ipc::TokenBatch& batch);

// Takes a file's records one after the other.
class DiskRequests {
 public:
  // `salt`: of the file that DiskRequest::records are for.
  explicit DiskRequests(std::uint32_t salt = 0) : salt_(salt) {}
  // A record that contradicts those before it takes its request out, and `problems` says why.
  void add(const JournalRecord& record);
  // In the order in which they began. Those that no worker had accepted are left out: no client has
  // heard of them.
  std::vector<DiskRequest> take();

  std::vector<std::string> problems;
  std::uint64_t last_key = 0;

 private:
  Status apply(DiskRequest& request, const JournalRecord& record);
  std::uint32_t salt_;
  std::unordered_map<std::uint64_t, DiskRequest> requests_;
};

}  // namespace bulkhead::orchestrator

// The content of a request's records: turns a request into payloads, and a file's records back into requests. It
// opens no files. The messages use ipc's own encodings, whose decoder trusts nothing.
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

// What was asked, and everything of it that answers repeat.
struct BegunRequest {
  std::string id;     // the client's name for it
  std::string model;  // the model's name in answers
  std::string file;   // the model's file as in the configuration
  std::int64_t created = 0;
  bool chat = false;
  bool include_usage = false;
  bool return_token_ids = false;
  ipc::Submit submit;  // accepted_tokens is empty
  std::string key_name =
      {};  // name of the client's key (server.keys), never the key itself; empty: no key
  std::string trace = {};  // the request's place in a client's trace (TraceContext::record()); empty: none
  bool operator==(const BegunRequest&) const = default;
};

// A request as it was in a file.
struct DiskRequest {
  std::uint64_t key = 0;
  BegunRequest begun;
  std::string worker;  // identity; see RecordType::kWorker
  std::optional<ipc::Accepted> accepted;
  std::vector<ipc::SequenceTokens> tokens;  // in order, without gaps
  std::optional<ipc::Finished> finished;
  std::string failed;              // empty: it did not fail
  std::uint32_t last_seconds = 0;  // the time of its last record
  std::string records;             // all of them, in the file's format
  bool over() const { return finished.has_value() || !failed.empty(); }
};

// Encode payloads. kResourceExhausted if a record can't hold it.
Result<std::string> encode_begun(const BegunRequest& request);
Result<BegunRequest> decode_begun(std::string_view payload);
Result<std::string> encode_message(const ipc::FromWorker& message);
Result<std::string> encode_tokens(const ipc::TokenBatch& batch);

// Takes a file's records one after the other.
class DiskRequests {
 public:
  // `salt` is the salt of the file for which DiskRequest::records are.
  explicit DiskRequests(std::uint32_t salt = 0) : salt_(salt) {}
  // If a record contradicts those before it, its request is removed, and `problems` says why.
  void add(const JournalRecord& record);
  // Returns the requests in the order in which they began. Those that no worker had accepted are left out, because no
  // client knows of them.
  std::vector<DiskRequest> take();

  std::vector<std::string> problems;
  std::uint64_t last_key = 0;

 private:
  Status apply(DiskRequest& request, const JournalRecord& record);
  std::uint32_t salt_;
  std::unordered_map<std::uint64_t, DiskRequest> requests_;
};

}  // namespace bulkhead::orchestrator

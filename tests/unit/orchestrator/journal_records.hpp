// Requests' records, and journals' files of them.
#pragma once

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "orchestrator/journal/disk_requests.hpp"
#include "orchestrator/journal/record.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::orchestrator {

class Folder {
 public:
  std::string file() const { return folder_.path() / "journal"; }

 private:
  const test::TemporaryFolder folder_{"journal"};
};

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline BegunRequest begun(const std::string& id) {
  BegunRequest request{id, "shown", "file", 1700000000, true, true, false, {}};
  request.submit.prompt = std::vector<ipc::ChatMessage>{{"user", "hello"}};
  request.submit.sampling.seed = 42;
  request.submit.stop = {"x"};
  request.submit.max_tokens = 9;
  return request;
}

inline std::string tokens(std::uint32_t first, std::vector<ipc::TokenId> ids) {
  ipc::TokenBatch batch;
  batch.sequences.push_back({RequestId{1}, first, std::move(ids), "t", {}});
  return *encode_tokens(batch);
}
inline std::string accepted() {
  return *encode_message(ipc::Accepted{RequestId{1}, {3, 4}, 9});
}

struct Read {
  std::vector<DiskRequest> requests;
  std::vector<std::string> problems;
  JournalEnd end;
};
inline Read read(const std::string& bytes) {
  DiskRequests requests;
  auto end = read_journal(bytes, [&](const JournalRecord& record) { requests.add(record); });
  EXPECT_TRUE(end.ok());
  Read out;
  out.end = *end;
  out.problems = requests.problems;
  out.requests = requests.take();
  return out;
}

inline std::string one_stream() {
  std::string file = journal_header();
  append_record(file, {RecordType::kBegun, 10, 5, *encode_begun(begun("a"))});
  append_record(file, {RecordType::kWorker, 10, 5, "w"});
  append_record(file, {RecordType::kAccepted, 11, 5, accepted()});
  append_record(file, {RecordType::kTokens, 12, 5, tokens(0, {7, 8})});
  append_record(file, {RecordType::kTokens, 13, 5, tokens(2, {9})});
  return file;
}

}  // namespace bulkhead::orchestrator

// Reads a journal on disk. Whatever a crash, a full disk or another program left there, reading must end at the first
// incomplete record, and each request must be consistent.
//
// An input is read twice: unchanged, and with every checksum corrected, so that mutations reach the code behind the
// checksum. BULKHEAD_JOURNAL_CORPUS=DIR writes the corpus anew.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "orchestrator/journal/disk_requests.hpp"
#include "orchestrator/journal/record.hpp"

using namespace bulkhead;
using namespace bulkhead::orchestrator;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Checks that a request's own records give the same request.
void check_reads_again(const DiskRequest& request) {
  const std::string file = journal_header() + request.records;
  DiskRequests again;
  auto end = read_journal(file, [&](const JournalRecord& record) { again.add(record); });
  require(end.ok() && end->damage.empty() && again.problems.empty());
  std::vector<DiskRequest> requests = again.take();
  require(requests.size() == 1);
  require(requests[0].key == request.key && requests[0].begun.id == request.begun.id);
  require(requests[0].tokens.size() == request.tokens.size());
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {  // not ==: a log-probability may be NaN
    require(requests[0].tokens[i].tokens == request.tokens[i].tokens);
    require(requests[0].tokens[i].text == request.tokens[i].text);
  }
  require(requests[0].finished == request.finished && requests[0].failed == request.failed);
}

void check(std::string_view bytes) {
  DiskRequests requests;
  std::size_t records = 0;
  auto end = read_journal(bytes, [&](const JournalRecord& record) {
    ++records;
    requests.add(record);
  });
  if (!end.ok()) return require(!end.error().message().empty());
  require(end->good_bytes <= bytes.size());
  require(end->damage.empty() == (end->good_bytes == bytes.size()));
  std::size_t before_damage = 0;
  auto good = read_journal(bytes.substr(0, end->good_bytes),
                           [&](const JournalRecord&) { ++before_damage; });
  require(good.ok() && good->damage.empty() && before_damage <= records);
  for (const DiskRequest& request : requests.take()) {
    require(request.accepted.has_value() && !request.begun.id.empty());
    std::size_t next = 0;
    for (const ipc::SequenceTokens& sequence : request.tokens) {
      require(sequence.first_index == next);
      next += sequence.tokens.size();
    }
    require(next <= request.accepted->max_tokens);
    check_reads_again(request);
  }
}

std::string with_good_checksums(std::string_view bytes) {
  if (bytes.size() < kJournalHeaderBytes) return std::string(bytes);
  std::string out = journal_header();
  bytes.remove_prefix(kJournalHeaderBytes);
  auto number = [&](std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
    return value;
  };
  while (bytes.size() >= kRecordHeaderBytes) {
    const std::size_t length = std::min<std::size_t>(number(0), bytes.size() - kRecordHeaderBytes);
    append_record(out, {static_cast<RecordType>(number(8)), static_cast<std::uint32_t>(number(12)),
                        number(16), bytes.substr(kRecordHeaderBytes, length)});
    bytes.remove_prefix(kRecordHeaderBytes + length);
  }
  return out;
}

void write_corpus(const std::string& folder) {
  auto write = [&](const char* name, const std::string& bytes) {
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
  };
  BegunRequest begun{"cmpl-1", "model", "file", 1700000000, false, true, true, {}};
  begun.submit.prompt = "Once upon";
  begun.submit.logprobs = 1;
  begun.submit.stop = {"end"};
  std::string file = journal_header();
  auto add = [&](RecordType type, const std::string& payload) {
    append_record(file, {type, 1700000001, 7, payload});
  };
  add(RecordType::kBegun, *encode_begun(begun));
  add(RecordType::kWorker, "file 1@2 llama 256 1000 cpu/f16");
  add(RecordType::kAccepted, *encode_message(ipc::Accepted{RequestId{7}, {1, 2, 3}, 9}));
  ipc::TokenBatch batch;
  batch.sequences.push_back({RequestId{7}, 0, {5}, " a", {{-0.5F, " a", {{5, -0.5F, " a"}}}}});
  add(RecordType::kTokens, *encode_tokens(batch));
  write("begun", file);
  batch.sequences[0].first_index = 1;
  add(RecordType::kTokens, *encode_tokens(batch));
  ipc::Finished finished;
  finished.request = RequestId{7};
  finished.text = "!";
  const std::string unfinished = file;
  add(RecordType::kFinished, *encode_message(finished));
  write("finished", file);
  file = unfinished;
  add(RecordType::kFailed, "data: {}\n\n");
  write("failed", file);
  add(RecordType::kDropped, "");
  write("dropped", file);
  write("torn", unfinished.substr(0, unfinished.size() - 5));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool wrote = [] {
    const char* folder = std::getenv("BULKHEAD_JOURNAL_CORPUS");
    if (folder != nullptr) write_corpus(folder);
    return folder != nullptr;
  }();
  (void)wrote;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check(with_good_checksums(bytes));
  return 0;
}

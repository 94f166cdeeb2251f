// The format of the journal on disk, and its reader. Bytes in, records out: no files, no requests.
//
//   file    "BHJOURN1"  version u32  salt u32       16 bytes, then records to the end
//   record  length u32  checksum u32                of the payload; of all that follows it
//           type u32    time u32                    seconds since 1970
//           key u64                                 the request, within this file
//           payload, `length` bytes
//
// Little-endian, no padding. The checksum is CRC-32C, begun with the file's salt. A file is only ever
// appended to, so what a crash leaves is a good beginning and at most one torn end. What else can spoil
// it (a disk, a hand) costs the records that it touched: behind one that is not whole the reader looks
// for the next that is. The salt is random and told to nobody, so that no client can put bytes into a
// prompt that would be taken for a record then.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

inline constexpr std::string_view kJournalMagic = "BHJOURN1";
inline constexpr std::uint32_t kJournalVersion = 3;  // 2 had no salt, and is read
inline constexpr std::uint32_t kJournalWithoutSalt = 2;
inline constexpr std::size_t kJournalHeaderBytes = 16;
inline constexpr std::size_t kRecordHeaderBytes = 24;
inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

// The numbers are the format's. A request's records are, in this order: begun, worker, accepted,
// then tokens (and worker again, when it changed before the first of them), then finished or
// failed; dropped may come at any time, and ends it.
enum class RecordType : std::uint32_t {
  kBegun = 1,     // what was asked: see disk_requests.hpp
  kWorker = 2,    // identity of model and numerics that the next tokens are made with
  kAccepted = 3,  // ipc::Accepted
  kTokens = 4,    // ipc::TokenBatch of one sequence
  kFinished = 5,  // ipc::Finished
  kFailed = 6,    // what the client is told, as it is told
  kDropped = 7,   // nobody will ask for it any more
};

struct JournalRecord {
  RecordType type = RecordType::kBegun;
  std::uint32_t unix_seconds = 0;
  std::uint64_t key = 0;
  std::string_view payload;
};

std::string journal_header(std::uint32_t salt = 0);
// At most kMaxRecordBytes of payload.
void append_record(std::string& out, const JournalRecord& record, std::uint32_t salt = 0);

struct JournalEnd {
  std::size_t good_bytes = 0;     // up to the first damage, or the end; header included
  std::string damage;             // what was wrong there; empty: nothing
  std::size_t skipped_bytes = 0;  // of damage with whole records behind it
  std::size_t torn_bytes = 0;     // at the end
};

// Calls `visit` for each whole record; payloads point into `bytes`. kUnsupported when this is no
// journal, or one of another version; a file shorter than its header is an empty journal whose
// header was torn.
Result<JournalEnd> read_journal(std::string_view bytes,
                                const std::function<void(const JournalRecord&)>& visit);

std::uint32_t crc32c(std::string_view bytes, std::uint32_t salt = 0);

}  // namespace bulkhead::orchestrator

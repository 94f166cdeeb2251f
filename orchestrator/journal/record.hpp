// The format of the journal on disk, and its reader: bytes in, records out. It opens no files and
// interprets no requests.
//
//   file    "BHJOURN1"  version u32  salt u32       16 bytes, then records to the end
//   record  length u32  checksum u32                length of the payload; checksum of everything that follows it
//           type u32    time u32                    seconds since 1970
//           key u64                                 the request's key within this file
//           payload, `length` bytes
//
// Little-endian, without padding. The checksum is CRC-32C, started with the file's salt. The file is only ever
// appended to, so a crash leaves an intact beginning and at most one torn end. Other damage (a disk error, an edit by
// hand) only costs the records that it touches: after a damaged record the reader looks for the next intact one. The
// salt is random and secret, so no client can put bytes into a prompt that would then be taken for a record.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

inline constexpr std::string_view kJournalMagic = "BHJOURN1";
inline constexpr std::uint32_t kJournalVersion = 3;  // version 2 had no salt; it can be read
inline constexpr std::uint32_t kJournalWithoutSalt = 2;
inline constexpr std::size_t kJournalHeaderBytes = 16;
inline constexpr std::size_t kRecordHeaderBytes = 24;
inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

// The format defines these numbers. A request's records are, in this order: begun, worker, accepted, then tokens (and
// worker again, if it changed before the first of them), then finished or failed. A dropped record may come at any
// time, and ends the request.
enum class RecordType : std::uint32_t {
  kBegun = 1,     // what was asked; see disk_requests.hpp
  kWorker = 2,    // the identity of the model and numerics that make the next tokens
  kAccepted = 3,  // ipc::Accepted
  kTokens = 4,    // ipc::TokenBatch of one sequence
  kFinished = 5,  // ipc::Finished
  kFailed = 6,    // the error as the client gets it
  kDropped = 7,   // nobody will ask for the request any more
};

struct JournalRecord {
  RecordType type = RecordType::kBegun;
  std::uint32_t unix_seconds = 0;
  std::uint64_t key = 0;
  std::string_view payload;
};

std::string journal_header(std::uint32_t salt = 0);
// The payload has at most kMaxRecordBytes.
void append_record(std::string& out, const JournalRecord& record, std::uint32_t salt = 0);

struct JournalEnd {
  std::size_t good_bytes = 0;     // up to the first damage, or to the end; includes the header
  std::string damage;             // what was wrong there; empty: nothing
  std::size_t skipped_bytes = 0;  // damaged bytes with intact records after them
  std::size_t torn_bytes = 0;     // at the end
};

// Calls `visit` for each intact record; payloads point into `bytes`. kUnsupported if this is not a journal, or has
// another version. A file that is shorter than its header counts as an empty journal whose header was torn.
Result<JournalEnd> read_journal(std::string_view bytes,
                                const std::function<void(const JournalRecord&)>& visit);

std::uint32_t crc32c(std::string_view bytes, std::uint32_t salt = 0);

}  // namespace bulkhead::orchestrator

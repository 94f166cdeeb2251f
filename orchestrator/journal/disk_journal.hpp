// The journal's file. A separate thread writes the gathered records, makes them durable, and then notifies the event
// loop. The records of one turn of the loop, and those that come while an earlier write is under way, become one
// write and one fdatasync (group commit). So the file's speed determines how long a resumable stream's tokens wait,
// but not how many streams there can be. Streams that are not resumable don't use the journal.
//
// Only the owner can read the file (0600), because it holds prompts and answers as plain text. It is locked against a
// second daemon. open() reads it, skips damaged parts, and rewrites it with the records that are still wanted. The
// journal also rewrites it when it exceeds `compact_at_bytes` and twice the wanted bytes of the last rewrite. The new
// file is written beside it as PATH.new and renamed when it is durable, so a crash at any point leaves one whole
// journal. A damaged file is kept as PATH.damaged.
//
// If the file can't be written (a full disk), problem() says so, and callers continue as if it had been written:
// streams then survive their workers, but not the daemon. After a second, and then at growing intervals, the journal
// tries again by rewriting everything that is wanted; if that works, everything is durable again. If the file was
// deleted, or if another file has its name, the journal notices that at the next write, or within a few seconds, and
// rewrites it as well; it keeps the other file as PATH.other.
//
// Call everything from the event loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "orchestrator/event_loop.hpp"
#include "orchestrator/journal/disk_requests.hpp"

namespace bulkhead::orchestrator {

class DiskJournal {
 public:
  struct Options {
    std::string path;
    std::size_t compact_at_bytes = std::size_t{64} << 20;
  };
  struct Opened {
    std::unique_ptr<DiskJournal> journal;
    std::vector<DiskRequest> requests;  // the file's requests; call drop() for those that nobody resumes
  };
  // Creates the file if it does not exist. kUnavailable: another daemon uses it. kUnsupported: it is not a journal.
  static Result<Opened> open(EventLoop& loop, Options options);
  // Writes what has been gathered, but waits only some seconds for a disk that hangs. Callbacks that are still due
  // are not called.
  ~DiskJournal();

  // Returns a key that no other request in the file has.
  std::uint64_t new_key();
  // Appends a record. `durable` (may be empty) is called in a later turn, in the order of the calls, when this record
  // and all before it are on disk.
  void append(std::uint64_t key, RecordType type, std::string_view payload,
              std::function<void()> durable = nullptr);
  // The records with this key are no longer needed.
  void drop(std::uint64_t key);

  bool failed() const { return !problem().empty(); }
  const std::string& problem() const;  // why the file can't be written; empty: it can

  struct Figures {
    std::uint64_t commits = 0;  // writes, each with an fdatasync
    std::uint64_t records = 0;
    std::uint64_t file_bytes = 0;
    std::uint64_t compactions = 0;
    std::uint64_t commit_microseconds = 0;  // time spent in commits
    std::uint64_t recovered_requests = 0;   // requests that an earlier daemon left unfinished
    std::uint64_t torn_bytes = 0;           // bytes cut off at the file's end when it was opened
    std::uint64_t damaged_bytes = 0;        // bytes skipped in its middle at that time
    std::uint64_t failures = 0;             // writes that failed
    std::uint64_t recoveries = 0;           // times that it could be written again

    double average_commit_seconds() const {
      return commits == 0
                 ? 0
                 : static_cast<double>(commit_microseconds) / 1e6 / static_cast<double>(commits);
    }
  };
  Figures figures() const;

 private:
  struct Impl;
  explicit DiskJournal(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace bulkhead::orchestrator

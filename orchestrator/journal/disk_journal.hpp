// The journal's file: records are gathered, written and made durable by a thread of its own, and
// the event loop is told when they are. What one turn of the loop gathers, and what comes while an
// earlier write is under way, is one write and one fdatasync (group commit), so the file's speed
// bounds how long a resumable stream's tokens wait and never how many streams there are; streams
// that are not resumable do not come here.
//
// The file is readable by its owner alone (0600): it holds prompts and answers as plain text. It is
// locked against a second daemon. At open() it is read, over what is damaged in it, and written anew
// with what is still wanted; so it is again when it has grown past `compact_at_bytes` and past twice
// what was wanted the last time. The new file is written beside it as PATH.new and takes its name when
// it is durable: a crash at any point leaves one whole journal. A file that was damaged is kept as
// PATH.damaged.
//
// When the file can't be written (a full disk), problem() says so; callers go on as if it had been
// written: streams survive their workers then, not the daemon. It is tried again from a second later
// on, ever more slowly, by writing all that is wanted anew, and then everything is durable again. A file that
// was deleted, or whose name another one has, is noticed at the next write, or within a few
// seconds, and written anew as well; the other one is kept as PATH.other.
//
// All calls from the event loop's thread.
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
    std::vector<DiskRequest> requests;  // what the file had; drop() those that nobody wants
  };
  // Creates the file if it is not there. kUnavailable when another daemon has it, kUnsupported when
  // it is something else.
  static Result<Opened> open(EventLoop& loop, Options options);
  // Writes what has been gathered, but waits no longer than some seconds for a disk that hangs.
  // Callbacks that are still due are not called.
  ~DiskJournal();

  // A request that nothing else in the file has.
  std::uint64_t new_key();
  // `durable` (may be empty) is called in a later turn, in the order of the calls, when this record
  // and all before it are on disk.
  void append(std::uint64_t key, RecordType type, std::string_view payload,
              std::function<void()> durable = nullptr);
  // Its records are not wanted any more.
  void drop(std::uint64_t key);

  bool failed() const { return !problem().empty(); }
  const std::string& problem() const;  // why the file can't be written; empty: it can

  struct Figures {
    std::uint64_t commits = 0;  // writes with an fdatasync each
    std::uint64_t records = 0;
    std::uint64_t file_bytes = 0;
    std::uint64_t compactions = 0;
    std::uint64_t commit_microseconds = 0;  // spent in them
    std::uint64_t recovered_requests = 0;   // left unfinished by an earlier daemon
    std::uint64_t torn_bytes = 0;           // at the file's end when it was opened, and cut off
    std::uint64_t damaged_bytes = 0;        // in its middle then, and left out
    std::uint64_t failures = 0;             // writes that failed
    std::uint64_t recoveries = 0;           // times it could be written again

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

// Writes lines to a descriptor from a thread of its own, so that nobody who reads them can hold up
// the writer: a full pipe, a stopped terminal or a slow disk costs lines, which are counted, and never
// time.
//
// The queue is bounded. While it is full new lines are dropped; when there is room again a line says
// how many were. A reader that is gone (EPIPE) or a file that takes nothing (ENOSPC, EFBIG) costs the
// lines of that time, too.
//
// The thread may be inside write(2) for ever, so it is never joined: it owns what it needs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace bulkhead {

class LineWriter {
 public:
  static constexpr std::size_t kQueueBytes = std::size_t{1} << 20;

  struct Figures {
    std::uint64_t lines = 0;    // given to put()
    std::uint64_t dropped = 0;  // of these, never written
  };
  // `notice`: the line that tells of so many dropped ones, with its end; may be empty. `descriptor`
  // stays the caller's and open.
  explicit LineWriter(int descriptor,
                      std::function<std::string(std::uint64_t dropped)> notice = nullptr,
                      std::size_t queue_bytes = kQueueBytes);

  // Takes whole lines with their ends; never waits for the descriptor. Any thread.
  void put(std::string_view lines);
  // Waits until what was put before has been written or dropped; false when that took too long.
  bool flush(std::chrono::milliseconds patience);
  Figures figures() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace bulkhead

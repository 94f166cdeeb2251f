// Writes lines to a descriptor from its own thread, so that a slow reader cannot hold up the program: a full pipe, a
// stopped terminal or a slow disk costs lines, which are counted, and never time.
//
// The queue is bounded. While it is full, new lines are dropped. When there is room again, a line says how many were
// dropped. Lines are also lost while the reader is gone (EPIPE), the file cannot grow (ENOSPC, EFBIG), or there is no
// memory for them.
//
// The thread may hang in write(2) for ever, so nobody joins it: it owns everything that it needs.
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
    std::uint64_t dropped = 0;  // how many of these were never written
  };
  // `notice` makes the line that reports a number of dropped lines, with its line end; it may be empty. The caller
  // keeps `descriptor` and leaves it open.
  explicit LineWriter(int descriptor,
                      std::function<std::string(std::uint64_t dropped)> notice = nullptr,
                      std::size_t queue_bytes = kQueueBytes);

  // Queues whole lines with their line ends. Never waits for the descriptor. Any thread.
  void put(std::string_view lines);
  // Waits until all earlier lines have been written or dropped. Returns false if `patience` ran out first.
  bool flush(std::chrono::milliseconds patience);
  Figures figures() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace bulkhead

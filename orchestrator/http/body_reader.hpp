// Parses large bodies in a thread, because the parser takes 100 ms and more for a body of 16 MiB, and the event loop
// would serve nobody meanwhile. The thread parses one body at a time, so that all bodies together use one core and
// the memory of one parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <unordered_map>

#include "orchestrator/event_loop.hpp"
#include "orchestrator/http/openai.hpp"
#include "orchestrator/mailbox.hpp"
#include "orchestrator/supervisor/task_thread.hpp"

namespace bulkhead::orchestrator {

class BodyReader {
 public:
  // The event loop parses bodies up to this size itself. Most take a few milliseconds; what takes longest is a body of
  // many small values.
  static constexpr std::size_t kLarge = std::size_t{256} << 10;
  // The same for protocols that are translated into OpenAI's: such a body is parsed three times, because it is
  // checked, read in the order of its members, and read again as a chat.
  static constexpr std::size_t kLargeToTranslate = std::size_t{16} << 10;

  explicit BodyReader(EventLoop& loop);
  // Waits for the body that the thread is parsing, and drops the others.
  ~BodyReader();
  BodyReader(const BodyReader&) = delete;
  BodyReader& operator=(const BodyReader&) = delete;

  // Calls `read` in the thread, then `done` in a turn of the event loop. `read` must not throw. Only the event loop's
  // thread copies and destroys `done`, so data that both use must belong to `done`.
  void read(std::function<void()> read, std::function<void()> done);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<TaskThread> thread_ = std::make_shared<TaskThread>();
  void look_again();

  Timer again_;  // runs while a body waits, because the system may have refused a thread
  std::unordered_map<std::uint64_t, std::function<void()>> waiting_;
  std::uint64_t last_ = 0;
};

// Returns the refusal of a request whose parser ended with this exception. Logs the exception, unless there was no
// memory.
ApiError why_not_read(const std::exception_ptr& exception);

// Returns how many bytes of memory to count for the parser of a body: for its texts, and for as many values of arrays
// as the body can have. Members of objects take up to three times as much as values of arrays. The difference is not
// counted: it is some 64 MiB at most, because one body is parsed at a time. Bodies of up to kLarge are not counted
// either.
std::size_t bytes_of_parser(std::size_t body);

}  // namespace bulkhead::orchestrator

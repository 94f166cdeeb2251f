#include "config/base/line_writer.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

#include "config/base/quiet_thread.hpp"

namespace bulkhead {

namespace {

constexpr std::size_t kSliceBytes = 64 * 1024;  // per turn of the thread

std::uint64_t lines_in(std::string_view bytes) {
  return static_cast<std::uint64_t>(std::ranges::count(bytes, '\n'));
}

// Returns how many of the bytes the descriptor took. The descriptor may be non-blocking (O_NONBLOCK belongs to the
// open file, and so to everybody who shares it).
std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t got = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (got > 0) {
      written += static_cast<std::size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      pollfd item{fd, POLLOUT, 0};
      (void)::poll(&item, 1, -1);
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  return written;
}

}  // namespace

struct LineWriter::Shared {
  Shared(int the_fd, std::function<std::string(std::uint64_t)> the_notice, std::size_t the_bound)
      : fd(the_fd), notice(std::move(the_notice)), bound(the_bound) {}

  // Allocates nothing, so it goes on when there is no memory.
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return !queue.empty(); });
      std::size_t size = std::min(queue.size(), kSliceBytes);
      if (queue.size() > kSliceBytes) {  // whole lines, if there is one
        const std::size_t end = queue.rfind('\n', kSliceBytes - 1);
        if (end != std::string::npos) size = end + 1;
      }
      std::copy_n(queue.begin(), size, slice.begin());
      queue.erase(0, size);
      writing = true;
      lock.unlock();
      const std::size_t written = write_all(fd, std::string_view(slice.data(), size));
      lock.lock();
      writing = false;
      const std::uint64_t lost = lines_in(std::string_view(slice.data(), size).substr(written));
      figures.dropped += lost;
      untold += lost;
      if (queue.empty()) idle.notify_all();
    }
  }

  const int fd;
  const std::function<std::string(std::uint64_t)> notice;
  const std::size_t bound;
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::string queue;  // whole lines, except that a long line may have been written in part
  std::array<char, kSliceBytes> slice;  // what is being written; only the thread uses it
  bool writing = false;                 // a slice has left the queue and is being written
  std::uint64_t untold = 0;             // dropped lines that no line has reported yet
  Figures figures;
};

LineWriter::LineWriter(int descriptor, std::function<std::string(std::uint64_t)> notice,
                       std::size_t queue_bytes)
    : shared_(std::make_shared<Shared>(descriptor, std::move(notice), queue_bytes)) {
  quiet_thread([shared = shared_] { shared->run(); }).detach();
}

void LineWriter::put(std::string_view lines) {
  if (lines.empty()) return;
  const std::uint64_t count = lines_in(lines);
  {
    std::lock_guard lock(shared_->mutex);
    shared_->figures.lines += count;
    if (shared_->queue.size() + lines.size() > shared_->bound) {
      shared_->figures.dropped += count;
      shared_->untold += count;
      return;
    }
    try {
      if (shared_->untold > 0 && shared_->notice) {
        shared_->queue += shared_->notice(shared_->untold);
        shared_->untold = 0;
      }
      shared_->queue += lines;
    } catch (const std::bad_alloc&) {  // the notice may be in the queue all the same
      shared_->figures.dropped += count;
      shared_->untold += count;
    }
  }
  shared_->wake.notify_one();
}

bool LineWriter::flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(shared_->mutex);
  return shared_->idle.wait_for(lock, patience,
                                [this] { return shared_->queue.empty() && !shared_->writing; });
}

LineWriter::Figures LineWriter::figures() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->figures;
}

}  // namespace bulkhead

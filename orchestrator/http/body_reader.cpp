#include "orchestrator/http/body_reader.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

#include "config/base/log.hpp"
#include "orchestrator/http/errors.hpp"
#include "orchestrator/memory_reserve.hpp"

namespace bulkhead::orchestrator {

struct BodyReader::Shared {
  std::mutex mutex;
  std::condition_variable idle;
  bool busy = false;
  bool over = false;  // the reader is gone
};

BodyReader::BodyReader(EventLoop& loop)
    : shared_(std::make_shared<Shared>()),
      mailbox_(std::make_shared<Mailbox>(loop)),
      again_(loop) {}

BodyReader::~BodyReader() {
  mailbox_->close();
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->idle.wait(lock, [this] { return !shared_->busy; });
}

void BodyReader::read(std::function<void()> read, std::function<void()> done) {
  const std::uint64_t number = ++last_;
  auto task = [this, number, read = std::move(read), shared = shared_, mailbox = mailbox_] {
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->over) return;
      shared->busy = true;
    }
    read();
    mailbox->put([this, number] {
      const std::function<void()> then = std::move(waiting_.extract(number).mapped());
      then();
    });
    const std::lock_guard lock(shared->mutex);
    shared->busy = false;
    shared->idle.notify_all();
  };
  waiting_.emplace(number, std::move(done));
  try {
    thread_->add(std::move(task));
  } catch (const std::exception&) {  // there is no memory; whoever called this says so
    waiting_.erase(number);
    throw;
  }
  look_again();
}

void BodyReader::look_again() {
  constexpr std::chrono::milliseconds kPause{100};
  if (waiting_.empty() || again_.running()) return;
  again_.start(kPause, [this] {
    thread_->go_on();
    look_again();
  });
}

ApiError why_not_read(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    MemoryReserve::refill();
    return api_error(kOutOfMemory, "The server has no memory to read this request now.");
  } catch (const std::exception& error) {
    spdlog::error("a request's body is not read because of an exception: {}", error.what());
    return to_api_error({ipc::FailureCode::kInternal,
                         "The server failed to read this request; its log says why.", ""});
  }
}

std::size_t bytes_of_parser(std::size_t body) {
  if (body <= BodyReader::kLarge) return 0;
  constexpr std::size_t kBytesOfValue = 32;  // 16, in a vector that doubles its size
  // The shortest value is a digit and a comma.
  return body + kBytesOfValue * std::min(body / 2, kMaxJsonValues);
}

}  // namespace bulkhead::orchestrator

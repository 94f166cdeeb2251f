#include "worker/sandbox/in_child.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "config/base/unique_fd.hpp"

namespace bulkhead::worker {
namespace {

const std::string kDone = "done:";  // a child's message for success begins with it

}  // namespace

Result<std::string> in_child(const std::function<Result<std::string>()>& run, Reaps reaps) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error(ErrorCode::kInternal, "pipe", errno);
  UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno_error(ErrorCode::kInternal, "fork", errno);
  if (child == 0) {
    const Result<std::string> done = run();
    const std::string words = done.ok() ? kDone + *done : done.error().message();
    (void)!::write(writing.get(), words.data(), words.size());
    ::_exit(0);
  }
  writing.reset();
  std::string words;
  char piece[256];
  for (ssize_t got; (got = ::read(reading.get(), piece, sizeof piece)) > 0;)
    words.append(piece, static_cast<std::size_t>(got));
  while (reaps == Reaps::kCaller && ::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (words.starts_with(kDone)) return words.substr(kDone.size());
  return Error(ErrorCode::kInternal, words.empty() ? "a child process that tried it died" : words);
}

}  // namespace bulkhead::worker

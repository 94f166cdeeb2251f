#include "orchestrator/supervisor/program_output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/spawn.hpp"

namespace bulkhead::orchestrator {

namespace {

// Reads `fd` to its end.
Result<std::string> read_until(int fd, std::chrono::steady_clock::time_point end,
                               std::size_t most) {
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd item{fd, POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : ::poll(&item, 1, static_cast<int>(left.count()));
    if (ready == 0)
      return Error(ErrorCode::kDeadlineExceeded, "it has not ended; a driver may hang");
    if (ready < 0 && errno == EINTR) continue;
    char bytes[4096];
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(ErrorCode::kInternal, "read", errno);
    if (got == 0) return text;
    text.append(bytes, static_cast<std::size_t>(got));
    if (text.size() > most) return Error(ErrorCode::kCorrupt, "it prints too much");
  }
}

// Waits up to a second for the child's end, and reaps it. Returns false if the child still runs.
bool ends_soon(pid_t pid) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Waits at most a second for the end of a killed child, because the kernel may hold the child in a driver's call or at
// a mount that hangs. Returns false if the child has not ended.
bool kill_and_reap(pid_t pid) {
  ::kill(pid, SIGKILL);
  return ends_soon(pid);
}

}  // namespace

Result<std::string> output_of(const std::string& program, std::vector<std::string> words,
                              const ProgramLimits& limits, pid_t* left_behind) {
  if (left_behind != nullptr) *left_behind = 0;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "pipe", errno);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  FileActions actions;
  posix_spawn_file_actions_addopen(&actions.value, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions.value, theirs.get(), STDOUT_FILENO);
  if (limits.errors == ProgramLimits::Errors::kDropped)
    posix_spawn_file_actions_addopen(&actions.value, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions.value, STDERR_FILENO + 1);
  BULKHEAD_TRY(const pid_t pid, spawn(program, std::move(words), actions));
  theirs.reset();
  const Result<std::string> text =
      read_until(ours.get(), std::chrono::steady_clock::now() + limits.patience, limits.most_bytes);
  const bool ended = (text.ok() && ends_soon(pid)) || kill_and_reap(pid);
  if (!ended && left_behind != nullptr) *left_behind = pid;
  return text;
}

void wait_for_end(pid_t left_behind) {
  int status = 0;
  while (::waitpid(left_behind, &status, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace bulkhead::orchestrator

// One worker process: how it is started, what it inherits, how its end is noticed and told in
// words. Knows nothing of messages.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/channel.hpp"

namespace bulkhead::orchestrator {

// A process's end, by the kernel's word: siginfo_t's code and status.
struct Exit {
  int code = 0;    // CLD_EXITED, CLD_KILLED or CLD_DUMPED
  int status = 0;  // the exit code, or the signal

  bool exited_with(int exit_code) const;
  bool killed_by(int signal) const;
};

// What the kernel says of a running process.
struct Activity {
  char state = '?';                       // as in /proc/PID/stat: R, S, D, T (stopped), Z
  std::chrono::milliseconds computed{0};  // all its threads, since its start
  std::chrono::milliseconds starved{0};   // all that it has now: ready to run, with no CPU for them
  std::chrono::steady_clock::time_point at{};

  // Between the two, half of the time or more: it is slow because the machine is busy.
  static bool was_starved(const Activity& before, const Activity& after) {
    return 2 * (after.starved - before.starved) >= after.at - before.at;
  }
  bool stopped() const { return state == 'T' || state == 't'; }
};

// A child that has been started. Destroying it kills and reaps a child that still runs, so no
// process is left behind.
class Process {
 public:
  // Starts `program` with `arguments` (less argv[0] and the channel's descriptors, which are
  // added). What the child prints goes to `log_fd`. It has descriptors
  // 0, 1 and 2, its end of the socket and the region; nothing else of the daemon's: not its signal
  // mask, not its process group (a Ctrl-C on the daemon's terminal must not reach it), not
  // BULKHEAD_API_KEY. Call from the thread that lives as long as the daemon: PR_SET_PDEATHSIG,
  // which the worker asks for, fires when the spawning thread ends.
  static Result<Process> start(const std::string& program,
                               const std::vector<std::string>& arguments, ipc::ChannelPair& channel,
                               int log_fd = 2);

  Process() = default;
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process() { end(); }

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int exit_fd() const { return pidfd_.get(); }
  // Of two of its threads, but not the first: each is readable once its thread has ended. Of a process
  // that is killed all threads end within a millisecond, and the last of them then takes its memory
  // back; of two, one is not the last. Fewer where it has fewer; none where the kernel (before 6.9) has
  // no such descriptors. (Of the first thread the kernel tells the end only with the process's.)
  std::vector<UniqueFd> thread_exit_fds() const;
  // Whether none of its threads will run another instruction, and what ended them: all are on their
  // way out in the kernel, which takes back what they held. Empty: some may, or it is not to be told.
  std::optional<Exit> stopped() const;
  std::optional<Activity> activity() const;
  // How many it has; 0: not to be told.
  std::size_t threads() const;
  void kill();
  bool has_ended() const;
  // How the process ended; empty while it runs. Reaps it.
  std::optional<Exit> ended();
  // It does not end, though it was killed: destroying this does not wait for it. Until ended() has
  // reaped it, or this process ends, the kernel keeps what is left of it.
  void let_go() { waited_for_ = false; }

 private:
  void end();

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool waited_for_ = true;
};

// From siginfo_t's code and status: "killed by signal 9 (SIGKILL)", "exited with code 3".
std::string describe_exit(int code, int status);

}  // namespace bulkhead::orchestrator

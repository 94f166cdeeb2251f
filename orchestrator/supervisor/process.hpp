// One worker process: how it is started, what it inherits, how its end is noticed, and the words for its end.
// Nothing here depends on messages.
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

struct ChildDescriptors;

// How the kernel describes a process's end: siginfo_t's code and status.
struct Exit {
  int code = 0;    // CLD_EXITED, CLD_KILLED or CLD_DUMPED
  int status = 0;  // the exit code, or the signal

  bool exited_with(int exit_code) const;
  bool killed_by(int signal) const;
};

// How the kernel describes a running process.
struct Activity {
  char state = '?';                       // as in /proc/PID/stat: R, S, D, T (stopped), Z
  std::chrono::milliseconds computed{0};  // CPU time of all its threads, since its start
  std::chrono::milliseconds starved{0};   // of all its present threads: ready to run, but without a CPU
  std::chrono::steady_clock::time_point at{};

  // Returns whether threads waited for a CPU during half of the time between the two, or more: the process is
  // then slow because the machine is busy.
  static bool was_starved(const Activity& before, const Activity& after) {
    return 2 * (after.starved - before.starved) >= after.at - before.at;
  }
  bool stopped() const { return state == 'T' || state == 't'; }
};

// A child that has been started. Its destructor kills and reaps a child that still runs, so that no process is left
// behind.
class Process {
 public:
  // Starts `program` with `arguments` (argv[0] and the channel's descriptors are added). What the child prints goes
  // to `log_fd`. The child has descriptors 0, 1 and 2, its end of the socket, and the region. It gets nothing else of
  // the daemon's: neither the signal mask, nor the process group (a Ctrl-C on the daemon's terminal must not reach
  // it), nor BULKHEAD_API_KEY. Call it from a thread that lives as long as the daemon: PR_SET_PDEATHSIG, which the
  // worker requests, fires when the spawning thread ends.
  // With `own_pids` the child runs in a namespace of process ids of its own, if that can be made. The child's argument
  // --pid-namespace says whether it does.
  static Result<Process> start(const std::string& program, std::vector<std::string> arguments,
                               ipc::ChannelPair& channel, int log_fd = 2, bool own_pids = false);

  Process() = default;
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process() { end(); }

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int exit_fd() const { return pidfd_.get(); }
  // Returns descriptors for two of its threads other than the first; each becomes readable once its thread has ended.
  // When a process is killed, all its threads end within a millisecond, and the last of them then reclaims its
  // memory; of two threads, one is not the last. Returns fewer if the process has fewer threads; none if the kernel
  // (before 6.9) has no such descriptors. (For the first thread the kernel reports the end only with the process's
  // end.)
  std::vector<UniqueFd> thread_exit_fds() const;
  // Returns what ended the process, once none of its threads will run another instruction: all are exiting in the
  // kernel, which reclaims what they held. Empty: some may still run, or it can't be determined.
  std::optional<Exit> stopped() const;
  std::optional<Activity> activity() const;
  // Returns the number of its threads; 0: unknown.
  std::size_t threads() const;
  void kill();
  bool has_ended() const;
  // Returns how the process ended; empty while it runs. Reaps it.
  std::optional<Exit> ended();
  // The process does not end although it was killed: the destructor will not wait for it. Until ended() has reaped
  // it, or this process ends, the kernel keeps what is left of it.
  void let_go() { waited_for_ = false; }
  // Once the process has been reaped: returns the first process of its namespace, which ends now, and which the caller
  // reaps. Empty: there is none.
  Process take_first_of_namespace();

 private:
  void end();
  Status spawn_child(const std::string& program, std::vector<std::string> words,
                     const ChildDescriptors& descriptors, bool own_pids);

  pid_t pid_ = -1;
  pid_t first_ = -1;  // the first process of its namespace
  UniqueFd pidfd_;
  bool waited_for_ = true;
};

// Describes siginfo_t's code and status: "killed by signal 9 (SIGKILL)", "exited with code 3".
std::string describe_exit(int code, int status);

}  // namespace bulkhead::orchestrator

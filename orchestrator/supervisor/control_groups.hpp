// Puts each worker process into its own control group (cgroup v2), with limits on its memory and on its processes and
// threads. This needs a group that a service manager has delegated to the daemon (config/base/control_group.hpp). In
// that group the daemon makes:
//
//     daemon          the daemon itself: the kernel enables controllers below a group only if no process is in the
//                     group itself
//     worker-NAME-N   one worker process: memory.max, memory.oom.group, pids.max
//
// All calls read and write kernel memory, not a disk. The slowest is moving a process into a group (5 to 10 ms with
// Linux 6.18, because the kernel waits until no process is between fork and its group); the others take less than 0.1
// ms.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "config/base/control_group.hpp"

namespace bulkhead::orchestrator {

// What /v1/workers shows of a process's group.
struct GroupReport {
  bool active = false;
  std::string detail;  // which limits are in force, or why none is
};

// The functions that make and remove groups. Tests replace them with functions that do the kernel's part with plain
// files.
struct GroupFolders {
  bool (*make)(const std::string& folder);    // false: failed, and errno says why
  bool (*remove)(const std::string& folder);  // the same; removes the folder's files, too
  static GroupFolders of_kernel();
};

// The group of one worker process, or the reason why the process has none. The destructor removes the group: destroy
// it after the process has been reaped. If the kernel still counts a process there, a thread tries again for some
// seconds. One thread at a time.
class WorkerGroup {
 public:
  WorkerGroup() = default;
  WorkerGroup(WorkerGroup&& other) noexcept { *this = std::move(other); }
  WorkerGroup& operator=(WorkerGroup&& other) noexcept;
  ~WorkerGroup() { remove(); }

  // Moves the process into the group. If that fails, the process stays where it is, and report() says why. Call it
  // right after the process was started, before it can have read anything that is not trusted.
  void join(pid_t pid);
  const GroupReport& report() const { return report_; }
  // Returns how many processes in the group the kernel's OOM killer ended, because the group or the machine lacked
  // memory. Empty: the process is in no group, or the group has no such count.
  std::optional<std::uint64_t> oom_kills() const { return event("oom_kill"); }
  // Returns whether the group has reached its own memory limit, with nothing left to reclaim.
  bool reached_memory_limit() const { return event("oom").value_or(0) > 0; }

 private:
  friend class ControlGroups;
  std::optional<std::uint64_t> event(const char* key) const;  // from memory.events
  void remove();

  std::string folder_;  // empty: there is no group
  GroupFolders folders_ = GroupFolders::of_kernel();
  GroupReport report_{false, "the daemon made no group"};
};

// The groups of all workers of this daemon. Only for the event loop's thread.
class ControlGroups {
 public:
  // Makes no groups; `why_not` is what report() says.
  explicit ControlGroups(std::string why_not);
  // Takes the delegated group, if there is one: moves this process into the group `daemon` and enables the
  // controllers. Removes empty groups of workers that an earlier daemon left. If a step fails, it undoes the earlier
  // steps; there are then no groups, and the log says why. Call it before the first worker is started.
  explicit ControlGroups(const ControlGroupPlaces& places,
                         GroupFolders folders = GroupFolders::of_kernel());
  ControlGroups(const ControlGroups&) = delete;
  ControlGroups& operator=(const ControlGroups&) = delete;
  // Disables the controllers again, so that a service manager can put a process into the delegated group even if a
  // worker never ends.
  ~ControlGroups();

  // Returns whether workers get groups.
  bool active() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  // Makes a group for a process of the worker `name`. `memory_bytes` limits its memory, including the page cache of
  // files that it reads; 0: no limit. If that fails, the WorkerGroup is empty and says why.
  WorkerGroup make(const std::string& name, std::uint64_t memory_bytes);

  // Returns the limit on processes and threads in a worker's group, for a machine with this many CPUs. Drivers make
  // threads by the number of CPUs (lavapipe for at most 32 of them), and a worker makes a few more. At most
  // kMostThreads (worker_limits.hpp).
  static std::uint64_t most_tasks(unsigned cpus);

 private:
  std::string take();  // returns why it failed; empty: it succeeded
  std::string set_limits(const std::string& folder, std::uint64_t memory_bytes,
                         GroupReport& report) const;

  std::string why_not_;
  GroupFolders folders_ = GroupFolders::of_kernel();
  DelegatedGroup group_;
  std::uint64_t made_ = 0;  // groups so far
};

}  // namespace bulkhead::orchestrator

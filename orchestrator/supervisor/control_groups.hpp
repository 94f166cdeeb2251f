// Puts each worker process into a control group (cgroup v2) of its own, with limits on its memory and on its processes
// and threads. This needs a group that a service manager has delegated to the daemon (config/base/control_group.hpp).
// In that group the daemon makes:
//
//     daemon          the daemon itself: the kernel enables controllers below a group only if no process is in the
//                     group itself
//     worker-NAME-N   one worker process: memory.max, memory.oom.group, pids.max
//
// All calls read and write memory of the kernel, not a disk. Moving a process into a group is the slowest (5 to 10 ms
// with Linux 6.18, as the kernel waits until no process is between fork and its group); the others take less than
// 0.1 ms.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "config/base/control_group.hpp"

namespace bulkhead::orchestrator {

// What /v1/workers says of a process's group.
struct GroupReport {
  bool active = false;
  std::string detail;  // which limits are in force, or why none is
};

// What makes and removes groups. Tests put functions in place of these that do the kernel's part with plain files.
struct GroupFolders {
  bool (*make)(const std::string& folder);    // false: failed, and errno says why
  bool (*remove)(const std::string& folder);  // the same; the folder's files go with it
  static GroupFolders of_kernel();
};

// The group of one worker process, or the reason why the process has none. Removes the group when it is destroyed:
// destroy it after the process has been reaped. If the kernel still counts a process there, a thread tries again for
// some seconds. One thread at a time.
class WorkerGroup {
 public:
  WorkerGroup() = default;
  WorkerGroup(WorkerGroup&& other) noexcept { *this = std::move(other); }
  WorkerGroup& operator=(WorkerGroup&& other) noexcept;
  ~WorkerGroup() { remove(); }

  // Moves the process into the group. If that fails, the process stays where it is, and report() says why. Call it
  // right after the process was started, before the process can have read anything that is not trusted.
  void join(pid_t pid);
  const GroupReport& report() const { return report_; }
  // The kernel's count of processes in the group that its OOM killer ended, for want of memory in the group or in the
  // machine. Empty: the process is in no group, or the group has no such count.
  std::optional<std::uint64_t> oom_kills() const { return event("oom_kill"); }
  // Whether the group has reached its own limit on memory, with nothing left to take back.
  bool reached_memory_limit() const { return event("oom").value_or(0) > 0; }

 private:
  friend class ControlGroups;
  std::optional<std::uint64_t> event(const char* key) const;  // of memory.events
  void remove();

  std::string folder_;  // empty: there is no group
  GroupFolders folders_ = GroupFolders::of_kernel();
  GroupReport report_{false, "the daemon made no group"};
};

// The groups of all workers of this daemon. The event loop's thread.
class ControlGroups {
 public:
  // There will be no groups; `why_not` is what report() says.
  explicit ControlGroups(std::string why_not);
  // Takes the delegated group, if there is one: moves this process into the group `daemon` and enables the
  // controllers. Removes empty groups of workers that an earlier daemon left. If a step fails, takes the earlier ones
  // back; there are then no groups, and the log says why. Call it before the first worker is started.
  explicit ControlGroups(const ControlGroupPlaces& places,
                         GroupFolders folders = GroupFolders::of_kernel());
  ControlGroups(const ControlGroups&) = delete;
  ControlGroups& operator=(const ControlGroups&) = delete;
  // Disables the controllers again, so that a service manager can put a process into the delegated group even if a
  // worker never ends.
  ~ControlGroups();

  // Whether workers get groups.
  bool active() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  // Makes a group for a process of the worker `name`. `memory_bytes`: limit on its memory, the page cache of files that
  // it reads included; 0: none. If that fails, the WorkerGroup is empty and says why.
  WorkerGroup make(const std::string& name, std::uint64_t memory_bytes);

  // Limit on processes and threads in a worker's group, for a machine with so many CPUs. Drivers make threads by the
  // number of CPUs (lavapipe at most 32 of them), and a worker makes a few more. At most kMostThreads
  // (worker_limits.hpp).
  static std::uint64_t most_tasks(unsigned cpus);

 private:
  std::string take();  // empty: done; else why not
  std::string set_limits(const std::string& folder, std::uint64_t memory_bytes,
                         GroupReport& report) const;

  std::string why_not_;
  GroupFolders folders_ = GroupFolders::of_kernel();
  DelegatedGroup group_;
  std::uint64_t made_ = 0;  // groups so far
};

}  // namespace bulkhead::orchestrator

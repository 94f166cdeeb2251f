// Gives a worker private kernel objects (namespaces(7)), in addition to what Landlock and seccomp refuse:
//
//   network  its only interface is a loopback that is down, and it can't reach other processes' abstract sockets
//   IPC      it finds no System V objects and POSIX queues of others
//   mounts   its /proc shows the machine's figures and its own folder, but no other process; and its root folder holds
//            only what the sandbox allows (private_root.hpp), unless that fails, which costs none of the others
//   user     only if the process lacks the privilege to make the others; user and group ids do not change
//
// A process can't enter a namespace of process ids, it must begin in one. So the daemon starts workers in one
// (orchestrator/supervisor/pid_namespace.hpp), and tells the worker.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/sandbox/files.hpp"

namespace bulkhead::worker {

// The namespaces in which the process began.
struct BornIn {
  bool pids = false;
  bool user = false;
  std::string pid_gap = "the daemon did not ask for one";  // why `pids` is missing
};

struct Namespaces {
  bool user = false;
  bool pids = false;
  bool network = false;
  bool ipc = false;
  bool mounts = false;
  bool root = false;     // the private root
  std::string gap;       // why `network`, `ipc` or `mounts` is missing; empty: none is missing
  std::string root_gap;  // why `root` is missing; empty: it is not
  std::string pid_gap;   // why `pids` is missing; empty: it is not
};

// Returns the namespaces that this process could enter. Changes nothing, because a child process tries them.
Namespaces namespace_support(const SandboxPaths& allowed);

// Enters the namespaces that namespace_support() finds. Only the paths `shown` stay visible in /proc, and elsewhere
// only those that are allowed. Call it in a process with one thread and no open folder, before Landlock and seccomp
// forbid the calls. The process ignores SIGCHLD from then on. An error means that the process has entered only some
// namespaces and must end.
Result<Namespaces> enter_namespaces(const std::vector<std::string>& shown,
                                    const SandboxPaths& allowed, const BornIn& born = {});

}  // namespace bulkhead::worker

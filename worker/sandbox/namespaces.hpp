// Gives a worker private kernel objects (namespaces(7)), in addition to what Landlock and seccomp refuse:
//
//   network  its only interface is a loopback that is down, and it can't reach other processes' abstract sockets
//   IPC      it finds no System V objects and POSIX queues of others
//   mounts   its /proc shows the machine's figures and its own folder, but no other process
//   user     only if the process lacks the privilege to make the others; user and group ids do not change
//
// A worker gets no namespace for process ids. The first process in such a namespace ignores every signal that it does
// not handle, even abort()'s, and an extra first process would stand between the daemon and the worker's exit.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

struct Namespaces {
  bool user = false;
  bool network = false;
  bool ipc = false;
  bool mounts = false;
  std::string gap;  // why one of the last three is missing; empty: none is missing
};

// Returns the namespaces that this process could enter. Changes nothing, because a child process tries them.
Namespaces namespace_support();

// Enters the namespaces that namespace_support() finds. Only the paths `shown` stay visible in /proc. Call it in a
// process with one thread, before Landlock and seccomp forbid the calls. The process ignores SIGCHLD from then on. An
// error means that the process has entered only some namespaces and must end.
Result<Namespaces> enter_namespaces(const std::vector<std::string>& shown);

}  // namespace bulkhead::worker

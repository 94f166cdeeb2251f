// Gives a worker kernel objects that it shares with nobody (namespaces(7)), besides what Landlock and seccomp refuse
// it:
//
//   network  its only interface is a loopback that is down, and no abstract socket of another process is there
//   IPC      it finds nobody's System V objects and POSIX queues
//   mounts   its /proc shows the machine's figures and its own folder, and no other process
//   user     where the process lacks the privilege to make the others. User and group ids stay what they are
//
// A worker gets no namespace of process ids. The first process in such a namespace ignores every signal that it does
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
  std::string gap;  // why one of the last three is missing; empty: all are there
};

// Returns the namespaces that this process could enter. Changes nothing, because a child process
// tries them.
Namespaces namespace_support();

// Enters the namespaces that namespace_support() finds. Of /proc only the paths `shown` stay visible. Call it in a
// process of one thread, before Landlock and seccomp forbid the calls. The process ignores SIGCHLD from then on. An
// error means that the process has entered only some namespaces and must end.
Result<Namespaces> enter_namespaces(const std::vector<std::string>& shown);

}  // namespace bulkhead::worker

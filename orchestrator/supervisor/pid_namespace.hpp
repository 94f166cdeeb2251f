// Starts a worker in a namespace of process ids of its own (pid_namespaces(7)), so that no other process has a number
// there. The worker is a child of the daemon as without a namespace: the daemon waits for it, kills it and learns its
// exit code or signal.
//
//     daemon ── starter ── enters the namespaces, starts both others, and ends at once
//        ├───── bulkhead-first   number 1 in the namespace (orchestrator/first): waits for the worker's end
//        └───── worker           number 2
//
// All three begin on the daemon's memory, as after vfork(), so nothing of it is copied and the daemon waits until both
// programs run.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

// What the child has as descriptors.
struct ChildDescriptors {
  std::vector<std::pair<int, int>>
      moves;                // from a number of the daemon's, all of which are 64 or more
  bool null_input = false;  // 0 is /dev/null
  int first_unused = 3;     // the child has none from here on
};

struct StartedPair {
  pid_t worker = -1;
  pid_t first = -1;
};

// Says whether the namespace takes a user namespace as well, because the daemon lacks the privilege to make it alone.
bool needs_user_namespace();

// Starts the program of the descriptor `program`. In a user namespace it has the capability CAP_SYS_ADMIN, with which
// it can make further namespaces. An error means that nothing was started; its words say which step failed. The caller
// reaps both processes; the first one ends when the worker has been reaped. Takes about 1.5 ms. Only for a thread that
// lives as long as the daemon.
Result<StartedPair> start_in_pid_namespace(int program, std::span<char* const> argv,
                                           std::span<char* const> environment,
                                           const ChildDescriptors& descriptors);

}  // namespace bulkhead::orchestrator

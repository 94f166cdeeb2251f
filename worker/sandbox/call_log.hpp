// What a sandbox that only logs reports: each system call and each file that an enforced sandbox would refuse. The
// call waits while a thread of this process looks at it, and is then made.
//
// That thread must not make a call that it would have to look at itself, nor wait for a lock that a waiting thread
// may hold: it allocates nothing, and logs only by write(2).
#pragma once

#include <linux/filter.h>

#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "worker/sandbox/files.hpp"

namespace bulkhead::worker {

// Returns the calls that name a file by a path: the filter shows all of them to the listener.
std::vector<int> calls_with_paths();

// Installs `telling` and starts the thread, which runs until the process ends. Each kind of refusal is reported once,
// as decided by `enforced` (the filter of an enforced sandbox) and by the paths. kUnsupported if the kernel can't
// make calls wait (before Linux 5.5, or if there is another listener already).
Status log_refusals(std::span<const sock_filter> telling, std::vector<sock_filter> enforced,
                    const SandboxPaths& paths);

}  // namespace bulkhead::worker

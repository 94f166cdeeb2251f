// What a sandbox that only logs tells: each system call, and each file, that one which holds would
// refuse. The call waits while a thread of this process looks at it, and is then made.
//
// That thread must make no call that it would have to look at itself, nor wait for a lock that a thread
// which it lets wait may hold: it allocates nothing, and logs by write(2) alone.
#pragma once

#include <linux/filter.h>

#include <span>
#include <vector>

#include "config/base/error.hpp"
#include "worker/sandbox/files.hpp"

namespace bulkhead::worker {

// Calls that name a file by a path: the filter lets the listener see all of them.
std::vector<int> calls_with_paths();

// Puts up `telling`, and starts the thread, which goes on until the process ends. Each kind of refusal
// is told once, by `enforced` (the filter of a sandbox that holds) and by the paths. kUnsupported where
// the kernel can't let calls wait (before Linux 5.5, or where another listener is there already).
Status log_refusals(std::span<const sock_filter> telling, std::vector<sock_filter> enforced,
                    const SandboxPaths& paths);

}  // namespace bulkhead::worker

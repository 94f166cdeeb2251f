// Gives a worker a root folder of its own that holds only what the sandbox lets it read or write. Landlock prevents
// opening files but not asking about them (stat, access, readlink), so this is what hides that other files exist.
//
// The root is a small file system in memory, which nobody can write to. Each allowed file or folder is mounted at its
// own path, read-only unless the worker may write there. Symbolic links on the way to it are made again, so that each
// path leads where it led before; a link that leads nowhere, or through a folder that can't be searched, fails as it
// did. The working folder keeps its path, so that relative paths stay right. /proc is what it was.
#pragma once

#include "config/base/error.hpp"
#include "worker/sandbox/files.hpp"

namespace bulkhead::worker {

// Replaces the process's root folder. Call it in a process that has one thread, has a mount namespace of its own, and
// has no folder open. kUnavailable: the root is the old one, and nothing has changed. After any other error the
// process must end.
Status enter_private_root(const SandboxPaths& allowed);

}  // namespace bulkhead::worker

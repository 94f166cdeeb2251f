// Which files a worker may open, and how: Landlock's part of the sandbox. Landlock prevents opening, creating,
// removing and truncating. It does not prevent reading about a file (stat, access, readlink): that a name exists, its
// size and its times stay visible as far as the user's own rights go, unless a private root hides the file
// (private_root.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

// Files, or folders with everything in them; missing ones are skipped.
struct SandboxPaths {
  std::vector<std::string> readable;
  std::vector<std::string> writable;  // folders
};

// Returns 0 if the kernel has no Landlock.
int landlock_version();

// Restricts this thread and the threads that it starts, permanently. It adds the GPUs' device nodes, and those nodes
// of /dev that every program expects, to the paths.
Status confine_files(const SandboxPaths& paths, int version);

// Returns what confine_files() adds for reading and writing.
std::vector<std::string> device_nodes();
// Returns what drivers and the C library read from /proc: the machine's figures and this process's own folder, but no
// other process's.
std::vector<std::string> proc_paths();

}  // namespace bulkhead::worker

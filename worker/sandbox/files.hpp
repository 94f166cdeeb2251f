// Which files a worker may open, and for what: Landlock's part of the sandbox. Landlock holds back
// opening, making, removing and shortening; not reading about a file (stat, access, readlink): that a
// name exists, its size and its times stay visible as far as the user's own rights go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

// Files, or folders with all in them; missing ones are skipped.
struct SandboxPaths {
  std::vector<std::string> readable;
  std::vector<std::string> writable;  // folders
};

// 0: the kernel has no Landlock.
int landlock_version();

// Binds this thread and those that it makes, for good. Device nodes of GPUs, and of /dev what any
// program expects, are added to the paths.
Status confine_files(const SandboxPaths& paths, int version);

// What confine_files() adds, to read and to write.
std::vector<std::string> device_nodes();
// Of /proc what drivers and the C library read: the machine's figures and this process's own folder,
// not those of others.
std::vector<std::string> proc_paths();

}  // namespace bulkhead::worker

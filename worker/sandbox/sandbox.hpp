// What a worker gives up before it reads a model file or loads a driver, so that whoever takes it
// over through either gets as little as possible: two nets of the kernel's, one over the other.
//
//   Landlock   which files: the model, the system's libraries and drivers (to read), the GPU's
//              device nodes and one cache folder (to write). Nobody else's memory (/proc/PID/mem,
//              ptrace), no signals to others, no TCP.
//   seccomp    which system calls: no socket, no other program, no other process, nothing of
//              another process's, no resizing of the channel's region. They fail with EPERM, since
//              drivers try some of them and go on without.
//
// Both hold for the whole life of the process and all that it starts, and can't be taken back.
// What they don't hold back: reading what the drivers must read, computing, filling the log, and
// using up the GPU.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

struct SandboxPaths {
  std::vector<std::string>
      readable;  // files, or folders with all in them; missing ones are skipped
  std::vector<std::string> writable;  // folders
};

struct SandboxReport {
  bool files = false;             // Landlock
  bool system_calls = false;      // seccomp
  int landlock_version = 0;       // 0: none
  std::vector<std::string> gaps;  // in words: what this kernel can't hold back
};
// What this kernel offers; changes nothing.
SandboxReport sandbox_support();

// To be called once, by a process of one thread (Landlock binds threads). `region` is the
// descriptor of the channel's region, -1 when there is none; one that is not sealed stays refused
// by its number, which nothing else should get while the process lives. A part that the kernel
// lacks is a gap, not an error; an error means that a part which it has could not be put up, and
// the process must not go on as if it were confined.
Result<SandboxReport> enter_sandbox(const SandboxPaths& paths, int region);

// What Vulkan's loader and drivers read on this machine, by the environment and by custom.
std::vector<std::string> driver_paths();

}  // namespace bulkhead::worker

// What a worker gives up before it reads a model file or loads a driver, so that an attacker who takes over the
// process through either gets as little as possible. The kernel enforces several layers:
//
//   namespaces no network and no IPC objects of others, a /proc without other processes (namespaces.hpp), a root
//              folder without other files (private_root.hpp)
//   Landlock   files: only the model, the system's libraries and drivers (to read), the GPU's device nodes and one
//              cache folder (to write). No access to other processes' memory (/proc/PID/mem, ptrace), no signals
//              to others, no TCP.
//   seccomp    system calls: only those of the table in allowed_calls.cpp. All others fail with EPERM, because
//              drivers try some of them and continue without. No socket, no other program, no other process, no
//              change of a file's mode, owner or times, no resizing of the channel's region.
//
//   user id    the worker is a user that nobody else is, where the daemon may change ids (own_user.hpp), and has no
//              capability: what the other layers leave, the permissions of files and processes hold back.
//
// All layers last as long as the process and everything that it starts, and nothing can undo them. They don't prevent
// the worker from reading what drivers must read, computing, filling the log, or using up the GPU. Without a private
// root they don't prevent it from asking whether a file exists and how large it is (stat), either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "worker/sandbox/files.hpp"
#include "worker/sandbox/namespaces.hpp"
#include "worker/sandbox/own_user.hpp"

namespace bulkhead::worker {

struct SandboxReport {
  bool files = false;         // Landlock
  bool system_calls = false;  // seccomp
  int landlock_version = 0;   // 0: none
  Namespaces namespaces;
  OwnUser user;
  // Descriptors (O_PATH) of the writable folders, in order, if the process has become another user that can't reach
  // them by their paths. They lead to no place outside a private root.
  std::vector<UniqueFd> unreachable;
  std::vector<std::string> gaps;  // in words: what this kernel can't prevent
};
// Returns what this kernel offers; changes nothing.
SandboxReport sandbox_support();

// One of the protections that `bulkhead doctor` and /v1/workers list.
struct Protection {
  // "landlock", "seccomp", "user_id", "limits", a kind of namespace, "private_root", or "cgroup", which only the
  // daemon reports
  std::string name;
  bool active = false;
  std::string detail;  // what the protection is, or why it is not active
};
// Lists every protection once, in a fixed order.
std::vector<Protection> protections(const SandboxReport& report);
// Lists the same protections for a process that is not confined; none is active.
std::vector<Protection> no_protections(const std::string& why);

enum class SandboxLevel : std::uint8_t {
  kHold,
  kLog,  // refuses nothing, and logs what kHold would refuse, each kind once
};

// The user that a worker becomes.
struct AskedUser {
  std::optional<std::uint32_t> id;                     // empty: it stays the daemon's
  std::string gap = "the daemon did not ask for one";  // why `id` is empty
};

struct SandboxRequest {
  SandboxPaths paths;
  // The channel's region; -1 if there is none. For a region that is not sealed the filter refuses resizing by its
  // descriptor's number, which nothing else should get while the process lives.
  int region = -1;
  std::string more_calls;  // names of system calls to allow in addition to the table's
  bool namespaces = true;  // enters the namespaces that the kernel allows
  BornIn born;             // those in which the process is already
  AskedUser user;
  // Files without which the worker is of no use. If `user` may not read one of them, the process stays what it is.
  std::vector<std::string> needed;
  SandboxLevel level = SandboxLevel::kHold;
};

// Call it once, in a process with one thread (Landlock restricts threads). A part that the kernel lacks is a gap, not
// an error. An error means that a part which the kernel has could not be installed, and the process must not continue
// as if it were confined. kInvalidArgument: more_calls has an unknown name.
Result<SandboxReport> enter_sandbox(const SandboxRequest& request);

// Returns what Vulkan's loader and drivers read on this machine, by the environment and by convention, and the paths
// in `more`, which are separated by colons.
std::vector<std::string> driver_paths(const std::string& more = {});
// Returns those of these paths that a user has named: `more`, and drivers' manifests and libraries in the environment.
std::vector<std::string> asked_paths(const std::string& more);
// Returns a sentence for each driver that the environment names (VK_DRIVER_FILES) and that is in none of `readable`.
// It names the driver and the setting that allows it.
std::vector<std::string> unreadable_drivers(const std::vector<std::string>& readable);

}  // namespace bulkhead::worker

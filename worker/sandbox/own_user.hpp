// Gives a worker a user id that no other process has, so that the permissions of files and processes confine it, too:
// the files of the daemon and of other workers belong to other users. The caller first opens the files that the worker
// needs and that the new user may not open (worker/model/opened_files.hpp).
//
// The user's only supplementary groups are those of the GPUs' device nodes that not everybody may open. If only the
// superuser may open a GPU's node, the worker keeps its user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::worker {

struct OwnUser {
  bool active = false;
  std::string gap;            // why it is not active
  std::vector<gid_t> groups;  // of device nodes
};

// The nodes of GPUs that drivers open. Tests use another folder than /dev.
struct GpuNodes {
  std::vector<gid_t> groups;  // the groups that a user needs to open them
  std::string gap;            // names a node that no such user can open; empty: there is none
};
GpuNodes gpu_nodes(const std::string& devices = "/dev");

// Returns whether a process of the present user could become another user. Changes nothing, because a child process
// tries it.
OwnUser own_user_support();

// Permanently changes this process's user and group to `id` and drops all its capabilities. Asks again for the signal
// at the parent's death, because the kernel forgets that when ids change. Call it in a process with one thread. If the
// kernel refuses, the process stays as it was, and the result says why. An error means that the process must end.
Result<OwnUser> enter_own_user(std::uint32_t id);

}  // namespace bulkhead::worker

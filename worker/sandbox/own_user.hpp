// Lets a worker run as a user that nobody else is, so that the permissions of files and processes hold it back, too:
// the daemon's files, and those of other workers, belong to others. What the worker needs and that user may not open,
// its caller opens before (worker/model/opened_files.hpp).
//
// The user's supplementary groups are those of the GPUs' device nodes that are not for everybody, and no others. If a
// GPU's node is for the superuser alone, the worker stays the user that it is.
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
  std::vector<gid_t> groups;  // which a user needs who is to open them
  std::string gap;            // names a node that no such user can open; empty: there is none
};
GpuNodes gpu_nodes(const std::string& devices = "/dev");

// Says whether a process of this user could do it; changes nothing, because a child process tries it.
OwnUser own_user_support();

// Makes this process one of the user and the group `id`, without any capability and for good. It asks again for the
// signal at its parent's death, which the kernel forgets when ids change. Call it in a process with one thread. If it
// is refused, the process is what it was, and the result says why. An error means that the process must end.
Result<OwnUser> enter_own_user(std::uint32_t id);

}  // namespace bulkhead::worker

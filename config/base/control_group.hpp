// Finds the control group (cgroup v2) that a service manager has delegated to this process: a folder of the cgroup
// file system in which the process may make groups of its own and limit them. systemd delegates one with `Delegate=`.
#pragma once

#include <string>

#include "config/base/error.hpp"

namespace bulkhead {

// Whether the folder has the mark that systemd puts on a delegated group: the extended attribute user.delegate or
// trusted.delegate (which only the superuser can read) with the value "1". Any thread.
bool has_delegation_mark(const std::string& folder);

// Where the kernel tells about groups. Tests put files of their own in place of these.
struct ControlGroupPlaces {
  std::string membership = "/proc/self/cgroup";
  std::string mounts = "/proc/self/mountinfo";
  bool (*is_delegated)(const std::string& folder) = has_delegation_mark;
};

struct DelegatedGroup {
  std::string folder;  // of the cgroup file system
  // Which of the two controllers this process may enable for groups below the folder. At least one is true.
  bool memory = false;
  bool pids = false;
};

// Returns the group of this process if it is delegated. kNotFound: why it is not, in words that follow "no: ". Reads
// memory of the kernel only, so it waits for no disk. Any thread.
Result<DelegatedGroup> delegated_group(const ControlGroupPlaces& places = {});

}  // namespace bulkhead

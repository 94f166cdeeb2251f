// Finds the control group (cgroup v2) that a service manager has delegated to this process: a folder of the cgroup
// file system in which the process may make groups of its own and limit them. systemd delegates one with `Delegate=`.
#pragma once

#include <string>

#include "config/base/error.hpp"

namespace bulkhead {

// Returns whether systemd has marked the folder as delegated: its extended attribute user.delegate or
// trusted.delegate (which only the superuser can read) has the value "1". Any thread.
bool has_delegation_mark(const std::string& folder);

// The files in which the kernel describes groups. Tests replace them with their own.
struct ControlGroupPlaces {
  std::string membership = "/proc/self/cgroup";
  std::string mounts = "/proc/self/mountinfo";
  bool (*is_delegated)(const std::string& folder) = has_delegation_mark;
};

struct DelegatedGroup {
  std::string folder;  // a folder of the cgroup file system
  // Which of the two controllers this process may enable for groups below the folder. At least one is true.
  bool memory = false;
  bool pids = false;
};

// Returns the group of this process if it is delegated. Otherwise kNotFound says why not, in words that follow "no:
// ". It reads only kernel memory, so it never waits for a disk. Any thread.
Result<DelegatedGroup> delegated_group(const ControlGroupPlaces& places = {});

}  // namespace bulkhead

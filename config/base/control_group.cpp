#include "config/base/control_group.hpp"

#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace bulkhead {
namespace {

// Returns the path of the process's group in the hierarchy of version 2, from the line "0::/path".
std::optional<std::string> path_in_hierarchy(const std::string& membership) {
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return std::nullopt;
}

struct Mount {
  std::string root;   // the group at which the mount begins
  std::string point;  // where it is mounted
};

// proc_pid_mountinfo(5): "36 35 98:0 /root /point options [optional fields] - type source options".
std::optional<Mount> mount_of_hierarchy(const std::string& mounts) {
  std::ifstream lines(mounts);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find(" - ");
    if (end == std::string::npos || !line.substr(end + 3).starts_with("cgroup2 ")) continue;
    std::istringstream words(line);
    std::string id, parent, device;
    Mount mount;
    if (words >> id >> parent >> device >> mount.root >> mount.point) return mount;
  }
  return std::nullopt;
}

// Returns the group's folder. A mount in a container may begin at the container's own group. Empty: the mount does
// not show the group.
std::string folder_of(const std::string& path, const Mount& mount) {
  if (path.starts_with("/..")) return {};  // outside the process's cgroup namespace
  std::string below = path;
  if (mount.root != "/") {
    if (path != mount.root && !path.starts_with(mount.root + "/")) return {};
    below = path.substr(mount.root.size());
  }
  return below == "/" ? mount.point : mount.point + below;
}

bool has_word(const std::string& file, std::string_view wanted) {
  std::ifstream words(file);
  for (std::string word; words >> word;) {
    if (word == wanted) return true;
  }
  return false;
}

Error none(std::string why) {
  return Error(ErrorCode::kNotFound, std::move(why));
}

}  // namespace

bool has_delegation_mark(const std::string& folder) {
  for (const char* name : {"user.delegate", "trusted.delegate"}) {
    char value[2] = {};
    if (::getxattr(folder.c_str(), name, value, sizeof value) == 1 && value[0] == '1') return true;
  }
  return false;
}

Result<DelegatedGroup> delegated_group(const ControlGroupPlaces& places) {
  const std::optional<std::string> path = path_in_hierarchy(places.membership);
  const std::optional<Mount> mount = mount_of_hierarchy(places.mounts);
  if (!path || !mount) return none("no cgroup v2 is mounted");
  DelegatedGroup group{folder_of(*path, *mount)};
  if (group.folder.empty()) return none("the cgroup file system does not show the group " + *path);
  if (!places.is_delegated(group.folder))
    return none("the group " + *path + " is not delegated (systemd: Delegate=memory pids)");
  for (const char* file : {"/cgroup.procs", "/cgroup.subtree_control"}) {
    if (::access((group.folder + file).c_str(), W_OK) != 0)
      return none("this user may not write to " + group.folder + file);
  }
  group.memory = has_word(group.folder + "/cgroup.controllers", "memory");
  group.pids = has_word(group.folder + "/cgroup.controllers", "pids");
  if (!group.memory && !group.pids)
    return none("the group " + *path + " has neither the controller memory nor pids");
  return group;
}

}  // namespace bulkhead

#include "worker/sandbox/private_root.hpp"

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "worker/sandbox/mounts.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

// While it is made, the new root is mounted here, because this folder is always there. /proc has been copied before.
const std::string kSite = "/proc";

Error cannot(const std::string& step) {
  return errno_error(ErrorCode::kUnavailable, step, errno);
}

// ---- what the root consists of ----

// What may be done with a mounted file or folder. A later one includes the earlier ones.
enum class Access : std::uint8_t { kRead, kWrite, kDevice };

struct Mount {
  Access access = Access::kRead;
  bool folder = false;
};

// All paths are absolute and without links, except for the links' own names and targets.
struct Layout {
  std::set<std::string> folders;  // they are on the way to something; parents sort before children
  std::set<std::string> closed;   // those of `folders` that this user may not search
  std::map<std::string, std::string> links;  // and their targets
  std::map<std::string, Mount> mounts;
};

bool lies_in_proc(const std::string& path) {
  return path == kSite || path.starts_with(kSite + "/");
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

void put_before(std::deque<std::string>& names, std::string_view path) {
  std::deque<std::string> front;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    if (const std::string_view name = path.substr(0, slash); !name.empty() && name != ".")
      front.emplace_back(name);
    path = slash == std::string_view::npos ? "" : path.substr(slash + 1);
  }
  names.insert(names.begin(), front.begin(), front.end());
}

// Notes that a folder may not be searched for `next`, or that `next` can't be looked at itself (it may be where another
// user has mounted something).
void close_for_search(const std::string& folder, const std::string& next, Layout& layout) {
  const std::string& closed = ::eaccess((folder + "/").c_str(), X_OK) == 0 ? next : folder;
  layout.folders.insert(closed);
  layout.closed.insert(closed);
}

// Follows an absolute path as the kernel does, and notes in the layout the folders and links on the way. Returns the
// path without links; none if there is nothing there, or it lies in /proc.
std::optional<std::string> follow(const std::string& path, Layout& layout) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  std::deque<std::string> names;
  put_before(names, path);
  std::string here;
  for (int links = 0; !names.empty();) {
    const std::string name = std::move(names.front());
    names.pop_front();
    if (name == "..") {
      here = parent_of(here);
      continue;
    }
    const std::string next = here + "/" + name;
    struct stat kind {};
    if (lies_in_proc(next)) return std::nullopt;
    if (::lstat(next.c_str(), &kind) != 0) {
      if (errno == EACCES) close_for_search(here, next, layout);
      return std::nullopt;
    }
    if (S_ISLNK(kind.st_mode)) {
      std::error_code error;
      const std::string target = fs::read_symlink(next, error).string();
      if (error) return std::nullopt;
      layout.links[next] = target;
      if (++links > kMostLinks) return std::nullopt;
      put_before(names, target);
      if (target.starts_with('/')) here.clear();
      continue;
    }
    here = next;
    if (S_ISDIR(kind.st_mode)) layout.folders.insert(here);
  }
  return here;
}

Status add(const std::string& path, Access access, const std::string& working_folder,
           Layout& layout) {
  const std::string full = path.starts_with('/') ? path : working_folder + "/" + path;
  const std::optional<std::string> real = follow(full, layout);
  if (!real.has_value()) return {};
  if (real->empty())
    return Error(ErrorCode::kUnavailable, "the sandbox allows all folders: " + path + " is /");
  Mount& mount = layout.mounts[*real];
  mount.folder = layout.folders.contains(*real);
  mount.access = std::max(mount.access, access);
  return {};
}

// Calls `fits` with each folder that holds the path, from the inside out, until it returns true.
template <typename Fits>
bool any_parent(std::string path, Fits fits) {
  while (!(path = parent_of(path)).empty()) {
    if (fits(path)) return true;
  }
  return false;
}

auto mounted_in(const Layout& layout) {
  return [&layout](const std::string& path) { return layout.mounts.contains(path); };
}

// Removes what a mounted folder contains anyway: everything in it that needs no wider access than the folder has.
void simplify(Layout& layout) {
  const auto mounted = mounted_in(layout);
  std::erase_if(layout.mounts, [&layout](const auto& each) {
    return any_parent(each.first, [&](const std::string& parent) {
      const auto outer = layout.mounts.find(parent);
      return outer != layout.mounts.end() && outer->second.access >= each.second.access;
    });
  });
  std::erase_if(layout.folders, [&](const auto& path) { return any_parent(path, mounted); });
  std::erase_if(layout.closed,
                [&](const auto& path) { return mounted(path) || any_parent(path, mounted); });
  std::erase_if(layout.links, [&](const auto& link) { return any_parent(link.first, mounted); });
}

Result<Layout> layout_of(const SandboxPaths& allowed, const std::string& working_folder) {
  Layout layout;
  for (const std::string& path : allowed.readable)
    BULKHEAD_RETURN_IF_ERROR(add(path, Access::kRead, working_folder, layout));
  for (const std::string& path : allowed.writable)
    BULKHEAD_RETURN_IF_ERROR(add(path, Access::kWrite, working_folder, layout));
  for (const std::string& path : device_nodes())
    BULKHEAD_RETURN_IF_ERROR(add(path, Access::kDevice, working_folder, layout));
  follow(working_folder, layout);
  layout.folders.insert(kSite);
  simplify(layout);
  return layout;
}

// ---- making it ----

// `covered`: it lies in a mounted folder, which has a place for it.
Status mount_copy(const std::string& path, const Mount& mount, bool covered) {
  const auto copy = copy_mounts(path);
  // A file may have gone since it was looked at.
  if (!copy.ok() && copy.error().code() == ErrorCode::kNotFound) return {};
  if (!copy.ok()) return copy.error();
  // Flags are only added, because a user namespace must keep those of the machine's own mounts.
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_NOSUID;
  if (mount.access != Access::kDevice) attributes.attr_set |= MOUNT_ATTR_NODEV;
  if (mount.access == Access::kRead) attributes.attr_set |= MOUNT_ATTR_RDONLY;
  if (::mount_setattr(copy->get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes,
                      sizeof attributes) != 0)
    return cannot("mount_setattr of " + path);
  if (!mount.folder && !covered) BULKHEAD_RETURN_IF_ERROR(make_empty_file(kSite + path));
  return attach_mounts(*copy, kSite + path);
}

Status fill(const Layout& layout, const UniqueFd& proc) {
  for (const std::string& folder : layout.folders) {
    if (::mkdir((kSite + folder).c_str(), 0755) != 0) return cannot("mkdir of " + folder);
  }
  for (const auto& [link, target] : layout.links) {
    if (::symlink(target.c_str(), (kSite + link).c_str()) != 0) return cannot("symlink " + link);
  }
  for (const auto& [path, mount] : layout.mounts)
    BULKHEAD_RETURN_IF_ERROR(mount_copy(path, mount, any_parent(path, mounted_in(layout))));
  BULKHEAD_RETURN_IF_ERROR(attach_mounts(proc, kSite + kSite));
  for (const std::string& folder : layout.closed) {
    if (::chmod((kSite + folder).c_str(), 0) != 0) return cannot("chmod of " + folder);
  }
  mount_attr read_only{};
  read_only.attr_set = MOUNT_ATTR_RDONLY;
  if (::mount_setattr(AT_FDCWD, kSite.c_str(), 0, &read_only, sizeof read_only) != 0)
    return cannot("mount_setattr");
  return {};
}

// Makes the file system at kSite the root, in which the working folder must exist, too. Afterwards the old root is
// mounted above the new one.
Status change_root(const std::string& working_folder) {
  if (::chdir((kSite + working_folder).c_str()) != 0) return cannot("chdir to " + working_folder);
  if (::chdir(kSite.c_str()) != 0) return cannot("chdir to " + kSite);
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return cannot("pivot_root");
  return {};
}

}  // namespace

Status enter_private_root(const SandboxPaths& allowed) {
  std::error_code error;
  const std::string working_folder = fs::current_path(error).string();
  if (error || ::chdir(working_folder.c_str()) != 0)
    return Error(ErrorCode::kUnavailable, "the working folder can't be found by its path");
  BULKHEAD_TRY(const Layout layout, layout_of(allowed, working_folder));
  const auto proc = copy_mounts(kSite);
  if (!proc.ok()) return Error(ErrorCode::kUnavailable, proc.error().message());
  // A filter may refuse umount2(), which undoing and the last step need. If none does, there is no such path.
  if (::umount2("", 0) == 0 || errno != ENOENT) return cannot("umount2");
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (::mount("bulkhead", kSite.c_str(), "tmpfs", kFlags, "size=4m,mode=0755") != 0)
    return cannot("mount of a tmpfs");
  Status made = fill(layout, *proc);
  if (made.ok()) made = change_root(working_folder);
  if (!made.ok()) {
    const bool undone =
        ::umount2(kSite.c_str(), MNT_DETACH) == 0 && ::chdir(working_folder.c_str()) == 0;
    return Error(undone ? ErrorCode::kUnavailable : ErrorCode::kInternal, made.error().message());
  }
  if (::umount2(".", MNT_DETACH) != 0)
    return errno_error(ErrorCode::kInternal, "umount2 of the old root", errno);
  if (::chdir(working_folder.c_str()) != 0)
    return errno_error(ErrorCode::kInternal, "chdir to " + working_folder, errno);
  return {};
}

}  // namespace bulkhead::worker

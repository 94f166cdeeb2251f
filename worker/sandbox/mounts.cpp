#include "worker/sandbox/mounts.hpp"

#include <fcntl.h>
#include <sys/mount.h>

#include <cerrno>

namespace bulkhead::worker {

Result<UniqueFd> copy_mounts(const std::string& path) {
  UniqueFd copy(
      ::open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
  if (copy.valid()) return copy;
  const int error = errno;
  return errno_error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInternal,
                     "open_tree of " + path, error);
}

Status attach_mounts(const UniqueFd& copy, const std::string& path) {
  if (::move_mount(copy.get(), "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) == 0) return {};
  return errno_error(ErrorCode::kInternal, "move_mount to " + path, errno);
}

Status make_empty_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0444));
  return file.valid() ? Status() : Status(errno_error(ErrorCode::kInternal, path, errno));
}

}  // namespace bulkhead::worker

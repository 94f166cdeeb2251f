// Plays a network mount that hangs, for a daemon that loads this library (LD_PRELOAD). While the file
// $HUNG_MOUNT/hangs exists, stat() and lstat() of any path below $HUNG_MOUNT return in no thread of bulkheadd. Other
// programs are not affected. It links none of the product's libraries.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool exists(const std::string& path) {
  return ::syscall(SYS_access, path.c_str(), F_OK) == 0;
}

void wait_while_it_hangs(const char* path) {
  const char* const mount = std::getenv("HUNG_MOUNT");
  if (mount == nullptr || std::strncmp(path, mount, std::strlen(mount)) != 0) return;
  if (std::strcmp(::program_invocation_short_name, "bulkheadd") != 0) return;
  const int before = errno;
  constexpr timespec kPause{0, 5'000'000};
  while (exists(std::string(mount) + "/hangs"))
    ::nanosleep(&kPause, nullptr);
  errno = before;
}

}  // namespace

extern "C" {

int stat(const char* path, struct stat* status) {
  wait_while_it_hangs(path);
  return ::fstatat(AT_FDCWD, path, status, 0);
}
int lstat(const char* path, struct stat* status) {
  wait_while_it_hangs(path);
  return ::fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

}  // extern "C"

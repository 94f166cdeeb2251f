#include "worker/sandbox/files.hpp"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>

#include "config/base/unique_fd.hpp"

namespace bulkhead::worker {
namespace {

// Debian 12's headers have only the names of Landlock's first two versions; these are later names.
constexpr std::uint64_t kRefer = 1ULL << 13;         // version 2
constexpr std::uint64_t kTruncate = 1ULL << 14;      // version 3
constexpr std::uint64_t kIoctlDevice = 1ULL << 15;   // version 5
constexpr std::uint64_t kBindTcp = 1ULL << 0;        // version 4, of handled_access_net
constexpr std::uint64_t kConnectTcp = 1ULL << 1;     // version 4
constexpr std::uint64_t kScopeAbstract = 1ULL << 0;  // version 6, of scoped
constexpr std::uint64_t kScopeSignal = 1ULL << 1;    // version 6

struct RulesetAttributes {
  std::uint64_t files;
  std::uint64_t net;
  std::uint64_t scoped;
};

constexpr std::uint64_t kReadFolder = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
// In the cache folder the process may make no device node, socket or link, and may run nothing.
constexpr std::uint64_t kWriteFolder =
    kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
    kRefer | kTruncate;
// What a rule for a file that is not a folder may contain.
constexpr std::uint64_t kOfFiles =
    LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kIoctlDevice;

std::uint64_t handled_files(int version) {
  std::uint64_t all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
  if (version >= 2) all |= kRefer;
  if (version >= 3) all |= kTruncate;
  if (version >= 5) all |= kIoctlDevice;
  return all;
}

Status allow(int ruleset, const std::string& path, std::uint64_t access, std::uint64_t handled) {
  const UniqueFd target(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!target.valid()) return {};
  struct stat kind {};
  if (::fstat(target.get(), &kind) != 0) return {};
  if (!S_ISDIR(kind.st_mode)) access &= kOfFiles;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = access & handled;
  rule.parent_fd = target.get();
  if (::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
    return errno_error(ErrorCode::kInternal, "the sandbox's rule for " + path, errno);
  return {};
}

// Landlock's rule is for the folder that the kernel has in memory. The kernel makes /proc/PID anew when nobody has it
// open, so this keeps it open as long as the process lives.
void keep_own_proc_folder() {
  static const UniqueFd folder(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

int landlock_version() {
  const long version =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version > 0 ? static_cast<int>(version) : 0;
}

// Returns GPUs' device nodes, and the files of /dev that every program expects. /dev/shm is not among them: other
// programs have their shared memory there.
std::vector<std::string> device_nodes() {
  std::vector<std::string> nodes = {"/dev/null",    "/dev/zero",    "/dev/full", "/dev/random",
                                    "/dev/urandom", "/dev/dri",     "/dev/kfd",  "/dev/dxg",
                                    "/dev/udmabuf", "/dev/dma_heap"};
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view prefix : {"nvidia", "mali"}) {
      if (name.starts_with(prefix)) nodes.push_back(entry.path().string());
    }
  }
  return nodes;
}

std::vector<std::string> proc_paths() {
  std::vector<std::string> paths = {"/proc/self"};
  for (const char* name : {"cpuinfo", "meminfo", "stat", "devices", "modules", "version",
                           "filesystems", "uptime", "loadavg", "vmstat", "sys", "bus", "driver"}) {
    paths.push_back(std::string("/proc/") + name);
  }
  return paths;
}

Status confine_files(const SandboxPaths& paths, int version) {
  const std::uint64_t handled = handled_files(version);
  RulesetAttributes attributes{handled, version >= 4 ? kBindTcp | kConnectTcp : 0,
                               version >= 6 ? kScopeAbstract | kScopeSignal : 0};
  const std::size_t known = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const UniqueFd ruleset(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, known, 0)));
  if (!ruleset.valid()) return errno_error(ErrorCode::kInternal, "landlock_create_ruleset", errno);
  keep_own_proc_folder();
  for (const std::string& path : paths.readable)
    BULKHEAD_RETURN_IF_ERROR(allow(ruleset.get(), path, kReadFolder, handled));
  for (const std::string& path : paths.writable)
    BULKHEAD_RETURN_IF_ERROR(allow(ruleset.get(), path, kWriteFolder, handled));
  for (const std::string& node : device_nodes()) {
    BULKHEAD_RETURN_IF_ERROR(allow(
        ruleset.get(), node, kReadFolder | LANDLOCK_ACCESS_FS_WRITE_FILE | kIoctlDevice, handled));
  }
  if (::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0)
    return errno_error(ErrorCode::kInternal, "landlock_restrict_self", errno);
  return {};
}

}  // namespace bulkhead::worker

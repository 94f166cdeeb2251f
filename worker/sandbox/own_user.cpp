#include "worker/sandbox/own_user.hpp"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/base/worker_users.hpp"
#include "worker/sandbox/in_child.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

Error failed(const char* step) {
  return errno_error(ErrorCode::kInternal, step, errno);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// A driver finds no GPU without these nodes. It can do without others (card0, nvidia-modeset).
bool is_needed(const std::string& name) {
  return name.starts_with("renderD") || name.starts_with("mali") || name == "kfd" ||
         name == "dxg" || name == "nvidiactl" || name == "nvidia-uvm" ||
         (name.starts_with("nvidia") && is_number(std::string_view(name).substr(6)));
}

bool is_gpus(const std::string& name) {
  return is_needed(name) || name.starts_with("nvidia") || name.starts_with("card");
}

// Looks at one device node, which need not belong to a GPU.
void add_node(const fs::path& path, GpuNodes& nodes) {
  const std::string name = path.filename().string();
  struct stat node {};
  if (!is_gpus(name) || ::stat(path.c_str(), &node) != 0 || !S_ISCHR(node.st_mode)) return;
  constexpr mode_t kAnybody = S_IROTH | S_IWOTH, kItsGroup = S_IRGRP | S_IWGRP;
  if ((node.st_mode & kAnybody) == kAnybody) return;
  // The superuser's group reads more than devices.
  if (node.st_gid != 0 && (node.st_mode & kItsGroup) == kItsGroup) {
    if (std::ranges::find(nodes.groups, node.st_gid) == nodes.groups.end())
      nodes.groups.push_back(node.st_gid);
  } else if (is_needed(name)) {
    nodes.gap = path.string() + " is for the superuser alone";
  }
}

void drop_bounding_set() {
  // The bounding set limits what the programs that a process starts can get. This process may start none, so it does
  // no harm if the kernel refuses this.
  for (unsigned long each = 0; ::prctl(PR_CAPBSET_READ, each, 0, 0, 0) >= 0; ++each)
    (void)::prctl(PR_CAPBSET_DROP, each, 0, 0, 0);
}

Status drop_all_capabilities() {
  (void)::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capset, &header, sets) != 0) return failed("capset");
  return {};
}

// Changes all ids, or none: the error says which call was refused. kInternal: some have changed.
Status change_ids(std::uint32_t id, const std::vector<gid_t>& groups) {
  std::vector<gid_t> before(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  if (::getgroups(static_cast<int>(before.size()), before.data()) < 0)
    return errno_error(ErrorCode::kUnavailable, "getgroups", errno);
  gid_t real = 0, effective = 0, saved = 0;
  if (::getresgid(&real, &effective, &saved) != 0)
    return errno_error(ErrorCode::kUnavailable, "getresgid", errno);
  if (::setgroups(groups.size(), groups.data()) != 0)
    return errno_error(ErrorCode::kUnavailable, "setgroups", errno);
  const char* step = "setresgid";
  if (::setresgid(id, id, id) == 0) {
    step = "setresuid";
    if (::setresuid(id, id, id) == 0) return {};
  }
  const int error = errno;
  const bool undone =
      ::setresgid(real, effective, saved) == 0 && ::setgroups(before.size(), before.data()) == 0;
  return errno_error(undone ? ErrorCode::kUnavailable : ErrorCode::kInternal, step, error);
}

}  // namespace

GpuNodes gpu_nodes(const std::string& devices) {
  GpuNodes nodes;
  for (const fs::path& folder : {fs::path(devices), fs::path(devices) / "dri"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      add_node(entry.path(), nodes);
  }
  std::ranges::sort(nodes.groups);
  return nodes;
}

OwnUser own_user_support() {
  OwnUser user;
  user.gap = worker_users_gap();
  if (!user.gap.empty()) return user;
  const Result<std::string> tried = in_child(
      []() -> Result<std::string> {
        const std::optional<std::uint32_t> id = worker_user("a trial");
        BULKHEAD_TRY(const OwnUser entered, enter_own_user(id.value_or(0)));
        return entered.gap;
      },
      Reaps::kCaller);
  user.gap = tried.ok() ? *tried : tried.error().message();
  user.active = user.gap.empty();
  if (user.active) user.groups = gpu_nodes().groups;
  return user;
}

Result<OwnUser> enter_own_user(std::uint32_t id) {
  OwnUser user;
  GpuNodes nodes = gpu_nodes();
  user.gap = std::move(nodes.gap);
  if (!user.gap.empty()) return user;
  int death_signal = 0;
  if (::prctl(PR_GET_PDEATHSIG, &death_signal) != 0) return failed("PR_GET_PDEATHSIG");
  const pid_t parent = ::getppid();
  drop_bounding_set();
  const Status changed = change_ids(id, nodes.groups);
  if (!changed.ok() && changed.error().code() != ErrorCode::kUnavailable) return changed.error();
  if (!changed.ok()) {
    user.gap = changed.error().message();
    return user;
  }
  BULKHEAD_RETURN_IF_ERROR(drop_all_capabilities());
  // When a process changes its ids, the kernel gives the files of /proc/self to the superuser. The next call gives
  // the files back to the process.
  if (::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) return failed("PR_SET_DUMPABLE");
  if (::prctl(PR_SET_PDEATHSIG, death_signal) != 0) return failed("PR_SET_PDEATHSIG");
  if (::getppid() != parent) return Error(ErrorCode::kInternal, "the daemon has ended meanwhile");
  user.active = true;
  user.groups = std::move(nodes.groups);
  return user;
}

}  // namespace bulkhead::worker

#include "config/base/worker_users.hpp"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>

#include "config/base/fnv1a.hpp"

namespace bulkhead {
namespace {

constexpr IdRange kRanges[] = {{1879048192, 134217728}, {60706, 478}};

bool holds(const std::string& map, const IdRange& wanted) {
  std::istringstream lines(map);
  for (std::uint64_t inside = 0, outside = 0, count = 0; lines >> inside >> outside >> count;) {
    if (inside <= wanted.first && std::uint64_t{wanted.first} + wanted.count <= inside + count)
      return true;
  }
  return false;
}

std::string whole_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::optional<IdRange>& own_ids() {
  static const std::optional<IdRange> ids =
      worker_ids(whole_file("/proc/self/uid_map"), whole_file("/proc/self/gid_map"));
  return ids;
}

struct Need {
  unsigned capability;
  const char* name;
};
constexpr Need kNeeds[] = {
    {CAP_SETUID, "CAP_SETUID"},
    {CAP_SETGID, "CAP_SETGID"},
    {CAP_KILL, "CAP_KILL"},
    // The worker's cache folder.
    {CAP_CHOWN, "CAP_CHOWN"},
    {CAP_FOWNER, "CAP_FOWNER"},
    {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
};

}  // namespace

std::optional<IdRange> worker_ids(const std::string& uid_map, const std::string& gid_map) {
  for (const IdRange& range : kRanges) {
    if (holds(uid_map, range) && holds(gid_map, range)) return range;
  }
  return std::nullopt;
}

std::string worker_users_gap() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return "capget fails";
  for (const Need& need : kNeeds) {
    if ((sets[need.capability / 32].effective >> need.capability % 32 & 1) == 0)
      return std::string("the daemon lacks the privilege ") + need.name;
  }
  return own_ids().has_value() ? "" : "the daemon's user namespace has no ids for workers";
}

std::optional<std::uint32_t> worker_user(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::uint32_t, std::string> taken;
  if (!worker_users_gap().empty()) return std::nullopt;
  const IdRange ids = *own_ids();
  const std::lock_guard lock(mutex);
  const auto first = static_cast<std::uint32_t>(fnv1a(name) % ids.count);
  for (std::uint32_t i = 0; i < ids.count; ++i) {
    const std::uint32_t id = ids.first + (first + i) % ids.count;
    if (taken.try_emplace(id, name).first->second == name) return id;
  }
  return ids.first + first;
}

}  // namespace bulkhead

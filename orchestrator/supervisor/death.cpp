#include "orchestrator/supervisor/death.hpp"

#include <fstream>
#include <sstream>
#include <utility>

namespace bulkhead::orchestrator {

const char* to_string(DeathCause cause) {
  switch (cause) {
    case DeathCause::kSignal:
      return "signal";
    case DeathCause::kExit:
      return "exit";
    case DeathCause::kDeviceLost:
      return "device_lost";
    case DeathCause::kOutOfMemory:
      return "out_of_memory";
    case DeathCause::kProtocolViolation:
      return "protocol_violation";
    case DeathCause::kHang:
      return "hang";
    case DeathCause::kFailedStart:
      return "failed_start";
    case DeathCause::kAsked:
      return "asked";
  }
  return "unknown";
}

OomKills::OomKills(std::vector<std::string> files) : files_(std::move(files)), seen_(read()) {}

std::vector<std::string> OomKills::files() {
  std::vector<std::string> files;
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {  // "4:memory:/path", "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    // In a container the mount often begins at the process's own cgroup, so the path does not lead there.
    if (controllers.empty()) {
      files.push_back("/sys/fs/cgroup" + path + "/memory.events");
      files.push_back("/sys/fs/cgroup/memory.events");
    } else if (controllers == "memory") {
      files.push_back("/sys/fs/cgroup/memory" + path + "/memory.oom_control");
      files.push_back("/sys/fs/cgroup/memory/memory.oom_control");
    }
  }
  files.push_back("/proc/vmstat");
  return files;
}

std::uint64_t OomKills::read() const {
  for (const std::string& name : files_) {
    std::ifstream file(name);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string key;
      std::uint64_t count = 0;
      if (words >> key >> count && key == "oom_kill") return count;
    }
  }
  return 0;
}

OomKills& OomKills::of_workers() {
  static OomKills kills(files());
  return kills;
}

bool OomKills::grew() {
  const std::uint64_t now = read();
  return now > std::exchange(seen_, now);
}

}  // namespace bulkhead::orchestrator

// What a process holds, according to the kernel: a daemon that has seen a worker die must not hold more than before.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace bulkhead::test {

struct Holdings {
  int descriptors = 0, regions = 0, children = 0;
  std::map<std::string, int> names;  // of the descriptors, for messages: "socket:[4711]", a path, ...

  // By numbers: the names of two daemons' sockets and files differ.
  bool operator==(const Holdings& other) const {
    return descriptors == other.descriptors && regions == other.regions && children == other.children;
  }

  // Whether there is no more of anything than in `other`.
  bool within(const Holdings& other) const {
    return descriptors <= other.descriptors && regions <= other.regions && children <= other.children;
  }

  // Returns what `pid` holds at this moment.
  static Holdings of(pid_t pid) {
    Holdings holdings;
    const std::string folder = "/proc/" + std::to_string(pid);
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder + "/fd", error), end; !error && at != end;
         at.increment(error)) {
      ++holdings.descriptors;
      std::error_code closed_since;
      ++holdings.names[std::filesystem::read_symlink(at->path(), closed_since).string()];
    }
    std::ifstream maps(folder + "/maps");
    for (std::string line; std::getline(maps, line);)
      holdings.regions += line.find("bulkhead-ring") != std::string::npos ? 1 : 0;
    std::ifstream children(folder + "/task/" + std::to_string(pid) + "/children");
    for (pid_t child; children >> child;)
      ++holdings.children;
    return holdings;
  }

  // Returns what `pid` holds while it does nothing: what it held 20 times in a row, 10 ms apart. Its threads open
  // files for moments, such as the one that reads the host's figures.
  static Holdings at_rest(pid_t pid) {
    Holdings last = of(pid);
    for (int same = 0, looks = 0; same < 20 && looks < 3000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      Holdings now = of(pid);
      same = now == last ? same + 1 : 0;
      last = std::move(now);
    }
    return last;
  }
};

inline void PrintTo(const Holdings& holdings, std::ostream* out) {
  *out << holdings.descriptors << " descriptors, " << holdings.regions << " regions, "
       << holdings.children << " children:";
  for (const auto& [name, count] : holdings.names)
    *out << " " << count << " x " << name << ";";
}

// The mappings of files and memory objects, and the anonymous ones. malloc and the thread library keep some of the
// latter (arenas, stacks of threads that have ended), so only a trend in them means something.
struct Mappings {
  int named = 0, anonymous = 0;

  static Mappings of(pid_t pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    Mappings mappings;
    for (std::string line; std::getline(maps, line);)
      ++(line.find_first_of("/[") != std::string::npos ? mappings.named : mappings.anonymous);
    return mappings;
  }
};
inline constexpr int kKeptAnonymousMappings = 24;

}  // namespace bulkhead::test

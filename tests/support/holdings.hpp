// What a process holds, by the kernel's word: a daemon that has seen a worker die must hold no more
// than before.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <system_error>

namespace bulkhead::test {

struct Holdings {
  int descriptors = 0, regions = 0, children = 0;
  bool operator==(const Holdings&) const = default;

  static Holdings of(pid_t pid) {
    Holdings holdings;
    const std::string folder = "/proc/" + std::to_string(pid);
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder + "/fd", error), end; !error && at != end;
         at.increment(error)) {
      ++holdings.descriptors;
    }
    std::ifstream maps(folder + "/maps");
    for (std::string line; std::getline(maps, line);)
      holdings.regions += line.find("bulkhead-ring") != std::string::npos ? 1 : 0;
    std::ifstream children(folder + "/task/" + std::to_string(pid) + "/children");
    for (pid_t child; children >> child;)
      ++holdings.children;
    return holdings;
  }
};

inline void PrintTo(const Holdings& holdings, std::ostream* out) {
  *out << holdings.descriptors << " descriptors, " << holdings.regions << " regions, "
       << holdings.children << " children";
}

// Mappings of files and memory objects, and anonymous ones: of these malloc and the thread library keep
// some (arenas, stacks of threads that have ended), so only a trend means something.
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

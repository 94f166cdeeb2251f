#include "config/base/fault_points.hpp"

#ifdef BULKHEAD_FAULT_INJECTION

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace bulkhead::fault {
namespace {

struct Fault {
  std::string action;
  int signal = SIGKILL;
  std::string point;
  std::uint64_t n = 1;
  bool claimed = false;  // it is this process that acts
};

struct Plan {
  std::mutex mutex;
  std::vector<Fault> faults;
  std::map<std::string, std::uint64_t, std::less<>> hits;
  std::string done_file, count_file;
};

[[noreturn]] void unreadable(std::string_view fault, const char* why) {
  std::fprintf(stderr, "BULKHEAD_FAULTS: \"%.*s\": %s; write ACTION@[PROGRAM/]POINT[:N]\n",
               static_cast<int>(fault.size()), fault.data(), why);
  std::_Exit(2);
}

// Nothing when it is another program's.
void add(Plan& plan, std::string_view text) {
  Fault fault;
  const auto at = text.find('@');
  if (at == std::string_view::npos) unreadable(text, "no action");
  fault.action = text.substr(0, at);
  if (fault.action == "stop") {
    fault.signal = SIGSTOP;
  } else if (fault.action == "abort") {
    fault.signal = SIGABRT;
  } else if (fault.action != "kill") {
    unreadable(text, "the action is none of kill, stop, abort");
  }
  std::string_view point = text.substr(at + 1);
  if (const auto colon = point.find(':'); colon != std::string_view::npos) {
    const std::string_view number = point.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), fault.n);
    if (error != std::errc() || end != number.data() + number.size() || fault.n == 0) {
      unreadable(text, "the count is no number from 1");
    }
    point = point.substr(0, colon);
  }
  if (const auto slash = point.find('/'); slash != std::string_view::npos) {
    if (point.substr(0, slash) != program_invocation_short_name) return;
    point = point.substr(slash + 1);
  }
  if (point.empty()) unreadable(text, "no point");
  fault.point = point;
  plan.faults.push_back(std::move(fault));
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void write_counts();

// Never destroyed: points are reached until the very end.
Plan& plan() {
  static Plan& instance = *new Plan;
  return instance;
}

bool read_plan() {
  Plan& made = plan();
  made.done_file = environment("BULKHEAD_FAULTS_DONE");
  made.count_file = environment("BULKHEAD_FAULTS_COUNT");
  std::string_view rest = environment("BULKHEAD_FAULTS");
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    add(made, rest.substr(0, comma));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  if (!made.count_file.empty()) std::atexit(write_counts);
  return !made.faults.empty() || !made.count_file.empty();
}

void write_counts() {
  const std::lock_guard lock(plan().mutex);
  if (std::FILE* file = std::fopen(plan().count_file.c_str(), "we")) {
    for (const auto& [point, hits] : plan().hits) {
      std::fprintf(file, "%s %llu\n", point.c_str(), static_cast<unsigned long long>(hits));
    }
    std::fclose(file);
  }
}

// False: another process has acted before.
bool claim(Fault& fault) {
  if (fault.claimed || plan().done_file.empty()) return true;
  const int fd = ::open(plan().done_file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    if (errno == EEXIST) return false;
    std::fprintf(stderr, "BULKHEAD_FAULTS_DONE: %s: %s\n", plan().done_file.c_str(),
                 std::strerror(errno));
    std::_Exit(2);
  }
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto number = [](auto value) { return std::to_string(value); };
  const std::string line = fault.action + " " + fault.point + " " + number(fault.n) + " " +
                           number(now.tv_sec * 1'000'000'000LL + now.tv_nsec) + "\n";
  const ssize_t written = ::write(fd, line.data(), line.size());
  ::close(fd);
  fault.claimed = written == static_cast<ssize_t>(line.size());
  return fault.claimed;
}

}  // namespace

namespace detail {

bool active = read_plan();

void reached(const char* point) {
  const std::lock_guard lock(plan().mutex);
  const std::uint64_t hit = ++plan().hits[point];
  for (Fault& fault : plan().faults) {
    if (fault.n != hit || fault.point != point || !claim(fault)) continue;
    ::kill(::getpid(), fault.signal);
    if (fault.signal != SIGSTOP) std::abort();  // where a sandbox refuses kill()
  }
}

bool due(const char* point) {
  const std::lock_guard lock(plan().mutex);
  const auto hits = plan().hits.find(std::string_view(point));
  const std::uint64_t next = (hits == plan().hits.end() ? 0 : hits->second) + 1;
  for (Fault& fault : plan().faults) {
    if (fault.n == next && fault.point == point && claim(fault)) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace bulkhead::fault

#endif

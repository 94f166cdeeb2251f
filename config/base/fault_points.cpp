#include "config/base/fault_points.hpp"

#ifdef BULKHEAD_FAULT_INJECTION

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
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
  int signal = SIGKILL;  // 0: the step itself does it
  detail::Deed deed = detail::Deed::kNone;
  std::string point;
  std::uint64_t n = 1;
  bool claimed = false;  // this process is the one that acts
};

// BULKHEAD_FAULTS_DONE, mapped at the start, because a sandbox takes files and descriptors away later.
struct Done {
  char line[248];
  std::atomic<std::uint64_t> claimed;
};
static_assert(sizeof(Done) == 256 && std::atomic<std::uint64_t>::is_always_lock_free);

struct Plan {
  std::mutex mutex;
  std::vector<Fault> faults;
  std::map<std::string, std::uint64_t, std::less<>> hits;
  Done* done = nullptr;
  LivePlan* live = nullptr;
  std::uint64_t generation = 0;  // the generation of the live plan whose faults are in `faults`
  std::string count_file;
};

// Steps that this thread reaches inside this code are not counted, because it would wait for itself.
thread_local bool inside = false;
class Inside {
 public:
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};

[[noreturn]] void unreadable(std::string_view fault, const char* why) {
  std::fprintf(stderr, "BULKHEAD_FAULTS: \"%.*s\": %s; write ACTION@[PROGRAM/]POINT[:N]\n",
               static_cast<int>(fault.size()), fault.data(), why);
  std::_Exit(2);
}

// Adds nothing if the fault is for another program.
void add(Plan& plan, std::string_view text) {
  Fault fault;
  const auto at = text.find('@');
  if (at == std::string_view::npos) unreadable(text, "no action");
  fault.action = text.substr(0, at);
  if (fault.action == "stop") {
    fault.signal = SIGSTOP;
  } else if (fault.action == "abort") {
    fault.signal = SIGABRT;
  } else if (fault.action == "fail" || fault.action == "corrupt") {
    fault.signal = 0;
    fault.deed = fault.action == "fail" ? detail::Deed::kFail : detail::Deed::kCorrupt;
  } else if (fault.action != "kill") {
    unreadable(text, "the action is none of kill, stop, abort, fail, corrupt");
  }
  std::string_view point = text.substr(at + 1);
  if (const auto colon = point.find(':'); colon != std::string_view::npos) {
    const std::string_view number = point.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), fault.n);
    if (error != std::errc() || end != number.data() + number.size() || fault.n == 0) {
      unreadable(text, "the count is not a number from 1 up");
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

// Maps nothing if the variable is not set.
template <class Shared>
Shared* map_shared(const char* variable) {
  const char* file = environment(variable);
  if (*file == 0) return nullptr;
  const int fd = ::open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* base = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, sizeof(Shared)) == 0) {
    base = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    std::fprintf(stderr, "%s: %s: %s\n", variable, file, std::strerror(errno));
    std::_Exit(2);
  }
  ::close(fd);
  return static_cast<Shared*>(base);
}

// Never destroyed, because points are reached until the very end.
Plan& plan() {
  static Plan& instance = *new Plan;
  return instance;
}

void add_all(Plan& plan, std::string_view rest) {
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    add(plan, rest.substr(0, comma));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
}

bool read_plan() {
  const Inside guard;
  Plan& made = plan();
  made.done = map_shared<Done>("BULKHEAD_FAULTS_DONE");
  made.live = map_shared<LivePlan>("BULKHEAD_FAULTS_LIVE");
  made.count_file = environment("BULKHEAD_FAULTS_COUNT");
  add_all(made, environment("BULKHEAD_FAULTS"));
  if (!made.count_file.empty()) std::atexit(write_counts);
  return !made.faults.empty() || made.live != nullptr || !made.count_file.empty();
}

// Reads the present content of the live plan.
void look_at_live(Plan& plan) {
  if (plan.live == nullptr) return;
  const std::uint64_t generation = plan.live->generation.load();
  if (generation == plan.generation || generation % 2 != 0) return;
  char text[sizeof plan.live->plan];
  std::memcpy(text, plan.live->plan, sizeof text);
  if (plan.live->generation.load() != generation) return;  // it was written meanwhile
  plan.generation = generation;
  plan.hits.clear();
  plan.faults.clear();
  add_all(plan, std::string_view(text, ::strnlen(text, sizeof text)));
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

// Returns false if another process has already acted.
bool claim(Fault& fault) {
  if (LivePlan* live = plan().live; live != nullptr) {
    if (live->generation.load() != plan().generation) return false;
    if (fault.claimed) return true;
    return fault.claimed = live->acted.exchange(plan().generation) != plan().generation;
  }
  Done* done = plan().done;
  if (fault.claimed || done == nullptr) return true;
  if (done->claimed.exchange(1) != 0) return false;
  fault.claimed = true;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::snprintf(done->line, sizeof done->line, "%s %s %llu %lld\n", fault.action.c_str(),
                fault.point.c_str(), static_cast<unsigned long long>(fault.n),
                now.tv_sec * 1'000'000'000LL + now.tv_nsec);
  return true;
}

}  // namespace

namespace detail {

bool active = read_plan();

Deed reached(const char* point) {
  if (inside) return Deed::kNone;
  const Inside guard;
  const std::lock_guard lock(plan().mutex);
  look_at_live(plan());
  const auto counted = plan().hits.find(std::string_view(point));
  const std::uint64_t hit =
      counted != plan().hits.end() ? ++counted->second : (plan().hits[point] = 1);
  for (Fault& fault : plan().faults) {
    if (fault.n != hit || fault.point != point || !claim(fault)) continue;
    if (fault.signal == 0) return fault.deed;
    ::raise(
        fault.signal);  // a signal of a plan ends or stops the whole process; a sandbox allows raise()
  }
  return Deed::kNone;
}

bool due(const char* point) {
  if (inside) return false;
  const Inside guard;
  const std::lock_guard lock(plan().mutex);
  look_at_live(plan());
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

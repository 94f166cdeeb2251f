#include "orchestrator/supervisor/pid_namespace.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/spawn.hpp"

namespace bulkhead::orchestrator {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
using Stack = std::array<std::byte, kStackBytes>;

std::array<__user_cap_data_struct, 2> capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  ::syscall(SYS_capget, &header, sets.data());
  return sets;
}

bool has(unsigned capability) {
  return (capabilities()[capability / 32].effective >> capability % 32 & 1) != 0;
}

// ---- the children ----
//
// They run on the daemon's memory while the daemon's thread waits, so they only make system calls and write to this
// plan. A sanitizer must not note their calls.
#define IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

struct Plan {
  bool user = false;
  std::string_view ids[2];  // lines for uid_map and gid_map
  rlimit threads{};
  int program = -1, first_program = -1;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  const std::pair<int, int>* moves = nullptr;
  std::size_t move_count = 0;
  bool null_input = false;
  unsigned first_unused = 3;
  int begins = -1;  // the first process's pipe
  std::byte* first_stack_end = nullptr;
  std::byte* worker_stack_end = nullptr;

  // What happened. `step` is null as long as nothing has failed.
  pid_t first = -1, worker = -1;
  const char* step = nullptr;
  int error = 0;
};

IN_CHILD bool failed(Plan& plan, const char* step) {
  plan.error = errno;
  plan.step = step;
  return false;
}

IN_CHILD bool write_whole(const char* path, std::string_view text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  return file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

IN_CHILD bool run_program(int program, char* const* argv, char* const* environment) {
  ::syscall(SYS_execveat, program, "", argv, environment, AT_EMPTY_PATH);
  return false;
}

IN_CHILD int run_first(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  static char name[] = "bulkhead-first";
  char* const argv[] = {name, nullptr};
  char* const environment[] = {nullptr};
  if (::setpgid(0, 0) == 0 && ::dup2(plan.begins, 0) == 0 &&
      ::syscall(SYS_close_range, 1U, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
    run_program(plan.first_program, argv, environment);
  failed(plan, "starting bulkhead-first");
  ::_exit(127);
}

// The capability to make namespaces outlives the start of the program.
IN_CHILD bool keep_namespace_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  constexpr std::uint32_t kKept = 1U << CAP_SYS_ADMIN;
  const __user_cap_data_struct sets[2] = {{kKept, kKept, kKept}, {}};
  return ::syscall(SYS_capset, &header, sets) == 0 &&
         ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) == 0;
}

IN_CHILD bool place_descriptors(const Plan& plan) {
  if (plan.null_input) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null < 0 || (null != 0 && ::dup2(null, 0) < 0)) return false;
  }
  for (std::size_t i = 0; i < plan.move_count; ++i) {
    if (::dup2(plan.moves[i].first, plan.moves[i].second) < 0) return false;
  }
  return ::syscall(SYS_close_range, plan.first_unused, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
}

IN_CHILD int run_worker(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  for (int number = 1; number < NSIG; ++number)
    ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  if (::setpgid(0, 0) != 0) {
    failed(plan, "setpgid");
  } else if (plan.user && !keep_namespace_capability()) {
    failed(plan, "capset");
  } else if (!place_descriptors(plan)) {
    failed(plan, "a worker's descriptors");
  } else {
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    run_program(plan.program, plan.argv, plan.environment);
    failed(plan, "starting the worker program");
  }
  ::_exit(127);
}

IN_CHILD bool enter_namespaces(Plan& plan) {
  // The kernel compares the user's threads with the limit that is in force here, also for threads of the namespace.
  if (plan.user && ::setrlimit(RLIMIT_NPROC, &plan.threads) != 0)
    return failed(plan, "RLIMIT_NPROC");
  if (::unshare(plan.user ? CLONE_NEWUSER | CLONE_NEWPID : CLONE_NEWPID) != 0)
    return failed(plan, "unshare");
  if (plan.user && (!write_whole("/proc/self/setgroups", "deny") ||
                    !write_whole("/proc/self/uid_map", plan.ids[0]) ||
                    !write_whole("/proc/self/gid_map", plan.ids[1])))
    return failed(plan, "/proc/self/uid_map");
  return true;
}

// CLONE_PARENT makes the daemon the parent.
constexpr int kChildOfDaemon = CLONE_PARENT | CLONE_VM | CLONE_VFORK | SIGCHLD;

IN_CHILD int start_both(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  if (!enter_namespaces(plan)) ::_exit(0);
  plan.first = ::clone(run_first, plan.first_stack_end, kChildOfDaemon, &plan);
  if (plan.first < 0) failed(plan, "clone");
  if (plan.step != nullptr) ::_exit(0);
  plan.worker = ::clone(run_worker, plan.worker_stack_end, kChildOfDaemon, &plan);
  if (plan.worker < 0) failed(plan, "clone");
  ::_exit(0);
}

// ---- the daemon ----

void reap(pid_t child) {
  if (child < 0) return;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Returns the program that stands beside the daemon's. It is opened once, so that an upgrade changes nothing.
Result<int> first_program() {
  static const UniqueFd program = [] {
    std::error_code error;
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    const UniqueFd file(
        ::open((self.parent_path() / "bulkhead-first").c_str(), O_PATH | O_CLOEXEC));
    return UniqueFd(file.valid() ? ::fcntl(file.get(), F_DUPFD_CLOEXEC, kFirstHigh) : -1);
  }();
  if (!program.valid())
    return Error(ErrorCode::kNotFound, "the program bulkhead-first is not beside bulkheadd");
  return program.get();
}

// Returns the limit that worker/sandbox sets where the daemon starts a worker without namespaces: half of what the user
// may have.
rlimit half_of_threads() {
  static const rlim_t machine = [] {
    rlim_t most = RLIM_INFINITY;
    for (const char* file : {"/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"}) {
      std::ifstream stream(file);
      if (rlim_t number = 0; stream >> number && number > 0) most = std::min(most, number);
    }
    return most;
  }();
  rlimit threads{};
  ::getrlimit(RLIMIT_NPROC, &threads);
  const rlim_t half = std::min(threads.rlim_max, machine) / 2;
  return {std::min(threads.rlim_cur, half), half};
}

std::string map_line(unsigned id) {
  return std::to_string(id) + " " + std::to_string(id) + " 1";
}

}  // namespace

bool needs_user_namespace() {
  return !has(CAP_SYS_ADMIN);
}

Result<StartedPair> start_in_pid_namespace(int program, std::span<char* const> argv,
                                           std::span<char* const> environment,
                                           const ChildDescriptors& descriptors) {
  Plan plan;
  plan.user = needs_user_namespace();
  if (plan.user && (has(CAP_DAC_OVERRIDE) || has(CAP_DAC_READ_SEARCH))) {
    return Error(ErrorCode::kUnavailable,
                 "a superuser without CAP_SYS_ADMIN would lose its access to files of other users");
  }
  BULKHEAD_TRY(plan.first_program, first_program());
  BULKHEAD_TRY(const UniqueFd high_program, move_high(program));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "pipe", errno);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  const std::string users = map_line(::geteuid()), groups = map_line(::getegid());
  plan.ids[0] = users;
  plan.ids[1] = groups;
  plan.threads = half_of_threads();
  plan.program = high_program.get();
  plan.argv = argv.data();
  plan.environment = environment.data();
  plan.moves = descriptors.moves.data();
  plan.move_count = descriptors.moves.size();
  plan.null_input = descriptors.null_input;
  plan.first_unused = static_cast<unsigned>(descriptors.first_unused);
  plan.begins = reading.get();
  const auto stacks = std::make_unique_for_overwrite<Stack[]>(3);
  const auto end_of = [&stacks](std::size_t i) { return stacks[i].data() + kStackBytes; };
  plan.first_stack_end = end_of(1);
  plan.worker_stack_end = end_of(2);
  pid_t starter = -1;
  {
    const AllSignalsBlocked blocked;
    starter = ::clone(start_both, end_of(0), CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
    if (starter < 0) return errno_error(ErrorCode::kResourceExhausted, "clone", errno);
    reap(starter);
  }
  if (plan.step == nullptr && plan.worker >= 0) return StartedPair{plan.worker, plan.first};
  // The first process ends by itself once the pipe does.
  const int error = plan.step == nullptr ? ECHILD : plan.error;
  if (plan.first >= 0) ::kill(plan.first, SIGKILL);
  reap(plan.worker);
  reap(plan.first);
  return errno_error(ErrorCode::kUnavailable, plan.step == nullptr ? "starting" : plan.step, error);
}

}  // namespace bulkhead::orchestrator

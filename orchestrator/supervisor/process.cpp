#include "orchestrator/supervisor/process.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/supervisor/pid_namespace.hpp"
#include "orchestrator/supervisor/spawn.hpp"
#include "orchestrator/supervisor/worker_program.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr int kChannelFd = 3;
constexpr int kRegionFd = 4;

// If memory runs out, the kernel should end a worker, which costs a pause, and not the daemon.
void prefer_as_victim(pid_t pid) {
  UniqueFd file(::open(fmt::format("/proc/{}/oom_score_adj", pid).c_str(),
                       O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  // of 1000; a higher score would make a worker the first victim of the whole machine
  constexpr std::string_view kScore = "500";
  // If the score can't be written, only this preference is lost.
  if (file.valid()) (void)!::write(file.get(), kScore.data(), kScore.size());
}

// Indexes of fields of /proc/PID/stat after the process's name, which may hold any characters.
constexpr std::size_t kStatState = 0, kStatFlags = 6, kStatUserTime = 11, kStatSystemTime = 12,
                      kStatThreads = 17, kStatMemory = 20, kStatExitCode = 49;

bool may_trace_everybody() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  return ::syscall(SYS_capget, &header, sets) == 0 &&
         (sets[0].effective >> CAP_SYS_PTRACE & 1) != 0;
}

// The kernel shows a process's exit code only to processes that may trace it: those of its user, or those with
// CAP_SYS_PTRACE. A container's superuser often lacks that capability. Then this thread looks at the process's folder
// in /proc as the folder's owner. (The files in the folder become the superuser's as soon as an ending process has
// given its memory back.)
class AsOwnerOf {
 public:
  explicit AsOwnerOf(const std::string& folder) {
    struct stat owner {};
    if (may_trace_everybody() || ::stat(folder.c_str(), &owner) != 0 || owner.st_uid == ::geteuid())
      return;
    dumpable_ = ::prctl(PR_GET_DUMPABLE);
    ::setfsgid(owner.st_gid);
    ::setfsuid(owner.st_uid);
  }
  AsOwnerOf(const AsOwnerOf&) = delete;
  AsOwnerOf& operator=(const AsOwnerOf&) = delete;
  ~AsOwnerOf() {
    if (dumpable_ < 0) return;
    ::setfsuid(::geteuid());
    ::setfsgid(::getegid());
    // The first change of ids made the kernel clear this attribute. Without it, children can't open this process's
    // /proc/PID/fd, by which they start the worker program.
    if (dumpable_ == 1) ::prctl(PR_SET_DUMPABLE, 1);
  }

 private:
  int dumpable_ = -1;  // before; -1: nothing was changed
};

std::vector<std::string> stat_fields(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::vector<std::string> fields;
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(line.substr(name_end + 1));
  for (std::string field; rest >> field;)
    fields.push_back(field);
  return fields;
}

std::int64_t number(const std::string& field) {
  std::int64_t value = 0;
  std::from_chars(field.data(), field.data() + field.size(), value);
  return value;
}

std::set<std::string> threads_of(pid_t pid) {
  std::set<std::string> ids;
  std::error_code gone;
  for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", pid), gone), end;
       !gone && task != end; task.increment(gone))
    ids.insert(task->path().filename().string());
  return ids;
}

}  // namespace

Result<Process> Process::start(const std::string& program, std::vector<std::string> arguments,
                               ipc::ChannelPair& channel, int log_fd, bool own_pids) {
  ChildDescriptors descriptors;
  const auto place = [&descriptors](const UniqueFd& from, int to) {
    descriptors.moves.emplace_back(from.get(), to);
  };
  BULKHEAD_TRY(UniqueFd socket, move_high(channel.worker_socket.get()));
  BULKHEAD_TRY(UniqueFd log, move_high(log_fd));
  place(log, 2);
  UniqueFd region, child_stdin, child_stdout;
  std::vector<std::string> words = {program};
  std::ranges::move(arguments, std::back_inserter(words));
  words.insert(words.end(), {"--channel", std::to_string(kChannelFd)});
  if (channel.worker_stdin.valid() && channel.worker_stdout.valid()) {
    BULKHEAD_TRY(child_stdin, move_high(channel.worker_stdin.get()));
    BULKHEAD_TRY(child_stdout, move_high(channel.worker_stdout.get()));
    place(child_stdin, 0);
    place(child_stdout, 1);
  } else {
    descriptors.null_input = true;
    place(log, 1);  // what a library prints goes to the log, never to the daemon's own output
  }
  place(socket, kChannelFd);
  descriptors.first_unused = kChannelFd + 1;
  if (channel.worker_region.valid()) {
    BULKHEAD_TRY(region, move_high(channel.worker_region.get()));
    place(region, kRegionFd);
    descriptors.first_unused = kRegionFd + 1;
    words.insert(words.end(), {"--region", std::to_string(kRegionFd)});
  }

  Process process;
  BULKHEAD_RETURN_IF_ERROR(process.spawn_child(program, std::move(words), descriptors, own_pids));
  prefer_as_victim(process.pid_);
  process.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, process.pid_, 0)));
  if (!process.pidfd_.valid())
    return errno_error(ErrorCode::kInternal, "pidfd_open of a worker", errno);

  // The daemon closes its copies of the worker's ends, because they would hide the worker's death.
  channel.worker_socket.reset();
  channel.worker_region.reset();
  channel.worker_stdin.reset();
  channel.worker_stdout.reset();
  return process;
}

Status Process::spawn_child(const std::string& program, std::vector<std::string> words,
                            const ChildDescriptors& descriptors, bool own_pids) {
  if (own_pids) {
    BULKHEAD_TRY(const int pinned, pinned_descriptor(program));
    words.emplace_back("--pid-namespace");
    words.emplace_back(needs_user_namespace() ? "own, and a user namespace" : "own");
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::vector<char*> environment = environment_without_secrets();
    const Result<StartedPair> started =
        start_in_pid_namespace(pinned, argv, environment, descriptors);
    if (started.ok()) {
      pid_ = started->worker;
      first_ = started->first;
      return {};
    }
    words.back() = started.error().message();
  }
  FileActions actions;
  int refused = 0;
  const auto note = [&refused](int error) {
    if (refused == 0) refused = error;
  };
  if (descriptors.null_input)
    note(posix_spawn_file_actions_addopen(&actions.value, 0, "/dev/null", O_RDONLY, 0));
  for (const auto& [from, to] : descriptors.moves)
    note(posix_spawn_file_actions_adddup2(&actions.value, from, to));
  note(posix_spawn_file_actions_addclosefrom_np(&actions.value, descriptors.first_unused));
  if (refused != 0)
    return errno_error(ErrorCode::kResourceExhausted, "preparing a worker's start", refused);
  BULKHEAD_TRY(const std::string pinned, pinned_program(program));
  BULKHEAD_TRY(pid_, spawn(pinned, std::move(words), actions));
  return {};
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    first_ = std::exchange(other.first_, -1);
    pidfd_ = std::move(other.pidfd_);
    waited_for_ = std::exchange(other.waited_for_, true);
  }
  return *this;
}

void Process::end() {
  // The first process of a namespace ends only when the other one has been reaped.
  for (pid_t* const child : {&pid_, &first_}) {
    if (*child < 0) continue;
    ::kill(*child, SIGKILL);
    int status = 0;
    while (::waitpid(*child, &status, waited_for_ ? 0 : WNOHANG) < 0 && errno == EINTR) {
    }
    *child = -1;
  }
}

Process Process::take_first_of_namespace() {
  Process first;
  if (pid_ >= 0 || first_ < 0) return first;
  first.pid_ = std::exchange(first_, -1);
  first.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, first.pid_, 0)));
  return first;
}

void Process::kill() {
  if (pid_ >= 0) ::kill(pid_, SIGKILL);  // the process is not reaped yet, so its number still belongs to this child
}

std::optional<Activity> Process::activity() const {
  if (pid_ < 0) return std::nullopt;
  const auto fields = stat_fields(fmt::format("/proc/{}/stat", pid_));
  if (fields.size() <= kStatSystemTime) return std::nullopt;
  const std::int64_t per_second = ::sysconf(_SC_CLK_TCK);
  Activity activity;
  activity.state = fields[kStatState][0];
  activity.computed = std::chrono::milliseconds(
      (number(fields[kStatUserTime]) + number(fields[kStatSystemTime])) * 1000 / per_second);
  std::chrono::nanoseconds starved{0};
  std::error_code gone;
  for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", pid_), gone), end;
       !gone && task != end; task.increment(gone)) {
    std::ifstream schedule(task->path() / "schedstat");  // "ran waited slices", in nanoseconds
    std::int64_t ran = 0, waited = 0;
    if (schedule >> ran >> waited) starved += std::chrono::nanoseconds(waited);
  }
  activity.starved = std::chrono::duration_cast<std::chrono::milliseconds>(starved);
  activity.at = std::chrono::steady_clock::now();
  return activity;
}

std::size_t Process::threads() const {
  if (pid_ < 0) return 0;
  const auto fields = stat_fields(fmt::format("/proc/{}/stat", pid_));
  return fields.size() <= kStatThreads ? 0 : static_cast<std::size_t>(number(fields[kStatThreads]));
}

std::vector<UniqueFd> Process::thread_exit_fds() const {
  constexpr std::size_t kThreads = 2;
  constexpr unsigned kOneThread = O_EXCL;  // PIDFD_THREAD
  std::vector<UniqueFd> fds;
  if (pid_ < 0) return fds;
  for (const std::string& id : threads_of(pid_)) {
    const auto thread = static_cast<pid_t>(number(id));
    if (thread == pid_ || fds.size() == kThreads) continue;
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, thread, kOneThread)));
    if (fd.valid()) fds.push_back(std::move(fd));
  }
  return fds;
}

std::optional<Exit> Process::stopped() const {
  if (pid_ < 0) return std::nullopt;
  const std::string leader = std::to_string(pid_);
  const auto stat_of = [&](const std::string& thread) {
    const std::string folder = fmt::format("/proc/{}/task/{}", pid_, thread);
    const AsOwnerOf owner(folder);
    return stat_fields(folder + "/stat");
  };
  // A thread that is ending starts no other thread, so a second look shows whether one was missed.
  const std::set<std::string> seen = threads_of(pid_);
  std::int64_t code = 0;
  bool code_is_there = true;
  for (const std::string& id : seen) {
    const auto fields = stat_of(id);
    if (fields.empty()) continue;           // this thread has gone
    constexpr std::int64_t kExiting = 0x4;  // PF_EXITING: only a thread in do_exit() has it
    if (fields.size() <= kStatExitCode || (number(fields[kStatFlags]) & kExiting) == 0)
      return std::nullopt;
    if (id != leader) continue;
    code = number(fields[kStatExitCode]);
    // do_exit() sets the exit code after the flag and before it frees the memory.
    code_is_there = code != 0 || number(fields[kStatMemory]) == 0;
  }
  if (seen.empty() || !code_is_there || !std::ranges::includes(seen, threads_of(pid_)))
    return std::nullopt;
  // Of the fields that one look reads, the kernel reads the exit code first, so it may be too old.
  if (code == 0) {
    if (const auto again = stat_of(leader); again.size() > kStatExitCode)
      code = number(again[kStatExitCode]);
  }
  const int signal = static_cast<int>(code & 0x7f);
  if (signal != 0) return Exit{(code & 0x80) != 0 ? CLD_DUMPED : CLD_KILLED, signal};
  return Exit{CLD_EXITED, static_cast<int>(code >> 8 & 0xff)};
}

bool Process::has_ended() const {
  pollfd item{pidfd_.get(), POLLIN, 0};
  return pidfd_.valid() && ::poll(&item, 1, 0) > 0;
}

std::optional<Exit> Process::ended() {
  if (pid_ < 0) return std::nullopt;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return std::nullopt;
  pid_ = -1;
  return Exit{info.si_code, info.si_status};
}

bool Exit::exited_with(int exit_code) const {
  return code == CLD_EXITED && status == exit_code;
}

bool Exit::killed_by(int signal) const {
  return code != CLD_EXITED && status == signal;
}

std::string describe_exit(int code, int status) {
  if (code == CLD_EXITED) return fmt::format("exited with code {}", status);
  const char* name = ::sigabbrev_np(status);
  return fmt::format("killed by signal {} (SIG{})", status, name == nullptr ? "?" : name);
}

}  // namespace bulkhead::orchestrator

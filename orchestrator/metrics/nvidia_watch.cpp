#include "orchestrator/metrics/nvidia_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>

#include "config/base/clean_text.hpp"
#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/device_watch.hpp"
#include "orchestrator/supervisor/spawn.hpp"

namespace bulkhead::orchestrator {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kLookWithin{1};
// A flood of lines ends the process. A look at 64 devices has under a thousand.
constexpr std::size_t kMostLines = 4096;
constexpr std::chrono::seconds kLinesWithin{10};

struct Child {
  pid_t pid = -1;
  UniqueFd in, out;  // the pipes to its stdin and from its stdout
};

Result<Child> start(const std::string& program, const std::string& library) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return errno_error(ErrorCode::kResourceExhausted, "pipe", errno);
  Child child;
  child.in.reset(in[1]);
  const UniqueFd its_in(in[0]);
  if (::pipe2(out, O_CLOEXEC) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "pipe", errno);
  child.out.reset(out[0]);
  const UniqueFd its_out(out[1]);
  for (const int ours : {child.in.get(), child.out.get()})
    ::fcntl(ours, F_SETFL, O_NONBLOCK);
  FileActions actions;
  posix_spawn_file_actions_adddup2(&actions.value, its_in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, its_out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions.value, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions.value, STDERR_FILENO + 1);
  BULKHEAD_TRY(child.pid, spawn(program, {program, "--watch-nvidia", library}, actions));
  return child;
}

}  // namespace

// One thread starts the process, asks it and reads its answers. Every wait of the thread is bounded.
struct NvidiaWatch::State {
  explicit State(Options the_options)
      : options(std::move(the_options)), wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void run() {
    milliseconds pause = options.pause;
    while (!ending()) {
      const steady_clock::time_point began = steady_clock::now();
      if (!serve_once()) return;
      if (steady_clock::now() - began > options.longest_pause) pause = options.pause;
      sleep_for(pause);
      pause = std::min(2 * pause, options.longest_pause);
    }
  }

  void poke() const {
    const std::uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  }

  const Options options;
  const UniqueFd wake;
  std::mutex mutex;
  // All of these are guarded by the mutex.
  bool wanted = true, ends = false, up = false;
  std::uint64_t failures = 0;
  NvidiaReports reports;
  steady_clock::time_point looked_at{};
  std::string told;  // the last failure that was logged

 private:
  bool ending() {
    const std::lock_guard lock(mutex);
    return ends;
  }

  // Runs the process until it is of no more use. Returns false if it could not be reaped before the daemon ended.
  bool serve_once() {
    Child child;
    try {
      Result<Child> started = start(options.program, options.nvml_library);
      if (started.ok()) child = *std::move(started);
      tell(child.pid >= 0 ? serve(child) : started.error().message());
    } catch (const std::exception&) {
      tell_no_memory();
    }
    return child.pid < 0 || reap(child.pid);
  }

  // Waits until one of the descriptors is readable, at most so long. Returns whether `fd` is.
  bool wait_for(int fd, milliseconds most) const {
    pollfd items[] = {{wake.get(), POLLIN, 0}, {fd, POLLIN, 0}};
    const bool any = ::poll(items, fd < 0 ? 1 : 2, static_cast<int>(most.count())) > 0;
    std::uint64_t count = 0;
    if (any && items[0].revents != 0) (void)!::read(wake.get(), &count, sizeof count);
    return any && fd >= 0 && items[1].revents != 0;
  }

  void sleep_for(milliseconds pause) {
    const auto end = steady_clock::now() + pause;
    while (!ending() && steady_clock::now() < end)
      wait_for(-1, std::chrono::ceil<milliseconds>(end - steady_clock::now()));
  }

  // Asks the process and reads its answers. Returns why it is of no more use.
  std::string serve(const Child& child) {
    std::optional<steady_clock::time_point> asked;
    std::string text;
    std::size_t lines = 0;
    steady_clock::time_point counted_from = steady_clock::now();
    for (;;) {
      if (ending()) return "";
      if (!asked && take_wish()) {
        if (::write(child.in.get(), "?", 1) != 1) return "it takes no questions";
        asked = steady_clock::now();
      }
      milliseconds most = std::chrono::hours(1);
      if (asked) {
        most = options.patience -
               std::chrono::duration_cast<milliseconds>(steady_clock::now() - *asked);
        if (most <= milliseconds(0))
          return fmt::format("it has not answered for {} ms; the driver may hang",
                             options.patience.count());
      }
      if (!wait_for(child.out.get(), most)) continue;
      char bytes[4096];
      const ssize_t got = ::read(child.out.get(), bytes, sizeof bytes);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return "it has ended";
      text.append(bytes, static_cast<std::size_t>(got));
      if (steady_clock::now() - counted_from > kLinesWithin) {
        lines = 0;
        counted_from = steady_clock::now();
      }
      if (!take_lines(text, lines)) return "it breaks the rules for what it may say";
      if (take_end()) asked.reset();
    }
  }

  bool take_wish() {
    const std::lock_guard lock(mutex);
    return std::exchange(wanted, false);
  }

  bool take_lines(std::string& text, std::size_t& lines) {
    const std::lock_guard lock(mutex);
    std::size_t from = 0;
    for (std::size_t end; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
      if (++lines > kMostLines || !reports.take(std::string_view(text).substr(from, end - from)))
        return false;
    }
    text.erase(0, from);
    return text.size() <= ipc::kLongestWatchLine;
  }

  bool take_end() {
    const std::lock_guard lock(mutex);
    if (!reports.look_ended()) return false;
    looked_at = steady_clock::now();
    return up = true;
  }

  // Ends the process. The kernel may hold the process in a driver's call, and no other process is started until that
  // call returns. Returns false if the daemon ends first.
  bool reap(pid_t pid) {
    ::kill(pid, SIGKILL);
    const auto end = steady_clock::now() + std::chrono::seconds(1);
    for (int status = 0; ::waitpid(pid, &status, WNOHANG) == 0;) {
      const bool soon = steady_clock::now() < end;
      if (ending() && !soon) return false;
      wait_for(-1, soon ? milliseconds(2) : milliseconds(500));
    }
    return true;
  }

  // Allocates nothing.
  void tell_no_memory() {
    const std::lock_guard lock(mutex);
    reports.forget();
    up = false;
    ++failures;
  }

  void tell(const std::string& why) {
    const std::lock_guard lock(mutex);
    const std::string words = reports.failure().empty() ? why : reports.failure();
    reports.forget();
    up = false;
    if (ends) return;
    ++failures;
    if (std::exchange(told, words) == words) return;
    spdlog::warn("no figures of NVIDIA's devices for now: {} (server.nvml_library: {})",
                 cleaned(words), options.nvml_library);
  }
};

NvidiaWatch::NvidiaWatch(Options options) : state_(std::make_shared<State>(std::move(options))) {
  start_if_there();
}

NvidiaWatch::~NvidiaWatch() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->poke();
  }
  thread_.await_end(std::chrono::seconds(1));
}

void NvidiaWatch::start_if_there() {
  const std::string& library = state_->options.nvml_library;
  if (library.empty() || thread_.started()) return;
  std::error_code error;
  const bool there = library.find('/') != std::string::npos ||
                     std::filesystem::exists(state_->options.root + "/dev/nvidiactl", error);
  if (!there) return;
  // The thread is detached, because the kernel may hold its process when the daemon ends. The process ends with the
  // thread (PR_SET_PDEATHSIG).
  thread_.start([state = state_] { state->run(); });
}

std::vector<DaemonFigure> NvidiaWatch::figures(bool xids) {
  const std::lock_guard lock(state_->mutex);
  try {
    start_if_there();
  } catch (const std::exception&) {  // there is no thread; the next call tries again
    ++state_->failures;
  }
  if (!thread_.started()) return {};
  if (steady_clock::now() - state_->looked_at >= kLookWithin) {
    state_->wanted = true;
    state_->poke();
  }
  std::vector<DaemonFigure> figures = {
      {"bulkhead_device_watch_up",
       "1 while the process that asks NVIDIA's driver for figures answers", state_->up ? 1.0 : 0.0,
       false},
      {"bulkhead_device_watch_failures_total",
       "Ends of the process that asks NVIDIA's driver for figures",
       static_cast<double>(state_->failures)}};
  state_->reports.append_to(figures, xids);
  return figures;
}

}  // namespace bulkhead::orchestrator

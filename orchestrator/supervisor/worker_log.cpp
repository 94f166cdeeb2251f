#include "orchestrator/supervisor/worker_log.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/sinks/base_sink.h>

#include "config/base/clean_text.hpp"
#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/utc_time.hpp"

namespace bulkhead::orchestrator {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kLogReadBytes = 16 * 1024;
// The most bytes read from one pipe in a tenth of a second, dropped lines included. If a worker writes more, the
// worker waits, not the daemon.
constexpr std::size_t kMostReadPerWindow = 512 * 1024;
constexpr milliseconds kWindow{100};
constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn", "error"};

// Allows `per_second` lines or bytes a second, and `at_once` of them at once after a quiet time.
class Allowance {
 public:
  Allowance(std::uint64_t per_second, std::uint64_t at_once)
      : per_second_(static_cast<double>(per_second)),
        most_(static_cast<double>(at_once)),
        left_(most_) {}
  void pass(Clock::duration time) {
    left_ = std::min(most_, left_ + per_second_ * std::chrono::duration<double>(time).count());
  }
  bool has(std::size_t amount) const { return left_ >= static_cast<double>(amount); }
  void take(std::size_t amount) { left_ -= static_cast<double>(amount); }

 private:
  double per_second_, most_, left_;
};

struct Pipe {
  Pipe(std::string the_name, UniqueFd the_fd) : name(std::move(the_name)), fd(std::move(the_fd)) {}

  std::string name;
  UniqueFd fd;
  std::string partial;        // the beginning of a line that has no end yet
  bool skips_rest = false;    // the line was too long, and its beginning has been passed on
  std::size_t in_window = 0;  // bytes read
  std::uint64_t untold = 0;   // dropped lines that the log has not mentioned yet
  Allowance lines{WorkerLogs::kLinesPerSecond, WorkerLogs::kLinesAtOnce};
  Allowance bytes{WorkerLogs::kBytesPerSecond, WorkerLogs::kBytesAtOnce};
};

// The last lines of each worker. When there are too many names, this class drops those that were
// silent longest.
class KeptLines {
 public:
  void add(const std::string& name, std::string_view text) {
    WorkerLogs::Line line{0, utc_text(std::chrono::system_clock::now()),
                          cleaned(text.substr(0, WorkerLogs::kMaxLineBytes))};
    std::lock_guard lock(mutex_);
    line.number = ++last_number_;
    Kept& kept = names_[name];
    kept.bytes += size_of(line);
    kept.lines.push_back(std::move(line));
    for (; kept.bytes > WorkerLogs::kKeptBytesPerName; kept.lines.pop_front())
      kept.bytes -= size_of(kept.lines.front());
    if (names_.size() <= WorkerLogs::kKeptNames) return;
    names_.erase(std::ranges::min_element(
        names_, {}, [](const auto& each) { return each.second.lines.back().number; }));
  }

  std::vector<WorkerLogs::Line> of(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = names_.find(name);
    if (found == names_.end()) return {};
    return {found->second.lines.begin(), found->second.lines.end()};
  }

 private:
  struct Kept {
    std::deque<WorkerLogs::Line> lines;
    std::size_t bytes = 0;
  };
  static std::size_t size_of(const WorkerLogs::Line& line) {
    return sizeof line + line.time.size() + line.text.size();
  }

  mutable std::mutex mutex_;
  std::map<std::string, Kept> names_;
  std::uint64_t last_number_ = 0;
};

// Takes the daemon's lines of the form "worker NAME: ...".
class LinesAboutWorkers final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    constexpr std::string_view kWorker = "worker ";
    const std::string_view text(message.payload.data(), message.payload.size());
    if (!text.starts_with(kWorker)) return;
    const std::size_t end = text.find(": ");
    if (end == std::string_view::npos) return;
    const std::string name(text.substr(kWorker.size(), end - kWorker.size()));
    WorkerLogs::instance().keep(name, text.substr(end + 2));
  }
  void flush_() override {}
};

}  // namespace

void keep_lines_about_workers() {
  spdlog::default_logger()->sinks().push_back(std::make_shared<LinesAboutWorkers>());
}

std::string worker_log_line(const std::string& worker, std::string_view line, bool json) {
  if (!json) return cleaned(worker) + "| " + cleaned(line) + "\n";
  std::string level = "info", message(line);
  const nlohmann::json said = nlohmann::json::parse(line, nullptr, false);
  if (said.is_object()) {
    if (const auto found = said.find("message"); found != said.end() && found->is_string())
      message = found->get<std::string>();
    if (const auto found = said.find("level"); found != said.end() && found->is_string()) {
      const std::string& told = found->get_ref<const std::string&>();
      if (std::ranges::count(kLevels, told) > 0) level = told;
    }
  }
  char time[40];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S.000Z", &utc);
  return fmt::format(
      "{{\"time\":\"{}\",\"level\":\"{}\",\"program\":\"bulkhead-worker\",\"worker\":\"{}\","
      "\"message\":\"{}\"}}\n",
      time, level, cleaned(worker, Escapes::kJson), cleaned(message, Escapes::kJson));
}

struct WorkerLogs::Shared {
  // Never ends. What finds no memory is lost, and counted.
  void run() {
    while (true) {
      try {
        turn();
      } catch (const std::exception&) {  // no memory for the list of pipes
        (void)::poll(nullptr, 0, static_cast<int>(kWindow.count()));
      }
    }
  }

  // Waits until there is something to do, and does it.
  void turn() {
    bool waits = false;  // some pipe waits for the next window
    items.assign(1, {wake.get(), POLLIN, 0});
    for (Pipe& pipe : pipes) {
      const bool rests = pipe.in_window >= kMostReadPerWindow;
      waits |= rests;
      items.push_back({rests ? -1 : pipe.fd.get(), POLLIN, 0});
    }
    const bool asked = asked_seen != answered;
    const auto longest = asked ? milliseconds(0) : waits ? kWindow : milliseconds(-1);
    (void)::poll(items.data(), items.size(), static_cast<int>(longest.count()));
    if (asked && std::all_of(items.begin() + 1, items.end(),
                             [](const pollfd& item) { return item.revents == 0; }))
      answer();
    const Clock::time_point now = Clock::now();
    for (Pipe& pipe : pipes) {
      pipe.lines.pass(now - last);
      pipe.bytes.pass(now - last);
      if (now - window >= kWindow) pipe.in_window = 0;
    }
    last = now;
    if (now - window >= kWindow) window = now;
    std::size_t i = 1;
    for (auto pipe = pipes.begin(); pipe != pipes.end() && i < items.size(); ++i) {
      const bool ended = items[i].revents != 0 && !read(*pipe);
      pipe = ended ? pipes.erase(pipe) : std::next(pipe);
    }
    take_new_ones();
  }

  void take_new_ones() {
    std::uint64_t count = 0;
    (void)!::read(wake.get(), &count, sizeof count);
    std::lock_guard lock(mutex);
    pipes.splice(pipes.end(), added);
    asked_seen = asked_last;
  }

  // Called when the thread has read everything that was written before the last question that it has seen, except from
  // pipes that rest.
  void answer() {
    std::lock_guard lock(mutex);
    answered = asked_seen;
    was_answered.notify_all();
  }

  // Returns false at the pipe's end.
  bool read(Pipe& pipe) {
    char bytes[kLogReadBytes];
    const ssize_t got = ::read(pipe.fd.get(), bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    std::string_view rest(bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    try {
      take(pipe, rest);
    } catch (
        const std::exception&) {  // no memory for the rest, which begins with the line that failed
      const bool begun =
          !rest.empty() && rest.back() != '\n';  // the end of its last line comes later
      const auto lost =
          static_cast<std::uint64_t>(std::ranges::count(rest, '\n')) + (begun ? 1 : 0);
      dropped += std::max<std::uint64_t>(lost, 1);
      pipe.untold += std::max<std::uint64_t>(lost, 1);
      pipe.partial.clear();
      pipe.skips_rest = begun;
    }
    return got > 0;
  }

  // Takes what was read from the pipe; nothing means the pipe's end. Removes each line from `rest` when it is done.
  void take(Pipe& pipe, std::string_view& rest) {
    if (rest.empty()) {
      if (!pipe.partial.empty()) pass_on(pipe, pipe.partial);
      return tell_dropped(pipe);
    }
    pipe.in_window += rest.size();
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      if (!pipe.skips_rest) {
        const std::size_t room = kMaxLineBytes - std::min(kMaxLineBytes, pipe.partial.size());
        pipe.partial += piece.substr(0, room);
        if (piece.size() > room) {
          pass_on(pipe, pipe.partial + " [cut]");
          pipe.partial.clear();
          pipe.skips_rest = true;
        }
      }
      if (end == std::string_view::npos) {
        rest = {};
        break;
      }
      if (!pipe.skips_rest) pass_on(pipe, pipe.partial);
      pipe.partial.clear();
      pipe.skips_rest = false;
      rest.remove_prefix(end + 1);
    }
  }

  void pass_on(Pipe& pipe, std::string_view text) {
    const std::string line = worker_log_line(pipe.name, text, log::is_json());
    if (!pipe.lines.has(1) || !pipe.bytes.has(line.size())) {
      ++dropped;
      ++pipe.untold;
      return;
    }
    tell_dropped(pipe);
    kept.add(pipe.name, text);
    pipe.lines.take(1);
    pipe.bytes.take(line.size());
    ++lines;
    log::write_raw(line);
  }

  static void tell_dropped(Pipe& pipe) {
    if (pipe.untold == 0) return;
    spdlog::warn("worker {}: {} line(s) that it wrote to its log were dropped: it writes too much",
                 pipe.name, std::exchange(pipe.untold, 0));
  }

  UniqueFd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  std::list<Pipe> added;  // under the mutex
  // Questions of catch_up(): the last one that was asked, and the last one that was answered. Under the mutex.
  std::uint64_t asked_last = 0, answered = 0;
  std::condition_variable was_answered;
  // Only the thread uses everything down to `asked_seen`.
  std::list<Pipe> pipes;
  std::vector<pollfd> items;  // the eventfd, and one item for each pipe
  Clock::time_point window = Clock::now(), last = window;
  std::uint64_t asked_seen = 0;
  KeptLines kept;
  std::atomic<std::uint64_t> lines{0}, dropped{0};
};

WorkerLogs& WorkerLogs::instance() {
  static WorkerLogs* const logs = new WorkerLogs;  // its thread runs until the process ends
  return *logs;
}

WorkerLogs::WorkerLogs() {
  auto shared = std::make_unique<Shared>();
  if (!shared->wake.valid())
    throw std::system_error(errno, std::generic_category(), "an eventfd for the workers' logs");
  quiet_thread([shared = shared.get()] { shared->run(); }).detach();
  shared_ = shared.release();
}

Result<UniqueFd> WorkerLogs::open(std::string name) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "a pipe for a worker's log", errno);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  {
    std::lock_guard lock(shared_->mutex);
    shared_->added.emplace_back(std::move(name), std::move(ours));
  }
  const std::uint64_t one = 1;
  (void)!::write(shared_->wake.get(), &one, sizeof one);
  return theirs;
}

bool WorkerLogs::catch_up(std::chrono::milliseconds most) {
  std::unique_lock lock(shared_->mutex);
  const std::uint64_t question = ++shared_->asked_last;
  const std::uint64_t one = 1;
  (void)!::write(shared_->wake.get(), &one, sizeof one);
  return shared_->was_answered.wait_for(lock, most, [&] { return shared_->answered >= question; });
}

std::vector<WorkerLogs::Line> WorkerLogs::lines(const std::string& name) const {
  return shared_->kept.of(name);
}

void WorkerLogs::keep(const std::string& name, std::string_view text) {
  shared_->kept.add(name, text);
}

WorkerLogs::Figures WorkerLogs::figures() const {
  return {shared_->lines.load(), shared_->dropped.load()};
}

}  // namespace bulkhead::orchestrator

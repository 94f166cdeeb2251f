#include "tools/cli/line_reader.hpp"

#include <fcntl.h>
#include <poll.h>
#include <readline/history.h>
#include <readline/readline.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "tools/cli/api.hpp"

namespace bulkhead::cli {

namespace {

constexpr int kHistoryEntries = 1000;

// Lines of stdin by read(), so that Ctrl-C is seen.
class PlainReader final : public LineReader {
 public:
  Outcome next(std::string& line) override {
    for (;;) {
      const std::size_t end = buffer_.find('\n', searched_);
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        if (line.ends_with('\r')) line.pop_back();
        return Outcome::kLine;
      }
      searched_ = buffer_.size();
      char chunk[4096];
      const ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (got > 0) {
        buffer_.append(chunk, static_cast<std::size_t>(got));
      } else if (got < 0 && errno == EINTR) {
        if (interrupted) return Outcome::kInterrupted;
      } else if (got < 0) {
        return Outcome::kFailed;
      } else {
        if (buffer_.empty()) return Outcome::kEnd;
        line = std::exchange(buffer_, "");
        searched_ = 0;
        return Outcome::kLine;
      }
    }
  }

 private:
  std::string buffer_;
  std::size_t searched_ = 0;
};

// SIGINT comes at the ppoll() below and nowhere else, so that none is missed between a look and the wait.
class HeldInterrupts {
 public:
  HeldInterrupts() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~HeldInterrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldInterrupts(const HeldInterrupts&) = delete;
  HeldInterrupts& operator=(const HeldInterrupts&) = delete;
  const sigset_t* before() const { return &before_; }

 private:
  sigset_t before_;
};

// Readline's state is global, so there is one of these. Its callbacks are driven by a ppoll() of our own:
// Readline's own loop would go on after Ctrl-C.
class EditedReader final : public LineReader {
 public:
  explicit EditedReader(std::string history_file) : history_file_(std::move(history_file)) {
    rl_readline_name = "bulkhead";
    rl_catch_signals = 0;
    rl_bind_key('\t', rl_insert);  // file names are nothing to complete here
    rl_variable_bind("enable-bracketed-paste", "on");
    using_history();
    stifle_history(kHistoryEntries);
    history_write_timestamps = 1;  // they keep the lines of one message together
    history_comment_char = '#';
    if (history_file_.empty()) return;
    const UniqueFd made(::open(history_file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    read_history(history_file_.c_str());
    history_truncate_file(history_file_.c_str(), kHistoryEntries);
  }
  ~EditedReader() override { rl_callback_handler_remove(); }

  Outcome next(std::string& line) override {
    taken_.reset();
    over_ = false;
    const HeldInterrupts held;
    rl_callback_handler_install("> ", take);
    while (!over_) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::ppoll(&input, 1, nullptr, held.before());
      if (interrupted) {
        rl_callback_sigcleanup();
        rl_callback_handler_remove();
        return Outcome::kInterrupted;
      }
      if (ready > 0) {
        rl_callback_read_char();
      } else if (errno != EINTR) {
        rl_callback_handler_remove();
        return Outcome::kFailed;
      }
    }
    if (!taken_) return Outcome::kEnd;
    line = *std::move(taken_);
    remember(line);
    return Outcome::kLine;
  }

 private:
  static void take(char* line) {
    rl_callback_handler_remove();  // before it shows the next prompt
    over_ = true;
    if (line != nullptr) taken_ = line;
    std::free(line);
  }

  void remember(const std::string& line) const {
    const HIST_ENTRY* last = history_get(history_base + history_length - 1);
    if (line.find_first_not_of(" \t\n") == std::string::npos ||
        (last != nullptr && line == last->line))
      return;
    add_history(line.c_str());
    if (!history_file_.empty()) append_history(1, history_file_.c_str());
  }

  static inline std::optional<std::string> taken_;  // empty once it is over: Ctrl-D
  static inline bool over_ = false;
  std::string history_file_;
};

// The path of the history file; makes its folders. Empty where there is no home, or where a folder can't be made.
std::string history_file() {
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::filesystem::path folder = value_of("XDG_STATE_HOME");
  if (!folder.is_absolute()) {
    folder = value_of("HOME");
    if (!folder.is_absolute()) return "";
    folder = folder / ".local" / "state";
  }
  folder /= "bulkhead";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : (folder / "chat_history").string();
}

}  // namespace

std::unique_ptr<LineReader> make_line_reader() {
  if (::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0)
    return std::make_unique<EditedReader>(history_file());
  return std::make_unique<PlainReader>();
}

}  // namespace bulkhead::cli

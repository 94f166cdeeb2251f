#include "tools/cli/line_reader.hpp"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "tools/cli/api.hpp"
#include "tools/cli/archive.hpp"
#include "tools/cli/held_stops.hpp"

namespace bulkhead::cli {

namespace {

constexpr std::size_t kHistoryEntries = 1000;

// A reader that uses read(), so that it notices Ctrl-C.
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

// While this object lives, SIGINT arrives only at the ppoll() below, so that no signal is missed
// between the check and the wait.
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

 private:
  sigset_t before_;
};

// Earlier messages, kept in a file: one a line, with line ends and backslashes written as "\\n" and "\\\\". A line
// that begins with '#' is a comment; earlier versions (with GNU Readline) wrote times there.
class KeptMessages {
 public:
  explicit KeptMessages(std::string file) : file_(std::move(file)) {}

  // Returns the last kHistoryEntries messages, and cuts the file to them.
  std::vector<std::string> load() const {
    std::vector<std::string> messages;
    if (file_.empty()) return messages;
    const UniqueFd made(::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    std::ifstream stream(file_);
    for (std::string line; std::getline(stream, line);) {
      if (!line.empty() && line.front() != '#') messages.push_back(unescaped(line));
    }
    if (messages.size() <= kHistoryEntries) return messages;
    messages.erase(messages.begin(), messages.end() - static_cast<std::ptrdiff_t>(kHistoryEntries));
    std::string text;
    for (const std::string& message : messages)
      text += escaped(message) + "\n";
    (void)write_private_file(file_, text);
    return messages;
  }
  void add(const std::string& message) const {
    if (file_.empty()) return;
    const UniqueFd fd(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
    const std::string line = escaped(message) + "\n";
    (void)!::write(fd.get(), line.data(), line.size());
  }

 private:
  static std::string escaped(const std::string& message) {
    std::string line = message.starts_with('#') ? "\\" : "";
    for (const char c : message) {
      if (c == '\\') line += '\\';
      line += c == '\n' ? "\\n" : std::string(1, c);
    }
    return line;
  }
  static std::string unescaped(const std::string& line) {
    std::string message;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool escape = line[i] == '\\' && i + 1 < line.size();
      if (escape) ++i;
      message += escape && line[i] == 'n' ? '\n' : line[i];
    }
    return message;
  }

  std::string file_;
};

// A reader that edits lines with libedit. libedit calls read_character(), since libedit's own loop
// would go on after Ctrl-C.
class EditedReader final : public LineReader {
 public:
  explicit EditedReader(std::string history_file)
      : kept_(std::move(history_file)), history_(::history_init()) {
    // Characters beyond ASCII need a locale that has them, and containers often have no such
    // locale.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = ::el_init("bulkhead", stdin, stdout, stderr);
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryEntries));
    for (const std::string& message : kept_.load())
      remember(message);
    ::el_set(edit_, EL_CLIENTDATA, this);
    ::el_set(edit_, EL_PROMPT, prompt);
    ::el_set(edit_, EL_EDITOR, "emacs");
    ::el_set(edit_, EL_SIGNAL, 0);
    ::el_set(edit_, EL_HIST, ::history, history_);
    ::el_set(edit_, EL_GETCFN, read_character);
    ::el_set(edit_, EL_ADDFN, "bulkhead-paste", "takes what is pasted as it is", take_paste);
    ::el_set(edit_, EL_BIND, "\\e[200~", "bulkhead-paste", nullptr);
    ::el_set(edit_, EL_BIND, "\t", "ed-insert", nullptr);  // there are no file names to complete
  }
  ~EditedReader() override {
    ::el_end(edit_);
    ::history_end(history_);
  }
  EditedReader(const EditedReader&) = delete;
  EditedReader& operator=(const EditedReader&) = delete;

  Outcome next(std::string& line) override {
    const HeldStops stops({SIGTSTP, SIGTERM});
    const HeldInterrupts held;
    stops_ = &stops;
    // libedit shows the prompt, and only then takes the keys from the terminal. A Ctrl-D typed in between would be
    // lost.
    ::el_set(edit_, EL_PREP_TERM, 1);
    put(kMarkPastes);
    ::el_resize(edit_);
    int count = 0;
    const char* taken = ::el_gets(edit_, &count);
    const int error = errno;
    put(kLeavePastes);
    if (interrupted) return Outcome::kInterrupted;
    errno = error;
    if (taken == nullptr) return count < 0 ? Outcome::kFailed : Outcome::kEnd;
    line.assign(taken, static_cast<std::size_t>(count));
    if (line.ends_with('\n')) line.pop_back();
    if (line.find_first_not_of(" \t\n") != std::string::npos && line != last_) {
      remember(line);
      kept_.add(line);
    }
    return Outcome::kLine;
  }

 private:
  // Terminals put "ESC [200~" and "ESC [201~" around pasted text ("bracketed paste" of xterm).
  static constexpr std::string_view kMarkPastes = "\x1b[?2004h", kLeavePastes = "\x1b[?2004l";
  static constexpr std::string_view kPasteEnds = "\x1b[201~";

  static char* prompt(EditLine*) {
    static char text[] = "> ";
    return text;
  }

  static EditedReader& of(EditLine* edit) {
    void* self = nullptr;
    ::el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<EditedReader*>(self);
  }

  // Returns 1, or 0 at the end of stdin, or -1 with errno.
  int read_byte(char& byte) const {
    for (;;) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::ppoll(&input, 1, nullptr, stops_->before());
      if (interrupted) {
        errno = EINTR;
        return -1;
      }
      if (HeldStops::arrived()) stop_or_end();
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) return -1;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got >= 0 || errno != EINTR) return static_cast<int>(got);
    }
  }

  // Gives the shell the terminal as it was. When the user comes back, the line is shown again.
  void stop_or_end() const {
    put(kLeavePastes);
    ::el_set(edit_, EL_PREP_TERM, 0);
    put("\n");
    stops_->obey();
    ::el_set(edit_, EL_PREP_TERM, 1);
    put(kMarkPastes);
    ::el_set(edit_, EL_REFRESH);
  }

  // Reads the next character from its bytes, as EL_GETCFN requires. Bytes that form none become '?'.
  static int read_character(EditLine* edit, wchar_t* character) {
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const int got = of(edit).read_byte(byte);
      if (got <= 0) return got;
      const std::size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == static_cast<std::size_t>(-2)) continue;
      if (used == static_cast<std::size_t>(-1)) *character = L'?';
      return 1;
    }
  }

  // Puts the whole paste into the line, with its line ends but without other control characters.
  static unsigned char take_paste(EditLine* edit, int) {
    std::string bytes;
    while (!bytes.ends_with(kPasteEnds)) {
      char byte = 0;
      if (of(edit).read_byte(byte) <= 0) return CC_EOF;
      bytes += byte;
    }
    bytes.resize(bytes.size() - kPasteEnds.size());
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == '\r') {
        if (i + 1 == bytes.size() || bytes[i + 1] != '\n') text += '\n';
      } else if (bytes[i] == '\n' || bytes[i] == '\t' ||
                 static_cast<unsigned char>(bytes[i]) >= 0x20) {
        text += bytes[i];
      }
    }
    ::el_insertstr(edit, text.c_str());
    return CC_REFRESH;
  }

  void remember(const std::string& message) {
    HistEvent event;
    ::history(history_, &event, H_ENTER, message.c_str());
    last_ = message;
  }

  KeptMessages kept_;
  History* history_;
  EditLine* edit_ = nullptr;
  const HeldStops* stops_ = nullptr;  // while the reader waits
  std::string last_;
};

// Returns the path of the history file, and makes its folders. Empty if there is no home, or if the
// program can't make a folder.
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

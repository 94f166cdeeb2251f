// Runs the tool as a user does at a terminal.
#pragma once

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "tests/integration/serving.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {

// `bulkhead` with these arguments, at a terminal and with a home folder of its own.
class Terminal {
 public:
  // `more` has environment variables to add to those of this process.
  Terminal(std::vector<std::string> arguments, const std::string& home,
           const std::map<std::string, std::string>& more = {}) {
    arguments.insert(arguments.begin(), BULKHEAD_TOOL);
    start(arguments, home, more);
  }
  // Runs a line of a shell instead.
  Terminal(const std::string& line, const std::string& home) {
    start({"/bin/bash", "-c", line}, home, {});
  }
  ~Terminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }
  void type(const std::string& text) const {
    EXPECT_EQ(::write(fd_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Reads until `text` comes, after the text that was awaited before.
  bool shows(const std::string& text) {
    for (;;) {
      if (const std::size_t at = shown_.find(text, seen_); at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      pollfd readable{fd_.get(), POLLIN, 0};
      char bytes[4096];
      if (::poll(&readable, 1, 30'000) != 1) return false;
      const ssize_t got = ::read(fd_.get(), bytes, sizeof bytes);
      if (got <= 0) return false;
      shown_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  const std::string& shown() const { return shown_; }
  // Returns whether the terminal itself edits lines, so that the program does not get typed
  // characters yet.
  bool edits_lines() const {
    termios modes{};
    EXPECT_EQ(::tcgetattr(fd_.get(), &modes), 0);
    return (modes.c_lflag & ICANON) != 0;
  }
  int exit_code() {
    int status = 0;
    char bytes[4096];
    while (::read(fd_.get(), bytes, sizeof bytes) > 0) {
    }
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  }

 private:
  void start(const std::vector<std::string>& command, const std::string& home,
             const std::map<std::string, std::string>& more) {
    std::vector<char*> words;
    for (const std::string& each : command)
      words.push_back(const_cast<char*>(each.c_str()));
    words.push_back(nullptr);
    int fd = -1;
    pid_ = ::forkpty(&fd, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::setenv("HOME", home.c_str(), 1);
      ::unsetenv("XDG_STATE_HOME");
      ::unsetenv("NO_COLOR");
      for (const auto& [name, value] : more)
        ::setenv(name.c_str(), value.c_str(), 1);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    fd_.reset(fd);
  }

  pid_t pid_ = -1;
  UniqueFd fd_;
  std::string shown_;
  std::size_t seen_ = 0;
};

struct Home {
  const TemporaryFolder folder{"home"};
  const std::string path = folder.path();
};

}  // namespace bulkhead::test

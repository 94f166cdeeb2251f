// `bulkhead chat` as somebody uses it: at a terminal, and from a pipe.
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

// The program at a terminal of its own, with a home of its own.
class Terminal {
 public:
  Terminal(const std::string& url, const std::string& home) {
    int fd = -1;
    pid_ = ::forkpty(&fd, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::setenv("HOME", home.c_str(), 1);
      ::unsetenv("XDG_STATE_HOME");
      ::execl(BULKHEAD_TOOL, BULKHEAD_TOOL, "chat", "--url", url.c_str(), "--seed", "4",
              "--max-tokens", "3", nullptr);
      ::_exit(127);
    }
    fd_.reset(fd);
  }
  ~Terminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  void type(const std::string& text) const {
    EXPECT_EQ(::write(fd_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Reads on until `text` came, behind what was awaited before.
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
  int exit_code() {
    int status = 0;
    char bytes[4096];
    while (::read(fd_.get(), bytes, sizeof bytes) > 0) {
    }
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd fd_;
  std::string shown_;
  std::size_t seen_ = 0;
};

struct Home {
  Home() {
    char name[] = "/tmp/bulkhead-home-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Home() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string url_of(const Serving& serving) {
  return "http://127.0.0.1:" + std::to_string(serving.port);
}

TEST(Terminal, WhatIsPastedAtOnceIsOneMessage) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal(url_of(serving), home.path);
  ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
  terminal.type("\x1b[200~one\ntwo\nthree\x1b[201~");
  ASSERT_TRUE(terminal.shows("three")) << terminal.shown();
  terminal.type("\r");
  ASSERT_TRUE(terminal.shows(expected_text(4, 3))) << terminal.shown();
  ASSERT_TRUE(terminal.shows("> "));
  const std::string prompt = "user: one\ntwo\nthree\n";
  const std::string line = "prompt_tokens=" + std::to_string(prompt.size()) + " ";
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find(line) != std::string::npos;
  })) << serving.daemon->log();
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST(Terminal, LinesAreEditedAndComeBackTheNextTime) {
  const Serving serving = serve();
  const Home home;
  for (const bool again : {false, true}) {
    Terminal terminal(url_of(serving), home.path);
    ASSERT_TRUE(terminal.shows("> ")) << terminal.shown();
    // The line's beginning is mended; the next time it is there again, before "/quit".
    terminal.type(again ? "\x1b[A\x1b[A" : "ello\x01h");
    ASSERT_TRUE(terminal.shows(again ? "hello" : "h")) << terminal.shown();
    terminal.type("\r");
    ASSERT_TRUE(terminal.shows(expected_text(4, 3))) << terminal.shown();
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type("half a line\x03");
    ASSERT_TRUE(terminal.shows("(Ctrl-D or /quit ends)")) << terminal.shown();
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type("/quit\r");
    EXPECT_EQ(terminal.exit_code(), 0);
  }
  const std::string line = "prompt_tokens=" + std::to_string("user: hello\n"s.size()) + " ";
  EXPECT_TRUE(Serving::eventually([&] {
    const std::string log = serving.daemon->log();
    const std::size_t first = log.find(line);
    return first != std::string::npos && log.find(line, first + 1) != std::string::npos;
  })) << serving.daemon->log();
  const auto file = std::filesystem::path(home.path) / ".local/state/bulkhead/chat_history";
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(Chat, GoesOnWhenTheContextIsFull) {
  const Serving serving = serve();
  const Home home;
  std::ofstream(home.path + "/in") << "fits@60 first\nfits@60 second\n"
                                   << "fits@60 is itself longer than what fits into this context, "
                                      "by a little\n";
  const std::string command = BULKHEAD_TOOL " chat --url "s + url_of(serving) +
                              " --seed 4 --max-tokens 3 < " + home.path + "/in > " + home.path +
                              "/out 2> " + home.path + "/err";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const auto content = [&home](const char* name) {
    std::ifstream file(home.path + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(content("/out"), expected_text(4, 3) + "\n" + expected_text(4, 3) + "\n");
  EXPECT_NE(content("/err").find("oldest turns are left out"), std::string::npos)
      << content("/err");
  EXPECT_NE(content("/err").find("too many tokens"), std::string::npos) << content("/err");
}

}  // namespace
}  // namespace bulkhead::test

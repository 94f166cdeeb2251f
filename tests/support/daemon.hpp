// A bulkheadd process of a test: started with settings and an environment, and killed at the end if it still runs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "tests/support/lent_kernels.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {

class Daemon {
 public:
  struct Options {
    std::vector<std::string> arguments;  // in addition to --set server.port=0
    // Added to the test's environment. Without an XDG_CACHE_HOME the tests' shared one is used, so that kernels which
    // one daemon compiles serve the next.
    std::map<std::string, std::string> environment;
    // The names of workers that compute: their cache folders begin with other tests' kernels.
    std::vector<std::string> computing_workers = {};
    int listener = -1;  // a socket that the daemon gets as from a service manager
    int log_fd = -1;    // its stderr, instead of the file that log() reads
  };

  Daemon(const std::string& program, const Options& options) {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) std::abort();
    char name[] = "/tmp/bulkhead-test-XXXXXX";
    UniqueFd log(::mkostemp(name, O_CLOEXEC));
    log_file_ = name;
    std::vector<std::string> words = {program, "--set", "server.port=0"};
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const auto home = options.environment.find("XDG_CACHE_HOME");
    const std::filesystem::path caches =
        std::filesystem::path(home == options.environment.end() ? kCacheHome : home->second) /
        "bulkhead";
    lent_.emplace(caches, options.computing_workers);
    pid_ = ::fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out[1], 1);
      ::dup2(options.log_fd >= 0 ? options.log_fd : log.get(), 2);
      ::setenv("XDG_CACHE_HOME", kCacheHome, 1);
      for (const auto& [key, value] : options.environment)
        ::setenv(key.c_str(), value.c_str(), 1);
      if (options.listener >= 0) {  // sd_listen_fds(3)
        if (options.listener == 3) {
          ::fcntl(3, F_SETFD, 0);
        } else {
          ::dup2(options.listener, 3);
        }
        ::setenv("LISTEN_FDS", "1", 1);
        ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
      }
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    stdout_.reset(out[0]);
  }
  ~Daemon() {
    if (!ended_) {
      send_signal(pid_, SIGKILL);
      int status = 0;
      ::waitpid(pid_, &status, 0);
    }
    ::unlink(log_file_.c_str());
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Waits for the line; returns 0 if the daemon ended without it.
  std::uint16_t wait_until_listening(int patience_ms = 180000) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
    while (output_.find('\n') == std::string::npos) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                      deadline - std::chrono::steady_clock::now())
                      .count();
      pollfd item{stdout_.get(), POLLIN, 0};
      char bytes[512];
      if (left <= 0 || ::poll(&item, 1, static_cast<int>(left)) <= 0) return 0;
      ssize_t got = ::read(stdout_.get(), bytes, sizeof bytes);
      if (got <= 0) return 0;
      output_.append(bytes, static_cast<std::size_t>(got));
    }
    if (!output_.starts_with("listening on http://")) return 0;
    port_ = static_cast<std::uint16_t>(
        std::strtoul(output_.c_str() + output_.rfind(':') + 1, nullptr, 10));
    return port_;
  }

  // Returns 0 before wait_until_listening() has seen the port.
  std::uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }
  std::string log() const {
    std::ifstream file(log_file_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Waits for the words, because a thread of the daemon writes its log.
  bool says(const std::string& words, std::size_t from = 0) const {
    for (int i = 0; i < 12000; ++i) {
      const std::string text = log();
      if (text.size() >= from && text.find(words, from) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  void signal(int number) { send_signal(pid_, number); }

  // Returns the exit code, or minus the signal; nothing if the daemon still runs after the patience.
  std::optional<int> wait_for_exit(int patience_ms = 120000) {
    for (int waited = 0; waited <= patience_ms; waited += 10) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
  }

 private:
  static constexpr const char* kCacheHome = BULKHEAD_BIN_DIR "/../tests/worker-caches";

  pid_t pid_ = -1;
  UniqueFd stdout_;
  std::string output_, log_file_;
  std::optional<LentKernels> lent_;
  std::uint16_t port_ = 0;
  bool ended_ = false;
};

}  // namespace bulkhead::test

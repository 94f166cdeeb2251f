#include "orchestrator/supervisor/spawn.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace bulkhead::orchestrator {

namespace {

struct Attributes {
  posix_spawnattr_t value;
  Attributes() { posix_spawnattr_init(&value); }
  ~Attributes() { posix_spawnattr_destroy(&value); }
};

}  // namespace

Result<UniqueFd> move_high(int fd) {
  const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstHigh);
  if (high < 0) {
    return errno_error(
        ErrorCode::kResourceExhausted,
        "duplicating a worker's descriptor (the limit on open files, `ulimit -n`, may be too low)",
        errno);
  }
  return UniqueFd(high);
}

std::vector<char*> environment_without_secrets() {
  std::vector<char*> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("BULKHEAD_API_KEY=")) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

Result<pid_t> spawn(const std::string& program, std::vector<std::string> words,
                    const FileActions& actions) {
  Attributes attributes;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes.value, &none);
  posix_spawnattr_setsigdefault(&attributes.value, &all);
  posix_spawnattr_setpgroup(&attributes.value, 0);
  posix_spawnattr_setflags(&attributes.value,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> environment = environment_without_secrets();

  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions.value, &attributes.value,
                                  argv.data(), environment.data());
  if (error != 0)
    return errno_error(ErrorCode::kNotFound, "starting the worker program " + words.front(), error);
  return pid;
}

}  // namespace bulkhead::orchestrator

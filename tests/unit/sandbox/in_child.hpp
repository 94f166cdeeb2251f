// Runs what a test does to itself, as another user, in namespaces or under a filter, in a child process.
#pragma once

#include <fcntl.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "config/base/unique_fd.hpp"

namespace bulkhead::worker {

inline constexpr uid_t kNobodysId = 65534;

// Runs a child and returns what it reports; empty if all is well.
inline std::string in_child(const std::function<std::string()>& run) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string words = run();
    (void)!::write(writing.get(), words.data(), words.size());
    ::_exit(0);
  }
  writing.reset();
  std::string words;
  char piece[512];
  for (ssize_t got; (got = ::read(reading.get(), piece, sizeof piece)) > 0;)
    words.append(piece, static_cast<std::size_t>(got));
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    words += "the child died of " + std::to_string(status);
  return words;
}

enum class As { kSelf, kNobody };

inline void become(As as) {
  if (as == As::kSelf || ::geteuid() != 0) return;
  (void)!::setresgid(kNobodysId, kNobodysId, kNobodysId);
  (void)!::setresuid(kNobodysId, kNobodysId, kNobodysId);
  ::prctl(PR_SET_DUMPABLE, 1);  // as for a process that this user has started
}

inline std::string unless(bool holds, const char* words) {
  return holds ? "" : std::string(words) + "; ";
}

inline bool refuse(int call) {
  scmp_filter_ctx filter = ::seccomp_init(SCMP_ACT_ALLOW);
  const bool loaded = ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0) == 0 &&
                      ::seccomp_load(filter) == 0;
  ::seccomp_release(filter);
  return loaded;
}

}  // namespace bulkhead::worker

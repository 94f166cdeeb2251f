// Starts a program for the daemon, and decides what the child inherits from it.
#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

// The descriptors that the child gets.
struct FileActions {
  posix_spawn_file_actions_t value;
  FileActions() { posix_spawn_file_actions_init(&value); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  ~FileActions() { posix_spawn_file_actions_destroy(&value); }
};

// A child's descriptors are first moved to this number or above, so that no dup2 to the final numbers overwrites
// another descriptor's source.
inline constexpr int kFirstHigh = 64;
Result<UniqueFd> move_high(int fd);

// Returns the daemon's environment without BULKHEAD_API_KEY, and a null at its end.
std::vector<char*> environment_without_secrets();

// Starts the file `program` with `words` as its argv. The child has the descriptors that `actions` leave it, and the
// daemon's environment. It inherits nothing else: neither the signal mask, nor BULKHEAD_API_KEY, nor the process
// group (a Ctrl-C on the daemon's terminal must not reach the child). The caller reaps the child. kNotFound: the
// program can't be started; the message calls the program words[0]. Any thread.
Result<pid_t> spawn(const std::string& program, std::vector<std::string> words,
                    const FileActions& actions);

}  // namespace bulkhead::orchestrator

// The worker program with which this daemon began. An upgrade replaces files while the daemon runs: a worker that
// dies then must come back as the program that the daemon can speak to, not as half of a file or as a program with
// another protocol. So the daemon holds the program by a descriptor, and starts it by that.
#pragma once

#include <string>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

// Returns the name by which to start the program that was at `path` at the first call. kNotFound, at the first call,
// if there is none.
Result<std::string> pinned_program(const std::string& path);
// Returns the descriptor of that program, which stays open as long as the daemon lives.
Result<int> pinned_descriptor(const std::string& path);
// Logs once if `path` holds another program than the pinned one, or if the file itself has been changed. On a network
// mount it may take long, so threads call it.
void look_at_program(const std::string& path);

}  // namespace bulkhead::orchestrator

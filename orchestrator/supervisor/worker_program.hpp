// The worker program that this daemon began with. An upgrade replaces files while the daemon runs: a
// worker that dies then must come back as what the daemon speaks to, not as half of a file or as a
// program of another protocol. So the program is held by a descriptor, and started by that.
#pragma once

#include <string>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

// By which name to start the program that was at `path` when this was first asked. kNotFound, the first time, where
// there is none.
Result<std::string> pinned_program(const std::string& path);
// Logs once that another program is at `path` than the pinned one, or that the file itself has been changed. On a
// network mount it may take long, so threads call it.
void look_at_program(const std::string& path);

}  // namespace bulkhead::orchestrator

// Runs a program to its end, and returns what it writes to stdout: for short tasks that the daemon does not do itself,
// such as loading a driver or reading a model file.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

struct ProgramLimits {
  enum class Errors {
    kShown,
    kDropped
  };  // what becomes of the program's stderr: the daemon's, or nothing
  std::chrono::milliseconds patience;  // the program is killed after this time
  std::size_t most_bytes;              // of its output
  Errors errors = Errors::kDropped;
};

// Starts the file `program` with `words` as its argv and no input. kNotFound: it can't be started; kDeadlineExceeded:
// it takes too long; kCorrupt: it writes too much. A process that has not ended a second after it was killed is left
// behind: `left_behind`, unless it is null, is then its id, and otherwise 0. Any thread; blocks.
Result<std::string> output_of(const std::string& program, std::vector<std::string> words,
                              const ProgramLimits& limits, pid_t* left_behind = nullptr);

// Waits for the end of a process that was left behind, however long that takes. Any thread.
void wait_for_end(pid_t left_behind);

}  // namespace bulkhead::orchestrator

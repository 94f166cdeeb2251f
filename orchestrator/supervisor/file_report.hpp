// Finds out what the file of a model holds that is not loaded: its architecture, size and abilities. The daemon parses
// no model file, so a confined process of the worker program reads the file's metadata and ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/process_messages.hpp"

namespace bulkhead::orchestrator {

// Returns what a worker would report of the model, as far as that depends on its files alone. `arguments` are those of
// a worker, after the program's name. kInvalidArgument: the model can't be served, and why; other errors: the process
// failed, and nothing is known of the file. `left_behind` is as in output_of(): the file may be on a network mount that
// hangs. Any thread; blocks.
Result<ipc::Ready> report_of_file(const std::string& worker_program,
                                  std::vector<std::string> arguments, pid_t* left_behind = nullptr);

}  // namespace bulkhead::orchestrator

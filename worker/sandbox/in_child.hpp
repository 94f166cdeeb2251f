// Tries in a child process something that may fail half way, so that it leaves nothing behind in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/base/error.hpp"

namespace bulkhead::worker {

// Says who reaps the child. The exit of a child with mounts of its own takes some milliseconds, because the kernel
// waits for the readers of its mount table.
enum class Reaps : std::uint8_t { kCaller, kKernel };

// Calls `run` in a child process and returns the result. Only for a process with one thread.
Result<std::string> in_child(const std::function<Result<std::string>()>& run, Reaps reaps);

}  // namespace bulkhead::worker

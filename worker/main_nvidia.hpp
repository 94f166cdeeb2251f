// The process that watches NVIDIA's devices for the daemon, which loads no driver itself. It has nothing to do with
// models or requests. ipc/device_watch.hpp has what it reads and writes.
#pragma once

#include <string>

namespace bulkhead::worker {

// Loads `library` (libnvidia-ml.so.1) and answers on stdout until stdin ends. Returns the program's exit code.
int watch_nvidia(const std::string& library);

}  // namespace bulkhead::worker

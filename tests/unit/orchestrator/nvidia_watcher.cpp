// The worker's process that watches NVIDIA's devices, without the rest of the worker: nvidia_watcher --watch-nvidia
// LIBRARY.
#include "ipc/exit_codes.hpp"
#include "worker/main_nvidia.hpp"

int main(int argc, char** argv) {
  return argc == 3 ? bulkhead::worker::watch_nvidia(argv[2]) : bulkhead::ipc::kExitUsage;
}

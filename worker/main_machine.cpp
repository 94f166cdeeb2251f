#include "worker/main_machine.hpp"

#include <sched.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "gpu/device.hpp"
#include "gpu/device_numbers.hpp"
#include "ipc/exit_codes.hpp"

namespace bulkhead::worker {

int list_devices() {
  const auto devices = gpu::list_devices();
  if (!devices.ok()) {
    std::fprintf(stderr, "bulkhead-worker: %s\n", devices.error().message().c_str());
    return ipc::kExitLoad;
  }
  for (const gpu::DeviceInfo& device : *devices) {
    std::printf("%u %s %s\n", static_cast<unsigned>(device.index), gpu::to_string(device.kind),
                device.missing.empty() ? "usable" : "unusable");
  }
  return 0;
}

int find_devices(const std::vector<std::string>& texts) {
  const auto numbers = gpu::device_numbers(texts);
  if (!numbers.ok()) {
    std::fprintf(stderr, "bulkhead-worker: %s\n", numbers.error().message().c_str());
    return ipc::kExitLoad;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if ((*numbers)[i])
      std::printf("%u %s\n", static_cast<unsigned>(*(*numbers)[i]), texts[i].c_str());
  }
  return 0;
}

Status stay_on(const std::vector<int>& cores) {
  if (cores.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < 0 || core >= CPU_SETSIZE)
      return Error(ErrorCode::kInvalidArgument, "there is no core " + std::to_string(core));
    CPU_SET(static_cast<std::size_t>(core), &set);
  }
  // The kernel ignores cores that do not exist or are not allowed, and refuses the call if no core
  // is left.
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return {};
  return errno_error(ErrorCode::kInvalidArgument, "the process can't run on any of them", errno);
}

}  // namespace bulkhead::worker

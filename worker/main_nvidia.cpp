#include "worker/main_nvidia.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "ipc/device_watch.hpp"
#include "ipc/exit_codes.hpp"

namespace bulkhead::worker {

namespace {

// The part of NVML's interface (nvml.h) that is used here. NVIDIA keeps functions and structs of a name as they are.
using NvmlDevice = struct NvmlDeviceOpaque*;
using NvmlEventSet = struct NvmlEventSetOpaque*;
constexpr int kSuccess = 0, kTimeout = 10;
constexpr int kTemperatureOfGpu = 0;
constexpr std::uint64_t kXidEvent = 8;
constexpr unsigned kMemoryTemperatureField = 82;
struct NvmlPciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct NvmlField {
  unsigned id, scope;
  long long timestamp, latency;
  int value_type, result;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long long as_long;
  } value;
};
static_assert(sizeof(NvmlPciInfo) == 68 && sizeof(NvmlEvent) == 32 && sizeof(NvmlField) == 40);

struct Nvml {
  int (*init)();
  const char* (*error_text)(int);
  int (*count)(unsigned*);
  int (*device)(unsigned, NvmlDevice*);
  int (*pci_info)(NvmlDevice, NvmlPciInfo*);
  // The functions below may be missing in a version of the library; the figure is then left out.
  int (*temperature)(NvmlDevice, int, unsigned*);
  int (*fields)(NvmlDevice, int, NvmlField*);
  int (*throttle_reasons)(NvmlDevice, unsigned long long*);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*event_set)(NvmlEventSet*);
  int (*register_events)(NvmlDevice, unsigned long long, NvmlEventSet);
  int (*wait_for_event)(NvmlEventSet, NvmlEvent*, unsigned);
};

// nvmlClocksThrottleReasons; others (idle, a clock that a user has set) are no trouble of the device.
struct ThrottleReason {
  std::string_view name;
  std::uint64_t bits;
};
constexpr ThrottleReason kReasons[] = {
    {"heat", 0x20 | 0x40}, {"hardware", 0x08},   {"power_brake", 0x80},
    {"power_limit", 0x04}, {"sync_boost", 0x10},
};
static_assert(std::ranges::equal(kReasons, ipc::kSlowedBy, {}, &ThrottleReason::name));

// Two threads write.
void write_lines(const std::string& lines) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (std::size_t done = 0; done < lines.size();) {
    const ssize_t wrote = ::write(STDOUT_FILENO, lines.data() + done, lines.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) ::_exit(ipc::kExitStopped);  // the daemon is gone
    done += static_cast<std::size_t>(wrote);
  }
}

int failed(std::string why) {
  std::ranges::replace_if(
      why, [](unsigned char c) { return c <= ' ' || c >= 0x7f; }, '~');
  constexpr std::size_t kMost = ipc::kLongestWatchLine - 32;
  write_lines("failed - " + why.substr(0, kMost) + " 0\n");
  return ipc::kExitLoad;
}

class Watch {
 public:
  explicit Watch(const Nvml& nvml) : nvml_(nvml) {}

  // Returns why there is nothing to watch; empty: there is.
  std::string find_devices() {
    if (const int result = nvml_.init(); result != kSuccess) return words_of("nvmlInit_v2", result);
    unsigned count = 0;
    if (const int result = nvml_.count(&count); result != kSuccess)
      return words_of("nvmlDeviceGetCount_v2", result);
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      NvmlPciInfo pci{};
      // One device of several may be broken.
      if (nvml_.device(i, &device) != kSuccess || nvml_.pci_info(device, &pci) != kSuccess)
        continue;
      devices_.push_back(
          {device, fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)});
    }
    return devices_.empty() ? "no device answers" : "";
  }

  void look() const {
    std::string lines;
    for (const Device& device : devices_)
      look_at(device, lines);
    write_lines(lines + "end - - 0\n");
  }

  // Waits for errors of devices in a thread of its own. NVML keeps them until somebody asks.
  void watch_errors() const {
    NvmlEventSet set = nullptr;
    if (nvml_.event_set == nullptr || nvml_.register_events == nullptr ||
        nvml_.wait_for_event == nullptr || nvml_.event_set(&set) != kSuccess)
      return;
    bool any = false;
    for (const Device& device : devices_)
      any |= nvml_.register_events(device.handle, kXidEvent, set) == kSuccess;
    if (!any) return;
    std::thread([this, set] {
      constexpr unsigned kHourMs = 3'600'000;
      for (;;) {
        NvmlEvent event{};
        const int result = nvml_.wait_for_event(set, &event, kHourMs);
        if (result == kSuccess && event.type == kXidEvent) tell_error(event);
        // A device that is gone may make each call fail at once.
        if (result != kSuccess && result != kTimeout)
          std::this_thread::sleep_for(std::chrono::seconds(10));
      }
    }).detach();
  }

 private:
  struct Device {
    NvmlDevice handle;
    std::string address;
  };

  std::string words_of(const char* function, int result) const {
    const char* const text = nvml_.error_text(result);
    return fmt::format("{}: {}", function, text == nullptr ? "unknown error" : text);
  }

  void tell_error(const NvmlEvent& event) const {
    for (const Device& device : devices_) {
      if (device.handle == event.device)
        write_lines(fmt::format("xid {} {} 1\n", device.address, event.data));
    }
  }

  void look_at(const Device& device, std::string& lines) const {
    unsigned degrees = 0;
    if (nvml_.temperature != nullptr &&
        nvml_.temperature(device.handle, kTemperatureOfGpu, &degrees) == kSuccess)
      lines += fmt::format("temperature {} gpu {}\n", device.address, degrees);
    NvmlField field{};
    field.id = kMemoryTemperatureField;
    if (nvml_.fields != nullptr && nvml_.fields(device.handle, 1, &field) == kSuccess &&
        field.result == kSuccess)
      lines += fmt::format("temperature {} memory {}\n", device.address, field.value.as_unsigned);
    unsigned long long reasons = 0;
    if (nvml_.throttle_reasons != nullptr &&
        nvml_.throttle_reasons(device.handle, &reasons) == kSuccess) {
      for (const ThrottleReason& reason : kReasons) {
        lines += fmt::format("slowed {} {} {}\n", device.address, reason.name,
                             (reasons & reason.bits) != 0 ? 1 : 0);
      }
    }
    NvmlMemory memory{};
    if (nvml_.memory != nullptr && nvml_.memory(device.handle, &memory) == kSuccess) {
      lines += fmt::format("memory {0} used {1}\nmemory {0} total {2}\n", device.address,
                           memory.used, memory.total);
    }
  }

  const Nvml nvml_;
  std::vector<Device> devices_;
};

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

int watch_nvidia(const std::string& library) {
  // A driver may hang in a call and never see that stdin ends.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return failed(::dlerror());
  Nvml nvml{};
  find(handle, "nvmlInit_v2", nvml.init);
  find(handle, "nvmlErrorString", nvml.error_text);
  find(handle, "nvmlDeviceGetCount_v2", nvml.count);
  find(handle, "nvmlDeviceGetHandleByIndex_v2", nvml.device);
  find(handle, "nvmlDeviceGetPciInfo_v3", nvml.pci_info);
  find(handle, "nvmlDeviceGetTemperature", nvml.temperature);
  find(handle, "nvmlDeviceGetFieldValues", nvml.fields);
  find(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.throttle_reasons);
  find(handle, "nvmlDeviceGetMemoryInfo", nvml.memory);
  find(handle, "nvmlEventSetCreate", nvml.event_set);
  find(handle, "nvmlDeviceRegisterEvents", nvml.register_events);
  find(handle, "nvmlEventSetWait_v2", nvml.wait_for_event);
  if (nvml.init == nullptr || nvml.error_text == nullptr || nvml.count == nullptr ||
      nvml.device == nullptr || nvml.pci_info == nullptr)
    return failed(library + " lacks functions of NVML");
  Watch watch(nvml);
  if (const std::string why = watch.find_devices(); !why.empty()) return failed(why);
  watch.watch_errors();
  for (;;) {
    char asked = 0;
    const ssize_t got = ::read(STDIN_FILENO, &asked, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) ::_exit(ipc::kExitStopped);  // a thread may be waiting in the driver
    watch.look();
  }
}

}  // namespace bulkhead::worker

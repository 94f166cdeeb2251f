// Plays NVIDIA's library (libnvidia-ml.so.1) for the process that watches devices. The file $FAKE_NVML says, when the
// library is loaded and at each call, how it behaves:
//
//     well       two devices; the first is slowed down by heat
//     absent     nvmlInit_v2 returns the error for a driver that is not loaded
//     hang       no call that asks a device returns
//     lie        a device has 5,000 degrees
//     crash      the process dies by a signal
//     xid N      an error N of the second device is reported; the word that follows is then the behaviour
//
// It links none of the product's libraries.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

std::string behaviour() {
  const char* const path = std::getenv("FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  std::string word;
  file >> word;
  return word;
}

// Blocks or dies, if the file says so. Returns what it says.
std::string obey() {
  const std::string word = behaviour();
  if (word == "crash") ::raise(SIGSEGV);
  while (word == "hang" && behaviour() == "hang")
    ::usleep(10'000);
  return word;
}

char devices[2];
constexpr int kNotFound = 9, kTimeout = 10, kNotSupported = 3;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return behaviour() == "absent" ? kNotFound : 0;
}
const char* nvmlErrorString(int result) {
  return result == kNotFound ? "Driver\nNot Loaded" : "Unknown";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index == 1) return kNotSupported;  // one that is broken
  *device = &devices[index == 0 ? 0 : 1];
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, unsigned* info) {
  info[4] = 0;                                 // domain, after the 16 bytes of the old address
  info[5] = device == &devices[0] ? 1 : 0xc1;  // bus
  info[6] = 0;                                 // device
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* degrees) {
  *degrees = obey() == "lie" ? 5000 : device == &devices[0] ? 91 : 45;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons =
      device == &devices[0] ? 0x41 : 0x4;  // heat by the hardware, idle; the limit of its power
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* bytes) {
  bytes[0] = 4000;
  bytes[1] = 3000;
  bytes[2] = 1000;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  static int the_set;
  *set = &the_set;
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return 0;
}
int nvmlEventSetWait_v2(void*, unsigned long long* event, unsigned) {
  const char* const path = std::getenv("FAKE_NVML");
  for (;;) {
    std::ifstream file(path == nullptr ? "" : path);
    std::string word, next;
    unsigned long long number = 0;
    if (file >> word >> number >> next && word == "xid") {
      std::ofstream(path) << next;
      void* const device = &devices[1];
      std::memcpy(&event[0], &device, sizeof device);
      event[1] = 8;
      event[2] = number;
      return 0;
    }
    ::usleep(10'000);
  }
}

}  // extern "C"

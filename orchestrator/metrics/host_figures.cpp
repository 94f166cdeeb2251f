#include "orchestrator/metrics/host_figures.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "config/base/quiet_thread.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kLookAgain{1};

std::optional<double> number_in(const fs::path& path) {
  std::ifstream file(path);
  double value = 0;
  if (!(file >> value)) return std::nullopt;  // a driver may refuse while its device sleeps
  return value;
}

std::string line_in(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the paths in a folder, ordered by name; none if there is no such folder.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

// ---- the machine's memory ----

// Reads lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234"; the total is in microseconds.
void add_pressure(const std::string& root, std::vector<DaemonFigure>& out) {
  std::ifstream file(root + "/proc/pressure/memory");
  for (std::string line; std::getline(file, line);) {
    const std::size_t total = line.find("total=");
    const std::string kind = line.substr(0, line.find(' '));
    if (total == std::string::npos || (kind != "some" && kind != "full")) continue;
    out.push_back(
        {"bulkhead_host_memory_pressure_seconds_total",
         "Time in which processes of the machine waited for memory: some of them, or all",
         std::strtod(line.c_str() + total + std::string_view("total=").size(), nullptr) / 1e6, true,
         "kind", kind});
  }
}

void add_memory(const std::string& root, std::vector<DaemonFigure>& out) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double kib = 0;
    if (!(words >> name >> kib)) continue;
    if (name == "MemTotal:")
      out.push_back({"bulkhead_host_memory_bytes", "Memory of the machine", kib * 1024, false});
    if (name == "MemAvailable:") {
      out.push_back({"bulkhead_host_memory_available_bytes",
                     "Memory that programs could have without swapping", kib * 1024, false});
    }
  }
}

// ---- devices, as Linux's graphics drivers show them ----

// Returns the card's bus address, "0000:03:00.0", or the card's name if it has none.
std::string address_of(const fs::path& card) {
  std::error_code error;
  const fs::path device = fs::canonical(card / "device", error);
  return error ? card.filename().string() : device.filename().string();
}

void add_temperatures(const fs::path& device, const std::string& name,
                      std::vector<DaemonFigure>& out) {
  for (const fs::path& monitor : entries(device / "hwmon")) {
    for (const fs::path& file : entries(monitor)) {
      const std::string input = file.filename().string();
      if (!input.starts_with("temp") || !input.ends_with("_input")) continue;
      const std::string sensor = input.substr(0, input.find('_'));
      const std::string label = line_in(monitor / (sensor + "_label"));
      if (const auto millidegrees = number_in(file)) {
        out.push_back({"bulkhead_device_temperature_celsius", "Temperature of a device",
                       *millidegrees / 1000, false, "device", name, "sensor",
                       label.empty() ? sensor : label});
      }
    }
  }
}

// Reports 1 if any of the files of Intel's drivers says so: i915's of each "gt", then xe's of each tile.
void add_throttling(const fs::path& card, const std::string& name, std::vector<DaemonFigure>& out) {
  std::optional<double> throttled;
  const auto look = [&throttled](const fs::path& file) {
    if (const auto value = number_in(file)) throttled = std::max(throttled.value_or(0), *value);
  };
  for (const fs::path& gt : entries(card / "gt"))
    look(gt / "throttle_reason_status");
  for (const fs::path& tile : entries(card / "device")) {
    if (!tile.filename().string().starts_with("tile")) continue;
    for (const fs::path& gt : entries(tile))
      look(gt / "freq0" / "throttle" / "status");
  }
  if (throttled) {
    out.push_back({"bulkhead_device_throttled",
                   "1 while a device runs slower than it could: heat, power or current", *throttled,
                   false, "device", name});
  }
}

void add_devices(const std::string& root, std::vector<DaemonFigure>& out) {
  for (const fs::path& card : entries(root + "/sys/class/drm")) {
    const std::string number = card.filename().string();
    // "card0", and not its connectors "card0-DP-1".
    if (!number.starts_with("card") || number.find('-') != std::string::npos) continue;
    const std::string name = address_of(card);
    add_temperatures(card / "device", name, out);
    add_throttling(card, name, out);
    if (const auto used = number_in(card / "device" / "mem_info_vram_used")) {
      out.push_back({"bulkhead_device_memory_used_bytes",
                     "Memory of a device in use, by all processes", *used, false, "device", name});
    }
    if (const auto total = number_in(card / "device" / "mem_info_vram_total")) {
      out.push_back(
          {"bulkhead_device_memory_bytes", "Memory of a device", *total, false, "device", name});
    }
  }
}

}  // namespace

std::vector<DaemonFigure> look_at_host(const std::string& root) {
  std::vector<DaemonFigure> figures;
  add_pressure(root, figures);
  add_memory(root, figures);
  add_devices(root, figures);
  return figures;
}

// ---- Xid errors ----

struct XidCounter::State {
  UniqueFd log;
  std::map<std::pair<std::string, std::string>, double> counts;  // device and number
};

XidCounter::XidCounter(const std::string& root) : state_(std::make_unique<State>()) {
  state_->log.reset(::open((root + "/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (state_->log.valid()) ::lseek(state_->log.get(), 0, SEEK_END);
}
XidCounter::~XidCounter() = default;

void XidCounter::take(const std::string& line) {
  constexpr std::string_view kMark = "NVRM: Xid (PCI:";
  constexpr std::size_t kLongestWord = 32;
  // The message follows the ";". A program can write lines, too, but not with the kernel's facility (0).
  const std::size_t message = line.find(';');
  if (message == std::string::npos || std::strtoul(line.c_str(), nullptr, 10) >= 8) return;
  if (line.compare(message + 1, kMark.size(), kMark) != 0) return;
  const std::size_t device = message + 1 + kMark.size();
  const std::size_t close = line.find("): ", device);
  if (close == std::string::npos || close - device > kLongestWord) return;
  const std::size_t number = close + 3;
  const std::size_t end = line.find_first_not_of("0123456789", number);
  if (end == std::string::npos || end == number || end - number > 4) return;
  ++state_->counts[{line.substr(device, close - device), line.substr(number, end - number)}];
}

bool XidCounter::reads_log() const {
  return state_->log.valid();
}

std::vector<DaemonFigure> XidCounter::read_on() {
  // A read gives one record. EPIPE means that records were overwritten before they were read; the next read continues
  // after them.
  char record[8192];
  for (int reads = 0; state_->log.valid() && reads < 10'000; ++reads) {
    const ssize_t got = ::read(state_->log.get(), record, sizeof record);
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (got <= 0) break;
    take(std::string(record, static_cast<std::size_t>(got)));
  }
  std::vector<DaemonFigure> figures;
  for (const auto& [of, count] : state_->counts) {
    figures.push_back({"bulkhead_device_xid_errors_total",
                       "Xid errors that NVIDIA's driver reported", count, true, "device", of.first,
                       "xid", of.second});
  }
  return figures;
}

// ---- the thread ----

struct HostWatch::State {
  explicit State(std::string the_root)
      : root(std::move(the_root)), xids(root), reads_kernel_log(xids.reads_log()) {}

  std::vector<DaemonFigure> look() {
    std::vector<DaemonFigure> figures = look_at_host(root);
    std::ranges::move(xids.read_on(), std::back_inserter(figures));
    return figures;
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      asked.wait(lock, [this] { return wanted || ends; });
      if (ends) return;
      wanted = false;
      lock.unlock();
      std::optional<std::vector<DaemonFigure>> figures;
      try {
        figures = look();
      } catch (const std::exception&) {  // there is no memory; the last figures stay
      }
      lock.lock();
      if (!figures.has_value()) continue;
      seen = *std::move(figures);
      seen_at = steady_clock::now();
    }
  }

  const std::string root;
  XidCounter xids;  // only the thread uses it once it runs
  const bool reads_kernel_log;
  std::mutex mutex;
  std::condition_variable asked;
  bool wanted = false, ends = false;
  std::vector<DaemonFigure> seen;
  steady_clock::time_point seen_at;
};

HostWatch::HostWatch(std::string root) : state_(std::make_shared<State>(std::move(root))) {
  state_->seen = state_->look();
  state_->seen_at = steady_clock::now();
  // The thread is detached, because it may be waiting for a driver when the daemon ends.
  quiet_thread([state = state_] { state->run(); }).detach();
}

HostWatch::~HostWatch() {
  const std::lock_guard lock(state_->mutex);
  state_->ends = true;
  state_->asked.notify_one();
}

bool HostWatch::reads_kernel_log() const {
  return state_->reads_kernel_log;
}

std::vector<DaemonFigure> HostWatch::figures() {
  const std::lock_guard lock(state_->mutex);
  if (steady_clock::now() - state_->seen_at >= kLookAgain) {
    state_->wanted = true;
    state_->asked.notify_one();
  }
  return state_->seen;
}

}  // namespace bulkhead::orchestrator

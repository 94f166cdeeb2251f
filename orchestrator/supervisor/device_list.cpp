#include "orchestrator/supervisor/device_list.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <thread>
#include <utility>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/spawn.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kLongestListing = 64 << 10;  // bytes

// Reads `fd` to its end.
Result<std::string> read_until(int fd, std::chrono::steady_clock::time_point end) {
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd item{fd, POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : ::poll(&item, 1, static_cast<int>(left.count()));
    if (ready == 0)
      return Error(ErrorCode::kDeadlineExceeded, "it has not ended; a driver may hang");
    if (ready < 0 && errno == EINTR) continue;
    char bytes[4096];
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(ErrorCode::kInternal, "read", errno);
    if (got == 0) return text;
    text.append(bytes, static_cast<std::size_t>(got));
    if (text.size() > kLongestListing) return Error(ErrorCode::kCorrupt, "it prints too much");
  }
}

// Waits up to a second for the child's end, and reaps it. Returns false if the child still runs.
bool ends_soon(pid_t pid) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Waits at most a second, because the kernel may hold a killed child in a driver's call.
void kill_and_reap(pid_t pid) {
  ::kill(pid, SIGKILL);
  (void)ends_soon(pid);
}

Result<std::string> listing_of(const std::string& program, std::chrono::milliseconds patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "pipe", errno);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  FileActions actions;
  posix_spawn_file_actions_addopen(&actions.value, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions.value, theirs.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions.value, STDERR_FILENO + 1);
  BULKHEAD_TRY(const pid_t pid, spawn(program, {program, "--list-devices"}, actions));
  theirs.reset();
  const Result<std::string> text =
      read_until(ours.get(), std::chrono::steady_clock::now() + patience);
  if (!text.ok() || !ends_soon(pid)) kill_and_reap(pid);
  return text;
}

}  // namespace

Result<std::vector<std::string>> usable_devices(std::string_view listing) {
  std::vector<std::string> gpus, cpus;
  std::istringstream lines{std::string(listing)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, state;
    words >> number >> kind >> state;
    const bool is_number =
        !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && number.size() <= 4 && state == "usable")
      (kind == "cpu" ? cpus : gpus).push_back(number);
  }
  std::vector<std::string>& chosen = gpus.empty() ? cpus : gpus;
  if (chosen.empty())
    return Error(ErrorCode::kNotFound, "no device is usable; `bulkhead doctor` says why");
  return std::move(chosen);
}

Status resolve_all_devices(config::Settings& settings, const std::string& worker_program,
                           std::chrono::milliseconds patience) {
  std::vector<std::string> devices;
  for (std::size_t i = 0; i < settings.models.size(); ++i) {
    config::ModelSettings& model = settings.models[i];
    if (std::ranges::count(model.devices, "all") == 0) continue;
    const std::string key = "models." + std::to_string(i) + ".devices: all";
    if (devices.empty()) {
      const Result<std::string> listing = listing_of(worker_program, patience);
      if (!listing.ok())
        return listing.error().within(key + ": " + worker_program + " --list-devices");
      const Result<std::vector<std::string>> usable = usable_devices(*listing);
      if (!usable.ok()) return usable.error().within(key);
      devices = *usable;
    }
    if (model.split == config::Split::kLayers &&
        (devices.size() < 2 || devices.size() > config::kMostStages)) {
      return Error(ErrorCode::kInvalidArgument,
                   key + ": this machine has " + std::to_string(devices.size()) +
                       " usable devices, and models." + std::to_string(i) +
                       ".split shares a model out to 2 to " + std::to_string(config::kMostStages) +
                       " devices; name the devices, or leave out the split");
    }
    if (model.split == config::Split::kNo &&
        devices.size() * model.workers > config::kMostWorkersOfModel) {
      return Error(ErrorCode::kInvalidArgument,
                   key + ": this machine has " + std::to_string(devices.size()) +
                       " devices, and with `workers` for each the model would have more than " +
                       std::to_string(config::kMostWorkersOfModel) + " workers");
    }
    model.devices = devices;
  }
  return {};
}

}  // namespace bulkhead::orchestrator

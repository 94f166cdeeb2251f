#include "orchestrator/supervisor/control_groups.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/task_thread.hpp"
#include "orchestrator/supervisor/worker_limits.hpp"

namespace bulkhead::orchestrator {
namespace {

constexpr std::string_view kWorkerPrefix = "worker-";
constexpr std::size_t kMostGroupNameBytes = 128;
// How often, and how long apart, a thread tries to remove a group in which the kernel still counts a process.
constexpr int kMostRemovals = 50;
constexpr std::chrono::milliseconds kBetweenRemovals{100};

// Writes a file of the cgroup file system, which takes a value in one call. Returns why it failed; empty: it did not.
std::string write_value(const std::string& path, const std::string& value) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  ssize_t put = -1;
  if (file.valid()) {
    do
      put = ::write(file.get(), value.data(), value.size());
    while (put < 0 && errno == EINTR);
  }
  if (put == static_cast<ssize_t>(value.size())) return {};
  return fmt::format("writing \"{}\" to {}: {}", value, path, std::strerror(errno));
}

// Turns a worker's name into a part of a folder's name.
std::string fit_for_folder(std::string name) {
  name.resize(std::min(name.size(), kMostGroupNameBytes));
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    if (!plain) c = '_';
  }
  return name;
}

void remove_later(std::string folder, GroupFolders folders) {
  static const auto thread = std::make_shared<TaskThread>();
  thread->add([folder = std::move(folder), folders] {
    for (int i = 0; i < kMostRemovals && !folders.remove(folder) && errno == EBUSY; ++i)
      std::this_thread::sleep_for(kBetweenRemovals);
  });
}

// Returns the controllers in the form of cgroup.subtree_control: "+memory +pids".
std::string controllers_of(const DelegatedGroup& group, char sign) {
  std::string text;
  if (group.memory) text += std::string(1, sign) + "memory";
  if (group.pids) text += (text.empty() ? "" : " ") + std::string(1, sign) + "pids";
  return text;
}

}  // namespace

GroupFolders GroupFolders::of_kernel() {
  return {.make = [](const std::string& folder) { return ::mkdir(folder.c_str(), 0755) == 0; },
          .remove = [](const std::string& folder) { return ::rmdir(folder.c_str()) == 0; }};
}

// ---- one worker's group ----

WorkerGroup& WorkerGroup::operator=(WorkerGroup&& other) noexcept {
  if (this != &other) {
    remove();
    folder_ = std::exchange(other.folder_, {});
    folders_ = other.folders_;
    report_ = std::exchange(other.report_, {false, "the process has ended"});
  }
  return *this;
}

void WorkerGroup::join(pid_t pid) {
  if (folder_.empty()) return;
  const std::string failure = write_value(folder_ + "/cgroup.procs", std::to_string(pid));
  if (failure.empty()) return;
  spdlog::warn("process {} runs without a control group of its own: {}", pid, failure);
  remove();
  report_ = {false, failure};
}

std::optional<std::uint64_t> WorkerGroup::event(const char* key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream events(folder_ + "/memory.events");
  std::string word;
  for (std::uint64_t count = 0; events >> word >> count;) {
    if (word == key) return count;
  }
  return std::nullopt;
}

void WorkerGroup::remove() {
  if (folder_.empty()) return;
  const std::string folder = std::exchange(folder_, {});
  if (!folders_.remove(folder) && errno == EBUSY) remove_later(folder, folders_);
}

// ---- all groups ----

ControlGroups::ControlGroups(std::string why_not) : why_not_(std::move(why_not)) {}

ControlGroups::ControlGroups(const ControlGroupPlaces& places, GroupFolders folders)
    : folders_(folders) {
  const Result<DelegatedGroup> found = delegated_group(places);
  if (!found.ok()) {
    why_not_ = found.error().message();
    spdlog::info("workers have no control groups: {}", why_not_);
    return;
  }
  group_ = *found;
  why_not_ = take();
  if (!why_not_.empty()) {
    spdlog::warn("workers have no control groups: {}", why_not_);
    return;
  }
  spdlog::info("workers get control groups in {}", group_.folder);
}

ControlGroups::~ControlGroups() {
  if (active())
    (void)write_value(group_.folder + "/cgroup.subtree_control", controllers_of(group_, '-'));
}

std::string ControlGroups::take() {
  const std::string own = group_.folder + "/daemon";
  const std::string pid = std::to_string(::getpid());
  if (!folders_.make(own) && errno != EEXIST)
    return fmt::format("making {}: {}", own, std::strerror(errno));
  std::string failure = write_value(own + "/cgroup.procs", pid);
  if (failure.empty()) {
    failure = write_value(group_.folder + "/cgroup.subtree_control", controllers_of(group_, '+'));
    if (!failure.empty()) (void)write_value(group_.folder + "/cgroup.procs", pid);
  }
  if (!failure.empty()) {
    (void)folders_.remove(own);
    return failure;
  }
  // A group in which a process still runs stays: rmdir refuses it.
  std::vector<std::string> left;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(group_.folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kWorkerPrefix))
      left.push_back(entry->path().string());
  }
  for (const std::string& folder : left)
    (void)folders_.remove(folder);
  return {};
}

WorkerGroup ControlGroups::make(const std::string& name, std::uint64_t memory_bytes) {
  WorkerGroup group;
  group.folders_ = folders_;
  group.report_.detail = why_not_;
  if (!active()) return group;
  std::string folder, failure;
  bool made = false;
  // A process that never ended may still have a group of an earlier daemon.
  do {
    folder = fmt::format("{}/{}{}-{}", group_.folder, kWorkerPrefix, fit_for_folder(name), ++made_);
    made = folders_.make(folder);
  } while (!made && errno == EEXIST);
  if (!made) {
    failure = fmt::format("making {}: {}", folder, std::strerror(errno));
  } else {
    group.folder_ = folder;
    failure = set_limits(folder, memory_bytes, group.report_);
  }
  if (failure.empty()) return group;
  spdlog::warn("worker {}: its process gets no control group: {}", name, failure);
  group.remove();
  group.report_ = {false, failure};
  return group;
}

std::string ControlGroups::set_limits(const std::string& folder, std::uint64_t memory_bytes,
                                      GroupReport& report) const {
  std::string failure, memory;
  if (group_.memory && memory_bytes != 0) {
    failure = write_value(folder + "/memory.max", std::to_string(memory_bytes));
    if (failure.empty()) failure = write_value(folder + "/memory.oom.group", "1");
    memory = fmt::format("memory {} MiB", memory_bytes >> 20);
  } else {
    memory = group_.memory ? "memory without a limit of its own (isolation.worker_memory_mb is 0)"
                           : "the controller memory is not delegated";
  }
  std::string tasks = "the controller pids is not delegated";
  if (group_.pids && failure.empty()) {
    const std::uint64_t most = most_tasks(std::thread::hardware_concurrency());
    failure = write_value(folder + "/pids.max", std::to_string(most));
    tasks = fmt::format("{} processes and threads", most);
  }
  report = {group_.pids || (group_.memory && memory_bytes != 0), memory + ", " + tasks};
  return failure;
}

std::uint64_t ControlGroups::most_tasks(unsigned cpus) {
  constexpr std::uint64_t kOfEachWorker = 256, kOfEachCpu = 4;
  return std::min<std::uint64_t>(kOfEachWorker + kOfEachCpu * cpus, kMostThreads);
}

}  // namespace bulkhead::orchestrator

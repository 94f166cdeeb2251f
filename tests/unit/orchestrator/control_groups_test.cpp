// Workers' control groups: the file operations on a folder that plays the kernel's, and the real limits if this
// machine lets the test make groups.
#include "orchestrator/supervisor/control_groups.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "orchestrator/supervisor/worker_limits.hpp"

namespace bulkhead::orchestrator {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

// Makes a group's folder with its files, as the kernel does.
bool make_with_files(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0) return false;
  for (const char* file : {"cgroup.procs", "memory.max", "memory.oom.group", "pids.max"})
    write_text(folder + "/" + file, "");
  write_text(folder + "/memory.events",
             "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n");
  return true;
}

std::atomic<int> refusals = 0;  // how many of the next calls of remove_with_files() are refused

bool remove_with_files(const std::string& folder) {
  if (refusals > 0) {
    --refusals;
    errno = EBUSY;
    return false;
  }
  std::error_code error;
  return fs::remove_all(folder, error) > 0;
}

class ControlGroupsOfFiles : public testing::Test {
 protected:
  ControlGroupsOfFiles() {
    refusals = 0;
    fs::create_directories(group());
    write_text(group() / "cgroup.procs", "");
    write_text(group() / "cgroup.subtree_control", "");
    write_text(group() / "cgroup.controllers", "cpu memory pids\n");
    write_text(folder_ / "membership", "1:cpu:/elsewhere\n0::/system.slice/bulkhead.service\n");
    mounted_at("/");
  }
  ~ControlGroupsOfFiles() override { fs::remove_all(folder_); }

  fs::path group() const { return folder_ / "fs/system.slice/bulkhead.service"; }
  void mounted_at(const std::string& root) const {
    write_text(folder_ / "mounts", "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 " + root + " " +
                                       (folder_ / "fs").string() +
                                       " rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  }
  ControlGroupPlaces places() const {
    return {folder_ / "membership", folder_ / "mounts", [](const std::string&) { return true; }};
  }
  std::unique_ptr<ControlGroups> taken() const {
    return std::make_unique<ControlGroups>(places(),
                                           GroupFolders{make_with_files, remove_with_files});
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("control-groups-" + std::to_string(::getpid()));
};

TEST_F(ControlGroupsOfFiles, MoveTheDaemonAndLimitEachProcess) {
  const auto groups = taken();
  ASSERT_TRUE(groups->active()) << groups->why_not();
  EXPECT_EQ(text_of(group() / "daemon/cgroup.procs"), std::to_string(::getpid()));
  EXPECT_EQ(text_of(group() / "cgroup.subtree_control"), "+memory +pids");

  WorkerGroup worker = groups->make("qwen/7b-0", std::uint64_t{8192} << 20);
  const fs::path own = group() / "worker-qwen_7b-0-1";
  const std::uint64_t tasks = ControlGroups::most_tasks(std::thread::hardware_concurrency());
  EXPECT_EQ(text_of(own / "memory.max"), std::to_string(std::uint64_t{8192} << 20));
  EXPECT_EQ(text_of(own / "memory.oom.group"), "1");
  EXPECT_EQ(text_of(own / "pids.max"), std::to_string(tasks));
  worker.join(4711);
  EXPECT_EQ(text_of(own / "cgroup.procs"), "4711");
  EXPECT_TRUE(worker.report().active);
  EXPECT_EQ(worker.report().detail,
            "memory 8192 MiB, " + std::to_string(tasks) + " processes and threads");

  const WorkerGroup second = groups->make("qwen/7b-0", 0);
  EXPECT_TRUE(fs::exists(group() / "worker-qwen_7b-0-2"));
  EXPECT_EQ(text_of(group() / "worker-qwen_7b-0-2/memory.max"), "");
  EXPECT_TRUE(second.report().active);

  worker = WorkerGroup();
  EXPECT_FALSE(fs::exists(own));
  EXPECT_TRUE(fs::exists(group() / "worker-qwen_7b-0-2"));
}

TEST_F(ControlGroupsOfFiles, ShowAProcessThatTheKernelEndedBecauseMemoryWasShort) {
  const auto groups = taken();
  const WorkerGroup worker = groups->make("a", 1 << 20);
  EXPECT_EQ(worker.oom_kills(), 0u);
  EXPECT_FALSE(worker.reached_memory_limit());
  write_text(group() / "worker-a-1/memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n");
  EXPECT_EQ(worker.oom_kills(), 1u);
  EXPECT_TRUE(worker.reached_memory_limit());
  EXPECT_FALSE(WorkerGroup().oom_kills().has_value());
}

TEST_F(ControlGroupsOfFiles, AreRemovedOnceTheKernelLets) {
  const auto groups = taken();
  refusals = 2;
  groups->make("a", 0);  // goes at once, and a thread tries again
  for (int i = 0; i < 600 && fs::exists(group() / "worker-a-1"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(fs::exists(group() / "worker-a-1"));
}

TEST_F(ControlGroupsOfFiles, OfAnEarlierDaemonAreRemoved) {
  make_with_files(group() / "worker-a-1");
  make_with_files(group() / "daemon");
  const auto groups = taken();
  EXPECT_TRUE(groups->active()) << groups->why_not();
  EXPECT_FALSE(fs::exists(group() / "worker-a-1"));
}

TEST_F(ControlGroupsOfFiles, AreFoundWhereTheMountBeginsAtTheGroup) {
  mounted_at("/system.slice");
  const Result<DelegatedGroup> found = delegated_group(places());
  EXPECT_FALSE(found.ok());  // fs/bulkhead.service does not exist
  fs::rename(group(), folder_ / "fs/bulkhead.service");
  const Result<DelegatedGroup> moved = delegated_group(places());
  ASSERT_TRUE(moved.ok()) << moved.error().message();
  EXPECT_EQ(moved->folder, (folder_ / "fs/bulkhead.service").string());
  mounted_at("/user.slice");
  EXPECT_FALSE(delegated_group(places()).ok());
}

TEST_F(ControlGroupsOfFiles, AreNoneWithoutADelegatedGroupAndSayWhy) {
  ControlGroupPlaces not_marked = places();
  not_marked.is_delegated = has_delegation_mark;
  const Result<DelegatedGroup> found = delegated_group(not_marked);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message().find("is not delegated"), std::string::npos);

  write_text(group() / "cgroup.controllers", "cpu io\n");
  ControlGroups groups(places(), {make_with_files, remove_with_files});
  EXPECT_FALSE(groups.active());
  WorkerGroup worker = groups.make("a", 1 << 20);
  worker.join(4711);
  EXPECT_FALSE(worker.report().active);
  EXPECT_NE(worker.report().detail.find("neither the controller memory nor pids"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(group() / "daemon"));
}

// The process then stays in its group, as if nothing had been tried.
TEST_F(ControlGroupsOfFiles, AreTakenBackWhereTheControllersCanNotBeEnabled) {
  fs::remove(group() / "cgroup.subtree_control");
  fs::create_directory(group() / "cgroup.subtree_control");
  const auto groups = taken();
  EXPECT_FALSE(groups->active());
  EXPECT_NE(groups->why_not().find("cgroup.subtree_control"), std::string::npos);
  EXPECT_FALSE(fs::exists(group() / "daemon"));
  EXPECT_EQ(text_of(group() / "cgroup.procs"), std::to_string(::getpid()));
}

TEST_F(ControlGroupsOfFiles, LetAProcessRunThatCanNotJoin) {
  const auto groups = taken();
  WorkerGroup worker = groups->make("a", 0);
  fs::remove(group() / "worker-a-1/cgroup.procs");
  worker.join(4711);
  EXPECT_FALSE(worker.report().active);
  EXPECT_NE(worker.report().detail.find("cgroup.procs"), std::string::npos);
  EXPECT_FALSE(fs::exists(group() / "worker-a-1"));
}

TEST(ControlGroups, HoldNoMoreTasksThanADaemonAllowsAWorker) {
  EXPECT_EQ(ControlGroups::most_tasks(2), 264u);
  EXPECT_EQ(ControlGroups::most_tasks(1024), kMostThreads);
}

// In a group of the real file system, which the test marks as delegated itself. A child is the daemon.
TEST(ControlGroupsOfTheKernel, EndAProcessThatTakesMoreMemory) {
  ControlGroupPlaces unmarked;
  unmarked.is_delegated = [](const std::string&) { return true; };
  const Result<DelegatedGroup> here = delegated_group(unmarked);
  if (!here.ok()) GTEST_SKIP() << "this process may make no groups: " << here.error().message();
  if (!here->memory || !here->pids) GTEST_SKIP() << "not both controllers are there";
  const std::string own = here->folder + "/bulkhead-test-" + std::to_string(::getpid());
  if (::mkdir(own.c_str(), 0755) != 0) GTEST_SKIP() << "no group can be made in " << here->folder;
  const bool marked = ::setxattr(own.c_str(), "user.delegate", "1", 1, 0) == 0;
  const std::string controllers = text_of(own + "/cgroup.controllers");
  if (!marked || controllers.find("memory") == std::string::npos) {
    ::rmdir(own.c_str());
    GTEST_SKIP() << "a group of the test's has the controllers \"" << controllers
                 << "\", marked: " << marked;
  }
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    write_text(own + "/cgroup.procs", std::to_string(::getpid()));
    ControlGroups groups{ControlGroupPlaces()};
    if (!groups.active()) ::_exit(10);
    constexpr std::size_t kLimit = std::size_t{32} << 20;
    WorkerGroup group = groups.make("test", kLimit);
    int go[2];
    if (::pipe(go) != 0) ::_exit(11);
    const pid_t worker = ::fork();
    if (worker == 0) {
      char byte = 0;
      if (::read(go[0], &byte, 1) != 1) ::_exit(1);
      std::vector<char> memory(8 * kLimit, 1);
      ::_exit(memory[kLimit] - 1);
    }
    group.join(worker);
    if (::write(go[1], "g", 1) != 1) ::_exit(12);
    int status = 0;
    ::waitpid(worker, &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ::_exit(!group.report().active               ? 13
            : !killed                            ? 14
            : group.oom_kills().value_or(0) == 0 ? 15
                                                 : 0);
  }
  int status = 0;
  ::waitpid(daemon, &status, 0);
  std::error_code error;
  for (const fs::directory_entry& each : fs::directory_iterator(own, error))
    if (each.is_directory()) ::rmdir(each.path().c_str());
  ::rmdir(own.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace bulkhead::orchestrator

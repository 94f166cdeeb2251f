// What a worker may do once it is a user that no other process has. Each test runs in a child
// process.
#include "worker/sandbox/own_user.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/sandbox/in_child.hpp"
#include "worker/sandbox/sandbox.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kId = 61001;

class OwnUserTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const OwnUser own = own_user_support(); !own.active)
      GTEST_SKIP() << "no process can become another user here: " << own.gap;
    char name[] = "/tmp/bulkhead-user-XXXXXX";
    folder_ = ::mkdtemp(name);
    fs::permissions(folder_, fs::perms(0755));
    std::ofstream(folder_ / "secret") << "x";
    fs::permissions(folder_ / "secret", fs::perms(0600));
    fs::create_directory(folder_ / "cache");
    ASSERT_EQ(::chown((folder_ / "cache").c_str(), kId, kId), 0);
  }
  ~OwnUserTest() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  fs::path folder_;
};

bool opens(const fs::path& path, int flags = O_RDONLY) {
  return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, 0600)).valid();
}

TEST_F(OwnUserTest, IsNobodyElseForGood) {
  EXPECT_EQ(in_child([&]() -> std::string {
              ::prctl(PR_SET_PDEATHSIG, SIGKILL);
              const auto entered = enter_own_user(kId);
              if (!entered.ok()) return entered.error().message();
              int signal = 0;
              ::prctl(PR_GET_PDEATHSIG, &signal);
              gid_t group = 0;
              return unless(entered->active, entered->gap.c_str()) +
                     unless(::getuid() == kId && ::geteuid() == kId, "its user") +
                     unless(::getgid() == kId && ::getegid() == kId, "its group") +
                     unless(::getgroups(1, &group) == static_cast<int>(entered->groups.size()),
                            "groups") +
                     unless(::setuid(0) != 0 && ::setgid(0) != 0, "it can go back") +
                     unless(::prctl(PR_CAPBSET_READ, 0) == 0, "the bounding set") +
                     unless(signal == SIGKILL, "the signal at its parent's death") +
                     unless(opens("/proc/self/maps") && opens("/proc/self/auxv"), "its own /proc") +
                     unless(!opens(folder_ / "secret"), "another user's file") +
                     unless(opens(folder_ / "cache" / "new", O_WRONLY | O_CREAT), "its folder");
            }),
            "");
}

// Only permissions hold it back from the daemon's file, and a folder's descriptor leads it to its own.
TEST_F(OwnUserTest, IsHeldBackWhereLandlockAllowsMore) {
  for (const auto& [namespaces, mode] : {std::pair(true, 0755U), std::pair(true, 0700U),
                                         std::pair(false, 0755U), std::pair(false, 0700U)}) {
    fs::permissions(folder_, fs::perms(mode));
    const bool closed = mode == 0700, asks = namespaces;
    EXPECT_EQ(
        in_child([&]() -> std::string {
          ::umask(0077);
          SandboxRequest request;
          request.paths.readable = driver_paths(folder_.string());
          request.paths.writable = {(folder_ / "cache").string()};
          request.namespaces = asks;
          request.user.id = kId;
          const auto entered = enter_sandbox(request);
          if (!entered.ok()) return entered.error().message();
          std::string cache = folder_ / "cache";
          if (!entered->unreachable.empty())
            cache = "/proc/self/fd/" + std::to_string(entered->unreachable.front().get());
          return unless(entered->user.active, entered->user.gap.c_str()) +
                 unless(entered->unreachable.empty() == !closed, "a descriptor of its folder") +
                 unless(opens("/proc/self/maps") && opens("/proc/sys/kernel/ostype"), "/proc") +
                 unless(opens("/usr/bin/env"), "/usr") +
                 unless(!opens(folder_ / "secret"), "another user's file") +
                 unless(opens(cache + "/new", O_WRONLY | O_CREAT), "its folder");
        }),
        "")
        << namespaces << mode;
  }
}

// A driver in a superuser's folder finds no device if its worker may not read it.
TEST_F(OwnUserTest, StaysTheDaemonsUserIfADriverIsForThatAlone) {
  const fs::path driver = folder_ / "driver.json";
  std::ofstream(driver) << "{}";
  for (const bool everybodys : {false, true}) {
    fs::permissions(driver, fs::perms(everybodys ? 0644 : 0600));
    EXPECT_EQ(in_child([&]() -> std::string {
                SandboxRequest request;
                request.paths.readable = driver_paths(folder_.string());
                request.paths.writable = {(folder_ / "cache").string()};
                request.needed = {driver.string()};
                request.user.id = kId;
                const auto entered = enter_sandbox(request);
                if (!entered.ok()) return entered.error().message();
                return unless(entered->user.active == everybodys, "its user") +
                       unless(entered->user.gap.starts_with(driver.string()) == !everybodys,
                              "the reason") +
                       unless(opens(driver), "the driver");
              }),
              "")
        << everybodys;
  }
}

TEST_F(OwnUserTest, GetsTheGroupsOfGpusNodesAndNoOthers) {
  const auto node = [&](const char* name, mode_t mode, gid_t group) {
    const fs::path path = folder_ / "dev" / name;
    fs::create_directories(path.parent_path());
    if (::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) return false;
    return ::chown(path.c_str(), 0, group) == 0 && ::chmod(path.c_str(), mode) == 0;
  };
  if (!node("dri/renderD128", 0660, 7)) GTEST_SKIP() << "no device nodes can be made here";
  ASSERT_TRUE(node("dri/card0", 0660, 5) && node("nvidia0", 0666, 0) && node("kvm", 0660, 9) &&
              node("kfd", 0660, 7) && node("nvidia-modeset", 0660, 0));
  GpuNodes nodes = gpu_nodes(folder_ / "dev");
  EXPECT_EQ(nodes.groups, (std::vector<gid_t>{5, 7}));
  EXPECT_EQ(nodes.gap, "");
  ASSERT_TRUE(node("nvidia1", 0660, 0));
  nodes = gpu_nodes(folder_ / "dev");
  EXPECT_EQ(nodes.gap, (folder_ / "dev" / "nvidia1").string() + " is for the superuser alone");
}

}  // namespace
}  // namespace bulkhead::worker

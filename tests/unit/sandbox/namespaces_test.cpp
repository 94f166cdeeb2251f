// A process in its own namespaces: what it still finds, and what it does not find. Each test enters them in a child,
// once with the test's privileges and once without any.
#include "worker/sandbox/namespaces.hpp"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "tests/unit/sandbox/in_child.hpp"
#include "worker/sandbox/files.hpp"

namespace bulkhead::worker {
namespace {

namespace fs = std::filesystem;

class NamespacesOf : public testing::TestWithParam<As> {
 protected:
  void SetUp() override {
    const std::string gap = in_child([] {
      become(GetParam());
      return namespace_support({}).gap;
    });
    if (!gap.empty())
      GTEST_SKIP() << "the kernel refuses namespaces here (" << gap
                   << "); run the test where user namespaces are allowed, or as root with "
                      "CAP_SYS_ADMIN";
  }

  // Calls `run` in a child that has entered its namespaces; `run` returns what is wrong.
  static void expect_inside(const std::function<std::string()>& run) {
    EXPECT_EQ(in_child([&]() -> std::string {
                become(GetParam());
                ::prctl(PR_SET_PDEATHSIG, SIGKILL);
                const Result<Namespaces> entered = enter_namespaces(proc_paths(), {});
                if (!entered.ok()) return entered.error().message();
                if (!entered->network || !entered->ipc || !entered->mounts) return entered->gap;
                return run();
              }),
              "");
  }
};

TEST_P(NamespacesOf, ProcShowsThisProcessAndTheMachine) {
  const std::string parent = "/proc/" + std::to_string(::getpid());
  expect_inside([&] {
    const auto opens = [](const char* path) {
      return UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)).valid();
    };
    bool ran = false;
    std::thread([&] {
      ran = opens(("/proc/self/task/" + std::to_string(::gettid()) + "/comm").c_str());
    }).join();
    std::error_code none;
    return unless(!fs::exists(parent), "it sees its parent") +
           unless(fs::read_symlink("/proc/self", none) == std::to_string(::getpid()),
                  "/proc/self") +
           unless(ran, "its threads") + unless(opens("/proc/self/maps"), "its maps") +
           unless(opens("/proc/cpuinfo") && opens("/proc/meminfo"), "the machine's figures") +
           unless(opens("/proc/sys/kernel/pid_max"), "/proc/sys") +
           unless(opens("/proc/mounts"), "/proc/mounts") +
           unless(::mkdir("/proc/new", 0700) != 0 && errno == EROFS, "it can write to /proc");
  });
  EXPECT_TRUE(fs::exists(parent)) << "and nobody else has lost anything";
}

TEST_P(NamespacesOf, TheNetworkOfTheMachineIsNotThere) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto reaches = [&] {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return client.valid() &&
           ::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) == 0;
  };
  EXPECT_TRUE(reaches());
  expect_inside([&] { return unless(!reaches(), "it reaches a port of this machine"); });
}

// The kernel reaps the child that tried the namespaces, although nobody waits for it.
TEST_P(NamespacesOf, NoChildIsLeft) {
  expect_inside(
      [] { return unless(::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD, "a child is left"); });
}

// The process dies with its parent, its parent can look into it, and its user is the same.
TEST_P(NamespacesOf, WhatItIsStays) {
  const bool changes = GetParam() == As::kNobody && ::geteuid() == 0;
  const uid_t user = changes ? kNobodysId : ::geteuid();
  expect_inside([user] {
    int signal = 0;
    ::prctl(PR_GET_PDEATHSIG, &signal);
    struct stat own {};
    const bool is_owner = ::stat("/proc/self/maps", &own) == 0 && own.st_uid == user;
    return unless(signal == SIGKILL, "the signal at its parent's death is gone") +
           unless(::geteuid() == user, "its user") +
           unless(::prctl(PR_GET_DUMPABLE) == 1 && is_owner, "its /proc folder is not its own");
  });
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutPrivileges, NamespacesOf,
                         testing::Values(As::kSelf, As::kNobody),
                         [](const auto& as) { return as.param == As::kSelf ? "Self" : "Nobody"; });

// ---- where the kernel refuses ----

// A filter refuses the call, as a container's does.
TEST(Namespaces, ThatTheKernelRefusesAreGapsAndChangeNothing) {
  EXPECT_EQ(
      in_child([]() -> std::string {
        const fs::path before = fs::read_symlink("/proc/self/ns/net");
        if (!refuse(SCMP_SYS(unshare))) return "no filter";
        const Result<Namespaces> entered = enter_namespaces(proc_paths(), {});
        if (!entered.ok()) return entered.error().message();
        return unless(!entered->network && !entered->ipc && !entered->mounts && !entered->user,
                      "it says that it has some") +
               unless(entered->gap == "unshare: Operation not permitted", "its reason") +
               unless(fs::read_symlink("/proc/self/ns/net") == before, "it has changed") +
               unless(fs::exists("/proc/" + std::to_string(::getppid())), "/proc has changed");
      }),
      "");
}

// A process that could not drop its capabilities in a user namespace enters none.
TEST(Namespaces, AreNotEnteredWherePowersWouldStay) {
  EXPECT_EQ(in_child([]() -> std::string {
              become(As::kNobody);
              ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
              if (!refuse(SCMP_SYS(capset))) return "no filter";
              const Result<Namespaces> entered = enter_namespaces(proc_paths(), {});
              if (!entered.ok()) return entered.error().message();
              return unless(!entered->user && !entered->network, "it has some") +
                     unless(!entered->gap.empty(), "it gives no reason");
            }),
            "");
}

// A filter refuses mounts, as systemd's does. The process enters the other namespaces all the same.
TEST(Namespaces, AreEnteredWithoutMountsWhereThoseAreRefused) {
  EXPECT_EQ(in_child([]() -> std::string {
              if (!namespace_support({}).network) return "";  // the tests NamespacesOf report that
              const fs::path before = fs::read_symlink("/proc/self/ns/net");
              if (!refuse(SCMP_SYS(open_tree))) return "no filter";
              const Result<Namespaces> entered = enter_namespaces(proc_paths(), {});
              if (!entered.ok()) return entered.error().message();
              return unless(entered->network && entered->ipc && !entered->mounts, "what it has") +
                     unless(entered->gap.starts_with("open_tree"), "its reason") +
                     unless(fs::read_symlink("/proc/self/ns/net") != before, "its network") +
                     unless(fs::exists("/proc/" + std::to_string(::getppid())),
                            "/proc has changed");
            }),
            "");
}

}  // namespace
}  // namespace bulkhead::worker

// The kernel's information about a worker's process that is ending.
#include "orchestrator/supervisor/process.hpp"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

// The kernel marks a thread as exiting before it records what ended the thread. A look between the two must not
// report an exit with code 0.
TEST(Process, IsReportedAsStoppedOnlyWithWhatStoppedIt) {
  constexpr int kKills = 200;  // without care, about one look in fifteen falls between the two
  for (int i = 0; i < kKills; ++i) {
    auto channel = ipc::make_channel_pair({});
    ASSERT_TRUE(channel.ok());
    auto process = Process::start("/bin/sh", {"-c", "while :; do :; done"}, *channel);
    ASSERT_TRUE(process.ok()) << process.error().message();
    EXPECT_FALSE(process->stopped().has_value());
    process->kill();
    std::optional<Exit> stopped;
    while (!stopped.has_value())
      stopped = process->stopped();
    ASSERT_TRUE(stopped->killed_by(SIGKILL))
        << "kill " << i << ": " << describe_exit(stopped->code, stopped->status);
  }
}

TEST(Process, ThatEndedByItselfIsReportedSo) {
  auto channel = ipc::make_channel_pair({});
  ASSERT_TRUE(channel.ok());
  for (const int code : {0, 3}) {
    auto process = Process::start("/bin/sh", {"-c", "exit " + std::to_string(code)}, *channel);
    ASSERT_TRUE(process.ok()) << process.error().message();
    std::optional<Exit> stopped;
    while (!stopped.has_value())
      stopped = process->stopped();
    EXPECT_TRUE(stopped->exited_with(code)) << describe_exit(stopped->code, stopped->status);
    std::optional<Exit> ended;
    while (!ended.has_value())
      ended = process->ended();
    EXPECT_TRUE(ended->exited_with(code)) << describe_exit(ended->code, ended->status);
    channel = ipc::make_channel_pair({});
    ASSERT_TRUE(channel.ok());
  }
}

bool give_up_tracing() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  sets[0].effective &= ~(1U << CAP_SYS_PTRACE);
  sets[0].permitted &= ~(1U << CAP_SYS_PTRACE);
  return ::syscall(SYS_capset, &header, sets) == 0;
}

// A container's superuser may not trace processes of other users. Children can still open what this process has open.
int look_at_another_users_process() {
  if (!give_up_tracing()) return 1;
  auto channel = ipc::make_channel_pair({});
  if (!channel.ok()) return 2;
  auto process = Process::start("/bin/sh",
                                {"-c",
                                 "exec setpriv --reuid=61000 --regid=61000 --clear-groups "
                                 "sh -c 'while :; do :; done'"},
                                *channel);
  if (!process.ok()) return 3;
  struct stat owner {};
  const std::string folder = "/proc/" + std::to_string(process->pid());
  while (::stat((folder + "/stat").c_str(), &owner) == 0 && owner.st_uid != 61000) {
    if (process->has_ended()) return 4;
  }
  process->kill();
  std::optional<Exit> stopped;
  while (!stopped.has_value())
    stopped = process->stopped();
  if (!stopped->killed_by(SIGKILL)) return 5;
  return ::prctl(PR_GET_DUMPABLE) == 1 ? 0 : 6;
}

TEST(Process, OfAnotherUserIsReportedAsStoppedWithWhatStoppedIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only the superuser can start another user's process";
  const pid_t child = ::fork();
  if (child == 0) ::_exit(look_at_another_users_process());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace bulkhead::orchestrator

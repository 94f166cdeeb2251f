// What the kernel says about a worker's process that is ending.
#include "orchestrator/supervisor/process.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

// The kernel marks a thread as exiting before it notes what ended it. A look between the two must not take that for
// an exit with code 0.
TEST(Process, IsToldToHaveStoppedOnlyWithWhatStoppedIt) {
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

TEST(Process, ThatEndedByItselfIsToldSo) {
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

}  // namespace
}  // namespace bulkhead::orchestrator

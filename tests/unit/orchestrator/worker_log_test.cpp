// What workers wrote reaches the log before the daemon ends (docs/daemon-security.md has the rest, which
// surroundings_test tests with real processes).
#include "orchestrator/supervisor/worker_log.hpp"

#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

void write_line(const UniqueFd& pipe, const std::string& line) {
  ASSERT_EQ(::write(pipe.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

TEST(WorkerLogs, CatchUpWithWhatDeadWorkersWrote) {
  for (int i = 0; i < 50; ++i) {
    const std::string name = "dead-" + std::to_string(i);
    Result<UniqueFd> pipe = WorkerLogs::instance().open(name);
    ASSERT_TRUE(pipe.ok());
    write_line(*pipe, "first\nlast word");
    pipe->reset();  // as the worker's end does
    EXPECT_TRUE(WorkerLogs::instance().catch_up(std::chrono::seconds(10)));
    const auto lines = WorkerLogs::instance().lines(name);
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines.back().text, "last word");
  }
}

// A worker that lives, or that the kernel can't end, does not hold up the daemon's end.
TEST(WorkerLogs, WaitForNoWorkerThatSaysNothing) {
  Result<UniqueFd> pipe = WorkerLogs::instance().open("silent");
  ASSERT_TRUE(pipe.ok());
  EXPECT_TRUE(WorkerLogs::instance().catch_up(std::chrono::seconds(10)));
  write_line(*pipe, "a line\n");
  EXPECT_TRUE(WorkerLogs::instance().catch_up(std::chrono::seconds(10)));
  EXPECT_EQ(WorkerLogs::instance().lines("silent").size(), 1U);
}

}  // namespace
}  // namespace bulkhead::orchestrator

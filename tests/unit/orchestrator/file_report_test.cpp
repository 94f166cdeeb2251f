// What the daemon takes from a process that has read a model's file, and what it does not.
#include "orchestrator/supervisor/file_report.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ipc/messages.hpp"
#include "orchestrator/supervisor/program_output.hpp"
#include "tests/support/held_process.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::orchestrator {
namespace {

using testing::HasSubstr;

class ReportingProgram : public testing::Test {
 protected:
  // The program is pinned by its path, so each has its own.
  std::string script(const std::string& text) {
    const std::string path = folder_.path() / ("program-" + std::to_string(++scripts_));
    std::ofstream(path) << "#!/bin/sh\n[ \"$1\" = --describe ] || exit 1\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }
  std::string saying(const ipc::FromWorker& message) {
    std::vector<std::uint64_t> record(ipc::encoded_bound(message) / sizeof(std::uint64_t) + 1);
    const auto bytes = std::as_writable_bytes(std::span(record));
    const std::size_t size = *ipc::encode(message, bytes);
    const std::string file = folder_.path() / ("message-" + std::to_string(scripts_));
    std::ofstream(file).write(reinterpret_cast<const char*>(bytes.data()),
                              static_cast<std::streamsize>(size));
    return script("cat " + file);
  }
  static ErrorCode code_of(const std::string& program) {
    const auto report = report_of_file(program, {"--model", "x"});
    EXPECT_FALSE(report.ok());
    return report.ok() ? ErrorCode::kInternal : report.error().code();
  }

  const test::TemporaryFolder folder_{"reports"};
  int scripts_ = 0;
};

ipc::Ready some_report() {
  ipc::Ready ready;
  ready.architecture = "llama";
  ready.numerics_id = "not loaded";
  ready.facts = {7, "7B", "Q8_0"};
  return ready;
}

TEST_F(ReportingProgram, SaysWhatTheFileHoldsOrWhyItCantBeServed) {
  const auto report = report_of_file(saying(some_report()), {"--model", "x"});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_EQ(*report, some_report());
  const auto refused = report_of_file(saying(ipc::Fatal{"x.gguf: is damaged"}), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("x.gguf: is damaged"));
}

TEST_F(ReportingProgram, ThatDiesLiesOrFloodsSaysNothing) {
  EXPECT_EQ(code_of("/no/such/program"), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(script("exit 3")), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of(script("kill -9 $$")), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of(script("echo garbage")), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of(script("yes")), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of(saying(ipc::Pong{1})), ErrorCode::kCorrupt);
  ipc::Ready long_name = some_report();
  long_name.architecture.assign(100'000, 'x');
  EXPECT_EQ(code_of(saying(long_name)), ErrorCode::kCorrupt);
}

// The kernel may hold a killed process at a mount that hangs. Here the test holds it.
TEST(ProgramOutput, TellsOfAProcessThatDoesNotEndWhenItIsKilled) {
  const test::TemporaryFolder folder("left");
  const std::string told = (folder.path() / "pid").string();
  const std::string text =
      "import os, threading, time\n"
      "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
      "open('" +
      told +
      ".new', 'w').write(str(os.getpid()))\n"
      "os.rename('" +
      told + ".new', '" + told + "')\ntime.sleep(1000)\n";
  pid_t left_behind = -1;
  Result<std::string> output = std::string();
  std::thread caller([&] {
    output = output_of("/usr/bin/env", {"env", "python3", "-c", text},
                       {std::chrono::seconds(600), 1 << 20}, &left_behind);
  });
  while (!std::filesystem::exists(told))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pid_t pid = 0;
  std::ifstream(told) >> pid;
  test::HeldProcess held(pid);
  ::kill(pid, SIGKILL);
  caller.join();
  if (!held.held()) GTEST_SKIP() << test::kNoTracing;
  EXPECT_EQ(left_behind, pid);
  held.release();
  wait_for_end(left_behind);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace bulkhead::orchestrator

// Gives broken model files to the real programs. For each file there must be one clear message that names it, an exit
// code, little use of memory and no report of a sanitizer. In a sanitizer build the programs are sanitized, too.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/daemon.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/model/broken_files.hpp"

namespace bulkhead::test {
namespace {

using model::testing::Broken;
using model::testing::small_llama;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr long kMostMemoryKib = 200 * 1024;
constexpr std::chrono::seconds kPatience{60};

// A sanitizer's report must not look like one of our answers, so it ends the program with another exit code. Freed
// memory that AddressSanitizer keeps (256 MiB by default) must not count as memory for the file.
constexpr char kSanitizerOptions[] = "exitcode=99:quarantine_size_mb=16";

struct Outcome {
  std::optional<int> code;  // none: killed by a signal, or by the test after kPatience
  std::string out, err;
  long peak_kib = 0;
};

void set_sanitizer_options() {
  for (const char* variable : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
    const char* given = std::getenv(variable);
    const std::string before = given == nullptr ? "" : std::string(given) + ":";
    ::setenv(variable, (before + kSanitizerOptions).c_str(), 1);
  }
}

class BrokenModelFiles : public testing::Test {
 protected:
  BrokenModelFiles() {
    static const bool once = (set_sanitizer_options(), true);
    (void)once;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  Outcome inspect(const std::string& file) const {
    const std::string program = std::string(BULKHEAD_BIN_DIR) + "/bulkhead";
    const std::string out = path("stdout"), err = path("stderr");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      ::execl(program.c_str(), program.c_str(), "inspect", file.c_str(), nullptr);
      ::_exit(127);
    }
    Outcome outcome;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    rusage used{};
    while (::wait4(pid, &status, WNOHANG, &used) == 0) {
      if (std::chrono::steady_clock::now() > deadline) send_signal(pid, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
    outcome.out = read(out);
    outcome.err = read(err);
    outcome.peak_kib = used.ru_maxrss;
    return outcome;
  }

  void expect_refused(const std::string& name, const std::string& bytes, const std::string& says) {
    SCOPED_TRACE(name);
    const std::string file = write(name + ".gguf", bytes);
    const Outcome outcome = inspect(file);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(StartsWith("bulkhead: "), HasSubstr(file), HasSubstr(says)));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_LT(outcome.peak_kib, kMostMemoryKib);
  }

 private:
  const TemporaryFolder temporary_{"broken"};
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(BrokenModelFiles, WholeOneIsDescribed) {
  const Outcome outcome = inspect(write("small.gguf", small_llama().bytes()));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("small.gguf"), HasSubstr("Device memory")));
  EXPECT_LT(outcome.peak_kib, kMostMemoryKib);
}

// This file is not broken. Bulkhead can't run it, but can describe it.
TEST_F(BrokenModelFiles, OtherArchitectureIsDescribedAllTheSame) {
  for (const Broken& each : model::testing::kBroken) {
    if (std::string_view(each.name) != "architecture_other") continue;
    const Outcome outcome = inspect(write("other.gguf", each.make()));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("runs:         no: "), HasSubstr(each.says)));
  }
}

TEST_F(BrokenModelFiles, EachIsRefusedWithItsReason) {
  int files = 0;
  for (const Broken& each : model::testing::kBroken) {
    if (std::string_view(each.name) == "architecture_other") continue;
    expect_refused(each.name, each.make(), each.says);
    ++files;
  }
  EXPECT_GE(files, 50);
}

TEST_F(BrokenModelFiles, TruncatedAnywhereIsRefused) {
  const std::string whole = small_llama().bytes();
  const std::size_t header = whole.size() - small_llama().data_bytes;
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{16}, std::size_t{23},
        std::size_t{25}, header / 8, header / 4, header / 2, header - 100, header, header + 1,
        header + small_llama().data_bytes / 2, whole.size() - 64}) {
    expect_refused("cut-" + std::to_string(size), whole.substr(0, size), "");
  }
}

TEST_F(BrokenModelFiles, WhatIsNoFileIsRefused) {
  expect_refused("zeros", std::string(1 << 20, '\0'), "not a GGUF");
  expect_refused("text", "Dear model,\n", "");
  const Outcome folder = inspect(path(""));
  EXPECT_EQ(folder.code, 1);
  EXPECT_THAT(folder.err, HasSubstr(path("")));
  const Outcome none = inspect(path("none.gguf"));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("none.gguf"));
}

// Weights may take minutes to load, so an unsupported tokenizer is reported before that. This test has no device at
// all.
TEST_F(BrokenModelFiles, AnUnknownTokenizerIsRefusedBeforeTheDeviceIsOpened) {
  auto made = small_llama();
  made.drop("tokenizer.ggml.model");
  made.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "made-up");
  const std::string file = write("tokenizer.gguf", made.bytes());
  Daemon daemon(
      std::string(BULKHEAD_BIN_DIR) + "/bulkheadd",
      {{"--model", file, "--set", "models.0.device=999"}, {{"XDG_CACHE_HOME", path("cache")}}});
  EXPECT_EQ(daemon.wait_for_exit(60000), 1);
  EXPECT_THAT(daemon.log(),
              AllOf(HasSubstr(file), HasSubstr("tokenizer.ggml.pre \"made-up\" is not supported")));
}

// The worker reads the file; the daemon, which never does, reports the worker's last message and ends.
TEST_F(BrokenModelFiles, DaemonEndsWithTheWorkersReason) {
  for (const std::string name :
       {"offset_wraps", "array_huge", "architecture_other", "heads_text"}) {
    SCOPED_TRACE(name);
    const auto* broken =
        std::find_if(std::begin(model::testing::kBroken), std::end(model::testing::kBroken),
                     [&name](const Broken& each) { return each.name == name; });
    ASSERT_NE(broken, std::end(model::testing::kBroken));
    const std::string file = write(name + ".gguf", broken->make());
    Daemon daemon(std::string(BULKHEAD_BIN_DIR) + "/bulkheadd",
                  {{"--model", file}, {{"XDG_CACHE_HOME", path("cache")}}});
    EXPECT_EQ(daemon.wait_for_exit(60000), 1);
    EXPECT_EQ(daemon.output(), "");
    EXPECT_THAT(daemon.log(), AllOf(HasSubstr(file), HasSubstr(broken->says),
                                    Not(HasSubstr("Sanitizer")), Not(HasSubstr("runtime error:"))));
  }
}

}  // namespace
}  // namespace bulkhead::test

// The rules of access, and the words for the ends of processes.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "orchestrator/http/api.hpp"
#include "orchestrator/supervisor/death.hpp"
#include "orchestrator/supervisor/process.hpp"

namespace bulkhead::orchestrator {
namespace {

bool allowed(const std::string& host, const std::string& origin, bool loopback = true,
             const std::string& bound = "127.0.0.1") {
  ApiOptions options;
  options.server.host = bound;
  options.loopback = loopback;
  HttpRequest request;
  request.host = host;
  request.origin = origin;
  return origin_violation(options, request).empty();
}

TEST(OriginRule, KnownHostsOnly) {
  for (const char* host : {"localhost", "localhost:8484", "127.0.0.1:8484", "[::1]:8484", "[::1]",
                           "LocalHost:8484", "localhost:9000", "[::1]:9000"}) {
    EXPECT_TRUE(allowed(host, "")) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8484", "localhost.evil.example:8484",
                           "localhost:8484:1", "127.0.0.1:8484x", ":8484", "[::2]:8484"}) {
    EXPECT_FALSE(allowed(host, "")) << host;
  }
  EXPECT_TRUE(allowed("127.0.0.2:8484", "", true, "127.0.0.2"));
  EXPECT_FALSE(allowed("127.0.0.2:8484", ""));
}

TEST(OriginRule, TheRefusalSaysWhichNamesThereAre) {
  HttpRequest request;
  request.host = "gpu-box:9000";
  ApiOptions options;
  options.server.host = "127.0.0.5";
  const std::string words = origin_violation(options, request);
  EXPECT_NE(words.find("'gpu-box:9000'"), std::string::npos) << words;
  EXPECT_NE(words.find("localhost, 127.0.0.1, [::1], 127.0.0.5 and the names"), std::string::npos)
      << words;
}

TEST(OriginRule, SameOriginOrNone) {
  EXPECT_TRUE(allowed("localhost:8484", "http://localhost:8484"));
  EXPECT_TRUE(allowed("localhost:8484", "https://LOCALHOST:8484"));
  for (const char* origin : {"null", "http://localhost", "http://localhost:3000",
                             "http://127.0.0.1:8484", "http://evil.example", "localhost:8484"}) {
    EXPECT_FALSE(allowed("localhost:8484", origin)) << origin;
  }
}

TEST(OriginRule, ServersWithAKeyTakeAnyName) {
  EXPECT_TRUE(allowed("gpu-box:9000", "", false, "0.0.0.0"));
  EXPECT_TRUE(allowed("gpu-box:9000", "https://gpu-box:9000", false, "0.0.0.0"));
  EXPECT_FALSE(allowed("gpu-box:9000", "http://evil.example", false, "0.0.0.0"));
}

TEST(ApiKey, Compare) {
  EXPECT_TRUE(constant_time_equal("key", "key"));
  EXPECT_FALSE(constant_time_equal("keykey", "key"));
  EXPECT_FALSE(constant_time_equal("ke", "key"));
  EXPECT_FALSE(constant_time_equal("", "key"));
  EXPECT_FALSE(constant_time_equal("key", ""));
}

TEST(Exit, IsDescribedInWords) {
  EXPECT_EQ(describe_exit(CLD_EXITED, 3), "exited with code 3");
  EXPECT_EQ(describe_exit(CLD_KILLED, SIGKILL), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(describe_exit(CLD_DUMPED, SIGSEGV), "killed by signal 11 (SIGSEGV)");
  EXPECT_TRUE((Exit{CLD_KILLED, SIGKILL}.killed_by(SIGKILL)));
  EXPECT_FALSE((Exit{CLD_EXITED, SIGKILL}.killed_by(SIGKILL)));
  EXPECT_TRUE((Exit{CLD_EXITED, 4}.exited_with(4)));
}

TEST(OomKills, AreSeenOnceEach) {
  const std::string folder = ::testing::TempDir();
  const std::string file = folder + "/memory.events." + std::to_string(::getpid());
  const auto write = [&](int kills) {
    std::ofstream(file) << "low 0\nhigh 3\nmax 9\noom 2\noom_kill " << kills
                        << "\noom_group_kill 7\n";
  };
  write(4);
  OomKills kills({folder + "/no such file", file});
  EXPECT_FALSE(kills.grew());
  write(5);
  EXPECT_TRUE(kills.grew());
  EXPECT_FALSE(kills.grew());
  write(7);
  EXPECT_TRUE(kills.grew());
  std::filesystem::remove(file);
  EXPECT_FALSE(kills.grew());  // the file can't be read, so nothing is claimed
}

TEST(OomKills, TheKernelsOwnFilesAreFound) {
  int readable = 0;
  for (const std::string& file : OomKills::files())
    readable += std::ifstream(file).good() ? 1 : 0;
  EXPECT_GE(readable, 1);
}

}  // namespace
}  // namespace bulkhead::orchestrator

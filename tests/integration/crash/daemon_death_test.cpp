// kill -9 of the daemon while streams run: its workers, its spares and all memory that they shared must go, and
// nobody listens any more. The test prints how long that took.
#include <sys/stat.h>

#include <cctype>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/integration/crash/streams.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;
// Returns the inode numbers of the files in memory that a process has open or mapped: rings, and the memory of a
// vault. All of them are on one file system, the kernel's own.
std::set<ino_t> memory_files_of(const std::string& pid) {
  std::set<ino_t> found;
  std::error_code gone;
  for (fs::directory_iterator at("/proc/" + pid + "/fd", gone), end; !gone && at != end;
       at.increment(gone)) {
    std::error_code closed;
    struct stat file {};
    if (fs::read_symlink(at->path(), closed).string().find("memfd:") != std::string::npos &&
        ::stat(at->path().c_str(), &file) == 0)
      found.insert(file.st_ino);
  }
  std::ifstream maps("/proc/" + pid + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string range, rights, offset, device;
    ino_t number = 0;
    if (fields >> range >> rights >> offset >> device >> number) found.insert(number);
  }
  return found;
}

// Says whether any process of this machine that the test may inspect has one of them.
bool held_anywhere(const std::set<ino_t>& files) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    for (const ino_t file : memory_files_of(name)) {
      if (files.contains(file)) return true;
    }
  }
  return false;
}

// The machine's first process reaps orphans, and some such processes look only once a second. A zombie holds nothing
// and does not run any more.
bool has_ended(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return true;
  const std::size_t name_end = line.rfind(')');
  const char state = name_end + 2 < line.size() ? line[name_end + 2] : '?';
  return state == 'Z' || state == 'X';
}

class DaemonDeath : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transport, DaemonDeath, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(DaemonDeath, TakesWorkersSparesAndTheirMemoryWithIt) {
  const Serving serving = serve_model("", {std::string("ipc.transport=") + GetParam(),
                                           "models.0.path=builtin", "isolation.standby=1"});
  std::vector<pid_t> processes;
  ASSERT_TRUE(Serving::eventually([&] {
    processes.clear();
    for (const json& each : json::parse(serving.get("/v1/workers").body)) {
      if (each["state"] == "ready" || each["state"] == "standby")
        processes.push_back(each["pid"].get<pid_t>());
    }
    return processes.size() == 2;
  }));
  HttpClient client(serving.port);
  ASSERT_TRUE(
      client.send("POST", "/v1/completions", request_of(true, 900, "Once upon a time", 3).dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  ASSERT_TRUE(client.receive_chunk().has_value());
  // The vault's, and over shm the rings.
  const std::set<ino_t> shared = memory_files_of(std::to_string(serving.daemon->pid()));
  ASSERT_FALSE(shared.empty());

  const auto killed = steady_clock::now();
  const auto after_ms = [&] {
    return static_cast<long long>(
        duration_cast<milliseconds>(steady_clock::now() - killed).count());
  };
  serving.daemon->signal(SIGKILL);
  EXPECT_EQ(serving.daemon->wait_for_exit(), -SIGKILL);
  for (const pid_t process : processes)
    EXPECT_TRUE(Serving::eventually([&] { return has_ended(process); }));
  const long long ended_ms = after_ms();
  EXPECT_TRUE(Serving::eventually([&] { return !held_anywhere(shared); }));
  std::printf("%s: workers gone %lld ms after the daemon was killed, memory after %lld ms\n",
              GetParam(), ended_ms, after_ms());
  while (client.receive_chunk().has_value()) {  // reads what was on its way, then the end
  }
  EXPECT_FALSE(HttpClient(serving.port).connected());
}

}  // namespace
}  // namespace bulkhead::test

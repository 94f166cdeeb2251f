// Workers in a namespace of process ids of their own. The daemon reports their deaths as it does without a namespace,
// and the first process of a worker's namespace ends with the worker.
#include <signal.h>

#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/integration/crash/streams.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;

std::string first_line_of(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string name_of(pid_t process) {
  return first_line_of("/proc/" + std::to_string(process) + "/comm");
}

// Returns the processes of the machine that run and have this parent; with 0, those that have any.
std::set<pid_t> running_children(pid_t parent) {
  std::set<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    const std::string stat = first_line_of(entry.path() / "stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    char state = '?';
    pid_t its_parent = 0;
    std::istringstream(stat.substr(name_end + 1)) >> state >> its_parent;
    if ((parent == 0 || its_parent == parent) && state != 'Z' && state != 'X')
      found.insert(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

std::string namespace_of(pid_t process) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + std::to_string(process) + "/ns/pid", gone).string();
}

class PidNamespace : public testing::Test {
 protected:
  void SetUp() override {
    serving_ = serve_model("", {"models.0.path=builtin"});
    if (!told(serving_.worker())) GTEST_SKIP() << "the kernel refuses namespaces of process ids";
  }

  static bool told(const json& worker) {
    for (const json& each : worker["protections"]) {
      if (each["name"] == "pid_namespace") return each["active"];
    }
    return false;
  }
  pid_t pid() const {
    return serving_.worker()["pid"].is_number() ? serving_.worker()["pid"].get<pid_t>() : -1;
  }
  pid_t first_of(pid_t worker) const {
    for (const pid_t child : running_children(serving_.daemon->pid())) {
      if (child != worker && namespace_of(child) == namespace_of(worker)) return child;
    }
    return -1;
  }
  bool ready_again(pid_t before) const {
    return Serving::eventually([&] {
      const json worker = serving_.worker();
      return worker["state"] == "ready" && worker["pid"] != before;
    });
  }

  Serving serving_;
};

TEST_F(PidNamespace, HoldsTheWorkerAndOneThatWaits) {
  const pid_t worker = pid(), first = first_of(worker);
  ASSERT_GT(first, 0);
  EXPECT_EQ(name_of(worker), "bulkhead-worker");
  EXPECT_EQ(name_of(first), "bulkhead-first");
  EXPECT_NE(namespace_of(worker), namespace_of(serving_.daemon->pid()));
  const fs::path folder = "/proc/" + std::to_string(first);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "fd"), fs::directory_iterator()), 1)
      << "it has the descriptor of the worker alone";
  EXPECT_EQ(first_line_of(folder / "environ"), "");
  EXPECT_NE(serving_.daemon->log().find("started process " + std::to_string(worker)),
            std::string::npos);
}

TEST_F(PidNamespace, DeathsAreReportedAsWithoutIt) {
  for (const auto& [signal, words] : {std::pair(SIGABRT, "killed by signal 6 (SIGABRT)"),
                                      std::pair(SIGSEGV, "killed by signal 11 (SIGSEGV)"),
                                      std::pair(SIGKILL, "killed by signal 9 (SIGKILL)")}) {
    const pid_t worker = pid(), first = first_of(worker);
    ASSERT_EQ(::kill(worker, signal), 0);
    ASSERT_TRUE(ready_again(worker)) << serving_.daemon->log();
    EXPECT_EQ(serving_.worker()["last_death"], words);
    EXPECT_TRUE(Serving::eventually([&] { return ::kill(first, 0) != 0; })) << "it is left over";
    EXPECT_TRUE(told(serving_.worker()));
  }
  EXPECT_EQ(running_children(serving_.daemon->pid()).size(), 2U);
}

// The end of the first process ends the worker, and the daemon starts another one.
TEST_F(PidNamespace, DiesWithItsFirstProcess) {
  const pid_t worker = pid(), first = first_of(worker);
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(ready_again(worker)) << serving_.daemon->log();
  EXPECT_EQ(serving_.worker()["last_death"], "killed by signal 9 (SIGKILL)");
}

TEST_F(PidNamespace, LeavesNoProcessAfterTheDaemon) {
  const std::string its = namespace_of(pid());
  ASSERT_NE(its, "");
  serving_.daemon->signal(SIGKILL);
  EXPECT_EQ(serving_.daemon->wait_for_exit(), -SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] {
    for (const pid_t process : running_children(0)) {
      if (namespace_of(process) == its) return false;
    }
    return true;
  }));
}

TEST_F(PidNamespace, LeavesNoProcessAfterAStop) {
  const pid_t worker = pid(), first = first_of(worker);
  serving_.daemon->signal(SIGTERM);
  EXPECT_EQ(serving_.daemon->wait_for_exit(), 0);
  EXPECT_TRUE(Serving::eventually([&] { return ::kill(worker, 0) != 0 && ::kill(first, 0) != 0; }));
}

// Without that program workers have no such namespace, and say so.
TEST_F(PidNamespace, IsMissingWithoutItsFirstProcess) {
  const TemporaryFolder folder("first");
  const std::string daemon = folder.path() / "bulkheadd";
  fs::copy_file(BULKHEADD, daemon);
  Daemon::Options options;
  options.environment = {{"BULKHEAD_WORKER", std::string(BULKHEAD_BIN_DIR) + "/bulkhead-worker"}};
  options.arguments = {"--set", "models.0.path=builtin"};
  options.computing_workers = {"builtin-0"};
  {
    Daemon alone(daemon, options);
    const std::uint16_t port = alone.wait_until_listening();
    ASSERT_NE(port, 0) << alone.log();
    const json worker = json::parse(HttpClient(port).request("GET", "/v1/workers").body).at(0);
    for (const json& each : worker["protections"]) {
      if (each["name"] != "pid_namespace") continue;
      EXPECT_EQ(each["active"], false);
      EXPECT_EQ(each["detail"], "the program bulkhead-first is not beside bulkheadd");
    }
    EXPECT_FALSE(told(worker));
    EXPECT_EQ(running_children(alone.pid()).size(), 1U);
  }
}

}  // namespace
}  // namespace bulkhead::test

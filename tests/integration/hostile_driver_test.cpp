// A driver that turns on its worker, loaded by the real worker program under the real daemon: whatever
// it tries is refused. The list of what it may call is worker/sandbox/allowed_calls.cpp, reviewed by
// tests/unit/sandbox/allowed_calls_test.cpp.
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <tuple>

#include "tests/integration/serving.hpp"
#include "worker/sandbox/allowed_calls.hpp"
#include "worker/sandbox/sandbox.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;

bool knows_32_bit_calls() {
#if defined(__x86_64__)
  const pid_t child = ::fork();
  if (child == 0) {
    long result = 20;  // getpid
    asm volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    ::_exit(result == ::getpid() ? 0 : 1);
  }
  int status = 1;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
#else
  return false;
#endif
}

json worker_of(const Daemon& daemon) {
  return json::parse(HttpClient(daemon.port()).request("GET", "/v1/workers").body).at(0);
}

class HostileDriver : public testing::Test {
 protected:
  HostileDriver() {
    char name[] = "/tmp/bulkhead-driver-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::ofstream(folder_ / "secret") << "secret";
    fs::permissions(folder_ / "secret", fs::perms::owner_read | fs::perms::owner_write);
    fs::copy_file(BULKHEAD_MODEL, folder_ / "model.gguf");
    fs::create_directory(folder_ / "driver");
    fs::copy_file(HOSTILE_DRIVER, folder_ / "driver" / "libhostile.so");
    std::ofstream(folder_ / "driver" / "hostile.json")
        << R"({"file_format_version": "1.0.0", "ICD": {"api_version": "1.3.0", "library_path": ")"
        << (folder_ / "driver" / "libhostile.so").string() << "\"}}";
  }
  ~HostileDriver() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  // What the daemon logged: with no other driver it can't serve, and ends.
  std::string log_of_run(std::vector<std::string> settings) {
    std::string skips = ",";
    for (const worker::AllowedCall& row : worker::allowed_calls())
      skips += std::to_string(row.number) + ",";
    Daemon::Options options;
    settings.push_back("models.0.path=" + (folder_ / "model.gguf").string());
    settings.push_back("models.0.name=m");
    for (const std::string& setting : settings)
      options.arguments.insert(options.arguments.end(), {"--set", setting});
    options.environment = {{"XDG_CACHE_HOME", folder_.string()},
                           {"VK_DRIVER_FILES", (folder_ / "driver" / "hostile.json").string()},
                           {"VK_ICD_FILENAMES", (folder_ / "driver" / "hostile.json").string()},
                           {"BULKHEAD_DRIVER_FILE", (folder_ / "secret").string()},
                           {"BULKHEAD_DRIVER_MODEL", (folder_ / "model.gguf").string()},
                           {"BULKHEAD_DRIVER_CACHE", (folder_ / "bulkhead" / "m-0").string()},
                           {"BULKHEAD_DRIVER_SKIPS", skips}};
    if (knows_32_bit_calls()) options.environment["BULKHEAD_DRIVER_I386"] = "1";
    Daemon daemon(BULKHEADD, options);
    EXPECT_EQ(daemon.wait_until_listening(), 0);
    EXPECT_TRUE(daemon.wait_for_exit().has_value());
    return daemon.log();
  }

  fs::path folder_;
};

TEST_F(HostileDriver, GetsNothingThrough) {
  const worker::SandboxReport kernel = worker::sandbox_support();
  if (!kernel.system_calls || kernel.landlock_version < 5)
    GTEST_SKIP() << "this kernel lacks parts of the sandbox";
  const auto times = fs::last_write_time(folder_ / "secret");
  const std::string log = log_of_run({"isolation.sandbox_paths=" + (folder_ / "driver").string()});
  EXPECT_NE(log.find("driver: done: 0 acts and 0 calls went through"), std::string::npos) << log;
  EXPECT_NE(log.find("driver: tried 80 acts"), std::string::npos) << log;
  EXPECT_EQ(log.find("driver: went through"), std::string::npos) << log;
  EXPECT_EQ(log.find("driver: no file"), std::string::npos) << log;
  EXPECT_EQ(log.find("driver: the model"), std::string::npos) << log;
  EXPECT_EQ(fs::status(folder_ / "secret").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::last_write_time(folder_ / "secret"), times);
}

TEST_F(HostileDriver, IsNotReadUnlessASettingAllowsItsFolder) {
  if (!worker::sandbox_support().files) GTEST_SKIP() << "this kernel has no Landlock";
  const std::string log = log_of_run({});
  EXPECT_EQ(log.find("driver: "), std::string::npos) << log;
  EXPECT_NE(log.find("libhostile.so a confined worker may not read; to allow it: --set "
                     "isolation.sandbox_paths=" +
                     (folder_ / "driver").string()),
            std::string::npos)
      << log;
}

// What an operator adds to the table is known by its name.
TEST_F(HostileDriver, IsWatchedWhereTheSandboxOnlyLogs) {
  if (!worker::sandbox_support().system_calls) GTEST_SKIP() << "this kernel has no seccomp filters";
  // Without its acts: they would be done.
  Daemon::Options options;
  options.arguments = {"--set", "models.0.path=builtin", "--set", "isolation.sandbox=log"};
  options.computing_worker = "builtin-0";
  Daemon daemon(BULKHEADD, options);
  ASSERT_NE(daemon.wait_until_listening(), 0) << daemon.log();
  EXPECT_TRUE(daemon.says("isolation.sandbox is log")) << daemon.log();
  for (const json& each : worker_of(daemon)["protections"]) {
    if (each["name"] == "cgroup") continue;  // has a setting of its own
    EXPECT_EQ(each["active"], false) << each;
    EXPECT_EQ(each["detail"], "isolation.sandbox is log") << each;
  }
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait_for_exit(), 0);
}

// /v1/workers says of the process what the kernel says of it.
TEST(Protections, OfAWorkerAreToldAsTheyAre) {
  const auto run = [](const char* namespaces) {
    Daemon::Options options;
    options.arguments = {"--set", "models.0.path=builtin", "--set",
                         "isolation.namespaces="s + namespaces};
    options.computing_worker = "builtin-0";
    Daemon daemon(BULKHEADD, options);
    ASSERT_NE(daemon.wait_until_listening(), 0) << daemon.log();
    const json worker = worker_of(daemon);
    std::map<std::string, json> told;
    for (const json& each : worker["protections"])
      told[each["name"]] = each;
    const worker::SandboxReport kernel = worker::sandbox_support();
    EXPECT_EQ(told["landlock"]["active"], kernel.files);
    EXPECT_EQ(told["seccomp"]["active"], kernel.system_calls);
    EXPECT_EQ(told["limits"]["active"], true);
    const bool wanted = namespaces == "auto"s;
    EXPECT_EQ(told["network_namespace"]["detail"] == "isolation.namespaces is off", !wanted);
    for (const auto& [name, file, possible] :
         {std::tuple("network_namespace", "net", kernel.namespaces.network),
          std::tuple("ipc_namespace", "ipc", kernel.namespaces.ipc),
          std::tuple("mount_namespace", "mnt", kernel.namespaces.mounts),
          std::tuple("user_namespace", "user", kernel.namespaces.user)}) {
      const auto of = [&](pid_t pid) {
        return fs::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + file);
      };
      EXPECT_EQ(told[name]["active"], wanted && possible) << told[name];
      EXPECT_EQ(told[name]["active"], of(worker["pid"]) != of(daemon.pid())) << told[name];
    }
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_exit(), 0);
  };
  run("auto");
  run("off");
}

}  // namespace
}  // namespace bulkhead::test

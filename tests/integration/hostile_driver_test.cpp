// The real worker program, under the real daemon, loads a driver that attacks it. Everything that the driver tries
// must be refused. worker/sandbox/allowed_calls.cpp lists what it may call, and
// tests/unit/sandbox/allowed_calls_test.cpp reviews that list.
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "tests/integration/tool.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"
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

int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++times;
  return times;
}

class HostileDriver : public testing::Test {
 protected:
  HostileDriver() {
    // Drivers, and what leads to them, are for everybody. The model's file is not.
    fs::permissions(folder_, fs::perms(0755));
    std::ofstream(folder_ / "secret") << "secret";
    fs::permissions(folder_ / "secret", fs::perms::owner_read | fs::perms::owner_write);
    fs::create_symlink("secret", folder_ / "secret-link");
    fs::copy_file(BULKHEAD_MODEL, folder_ / "model.gguf");
    fs::create_directory(folder_ / "driver");
    fs::copy_file(HOSTILE_DRIVER, folder_ / "driver" / "libhostile.so");
    std::ofstream(folder_ / "driver" / "hostile.json")
        << R"({"file_format_version": "1.0.0", "ICD": {"api_version": "1.3.0", "library_path": ")"
        << (folder_ / "driver" / "libhostile.so").string() << "\"}}";
  }

  std::string log_of_attack(std::vector<std::string> settings,
                            std::map<std::string, std::string> more = {}) {
    std::string skips = ",";
    for (const worker::AllowedCall& row : worker::allowed_calls())
      skips += std::to_string(row.number) + ",";
    std::map<std::string, std::string> environment = {
        {"BULKHEAD_DRIVER_FILE", (folder_ / "secret").string()},
        {"BULKHEAD_DRIVER_MODEL", (folder_ / "model.gguf").string()},
        {"BULKHEAD_DRIVER_CACHE", (folder_ / "bulkhead" / "m-0").string()},
        {"BULKHEAD_DRIVER_SKIPS", skips}};
    if (knows_32_bit_calls()) environment["BULKHEAD_DRIVER_I386"] = "1";
    environment.merge(more);
    return log_of_run(std::move(settings), std::move(environment));
  }

  void expect_nothing_through(std::vector<std::string> settings,
                              std::map<std::string, std::string> environment) {
    const worker::SandboxReport kernel = worker::sandbox_support();
    if (!kernel.system_calls || kernel.landlock_version < 5)
      GTEST_SKIP() << "this kernel lacks parts of the sandbox";
    const auto times = fs::last_write_time(folder_ / "secret");
    settings.push_back("isolation.sandbox_paths=" + (folder_ / "driver").string());
    const std::string log = log_of_attack(std::move(settings), std::move(environment));
    EXPECT_NE(log.find("driver: done: 0 acts and 0 calls went through"), std::string::npos) << log;
    EXPECT_NE(log.find("driver: tried 90 acts"), std::string::npos) << log;
    EXPECT_EQ(log.find("driver: went through"), std::string::npos) << log;
    EXPECT_EQ(log.find("driver: no file"), std::string::npos) << log;
    EXPECT_EQ(log.find("driver: the model"), std::string::npos) << log;
    EXPECT_EQ(fs::status(folder_ / "secret").permissions(),
              fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_EQ(fs::last_write_time(folder_ / "secret"), times);
  }

  // Returns the daemon's log. Without another driver the daemon can't serve, and ends.
  std::string log_of_run(std::vector<std::string> settings,
                         std::map<std::string, std::string> environment) {
    Daemon::Options options;
    settings.push_back("models.0.path=" + (folder_ / "model.gguf").string());
    settings.push_back("models.0.name=m");
    for (const std::string& setting : settings)
      options.arguments.insert(options.arguments.end(), {"--set", setting});
    const std::string driver = (folder_ / "driver" / "hostile.json").string();
    environment.insert({{"XDG_CACHE_HOME", folder_.string()},
                        {"VK_DRIVER_FILES", driver},
                        {"VK_ICD_FILENAMES", driver}});
    options.environment = std::move(environment);
    Daemon daemon(BULKHEADD, options);
    EXPECT_EQ(daemon.wait_until_listening(), 0);
    EXPECT_TRUE(daemon.wait_for_exit().has_value());
    return daemon.log();
  }

  const TemporaryFolder temporary_{"driver"};
  const fs::path& folder_ = temporary_.path();
};

TEST_F(HostileDriver, GetsNothingThrough) {
  expect_nothing_through({}, {{"BULKHEAD_DRIVER_HIDDEN", "1"}});
}

TEST_F(HostileDriver, GetsNothingThroughWithoutNamespaces) {
  expect_nothing_through({"isolation.namespaces=off"}, {});
}

// Returns the numbers of "driver: WHERE: learnt 3 of 7"; -1 if there is no such line.
std::pair<int, int> learnt(const std::string& log, const std::string& where) {
  std::pair<int, int> numbers{-1, -1};
  const std::size_t at = log.find("driver: " + where + ": learnt ");
  if (at != std::string::npos)
    (void)std::sscanf(log.c_str() + log.find("learnt", at), "learnt %d of %d", &numbers.first,
                      &numbers.second);
  return numbers;
}

TEST_F(HostileDriver, LearnsNothingAboutFilesOutside) {
  if (const worker::Namespaces own = worker::sandbox_support().namespaces; !own.root)
    GTEST_SKIP() << "workers get no private root here: " << own.root_gap;
  const std::string log =
      log_of_attack({"isolation.sandbox_paths=" + (folder_ / "driver").string()},
                    {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  const auto [outside, asked] = learnt(log, "outside");
  EXPECT_EQ(outside, 0) << log;
  EXPECT_GT(asked, 30) << log;
  EXPECT_NE(log.find("driver: a link outside: No such file"), std::string::npos) << log;
  const auto [inside, all] = learnt(log, "inside");
  EXPECT_EQ(inside, all) << log;
  EXPECT_GT(all, 0) << log;
}

TEST_F(HostileDriver, HasNoNumberForTheDaemon) {
  if (const worker::Namespaces own = worker::sandbox_support().namespaces; !own.pids)
    GTEST_SKIP() << "workers get no namespace of process ids here: " << own.pid_gap;
  const std::string number = "driver: its parent's number: ";
  std::vector<std::string> settings = {"isolation.sandbox_paths=" + (folder_ / "driver").string()};
  const std::string log = log_of_attack(settings, {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  EXPECT_NE(log.find(number + "0\n"), std::string::npos) << log;
  settings.emplace_back("isolation.namespaces=off");
  const std::string beside = log_of_attack(settings, {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  EXPECT_NE(beside.find(number), std::string::npos) << beside;
  EXPECT_EQ(beside.find(number + "0\n"), std::string::npos) << beside;
}

// Without a private root a worker can ask about any file. The documentation says so.
TEST_F(HostileDriver, LearnsAboutFilesOutsideWithoutNamespaces) {
  if (!worker::sandbox_support().files) GTEST_SKIP() << "this kernel has no Landlock";
  const std::string log = log_of_attack(
      {"isolation.sandbox_paths=" + (folder_ / "driver").string(), "isolation.namespaces=off"},
      {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  const auto [outside, asked] = learnt(log, "outside");
  // It can't learn about files below a folder that its own user may not search.
  if (worker::sandbox_support().user.active)
    EXPECT_GT(outside, 30) << log;
  else
    EXPECT_EQ(outside, asked) << log;
  EXPECT_GT(asked, 30) << log;
  EXPECT_NE(log.find("driver: a link outside: read"), std::string::npos) << log;
}

std::string value_of(const std::string& log, const std::string& name) {
  const std::size_t at = log.find("driver: " + name);
  if (at == std::string::npos) return "not told";
  const std::size_t begin = log.find_first_not_of(" \t", at + 8 + name.size());
  return log.substr(begin, log.find_first_of(" \t\n", begin) - begin);
}

// A setting lets it look everywhere below the folder: only the permissions of files are left.
TEST_F(HostileDriver, IsAnotherUserThanTheDaemon) {
  if (const worker::OwnUser own = worker::sandbox_support().user; !own.active)
    GTEST_SKIP() << "workers get no user of their own here: " << own.gap;
  const fs::path other = folder_ / "bulkhead" / "other-0";
  fs::create_directories(other);
  fs::permissions(other.parent_path(), fs::perms::owner_all);
  fs::permissions(other, fs::perms::owner_all);
  std::ofstream(other / "kernel") << "x";
  ASSERT_EQ(::chown(other.c_str(), 60000, 60000), 0);
  const auto look = [&](std::vector<std::string> settings) {
    settings.push_back("isolation.sandbox_paths=" + folder_.string());
    return log_of_attack(settings, {{"BULKHEAD_DRIVER_WHO", (other / "kernel").string()}});
  };
  for (const char* namespaces : {"auto", "off"}) {
    const std::string log = look({"isolation.namespaces="s + namespaces});
    const std::string user = value_of(log, "Uid:");
    EXPECT_TRUE(std::stoul(user) >= 60706) << log;
    EXPECT_EQ(value_of(log, "Gid:"), user);
    for (const char* set : {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"})
      EXPECT_EQ(value_of(log, set), "0000000000000000") << set << log;
    EXPECT_EQ(value_of(log, "NoNewPrivs:"), "1");
    EXPECT_EQ(count(log, "driver: reading"), 2) << log;
    EXPECT_EQ(count(log, ": Permission denied\n"), 2) << log;
    EXPECT_NE(log.find("driver: becoming the superuser: Operation not permitted"),
              std::string::npos)
        << log;
    struct stat cache {};
    ASSERT_EQ(::stat((folder_ / "bulkhead" / "m-0").c_str(), &cache), 0);
    EXPECT_EQ(std::to_string(cache.st_uid), user);
    EXPECT_EQ(cache.st_mode & 07777, 0700U);
  }
  // The folder belongs to the daemon's user again, and the worker sees what that user may see.
  const std::string log = look({"isolation.worker_user=off"});
  EXPECT_EQ(value_of(log, "Uid:"), "0");
  EXPECT_EQ(count(log, ": done\n"), 2) << log;
  struct stat cache {};
  ASSERT_EQ(::stat((folder_ / "bulkhead" / "m-0").c_str(), &cache), 0);
  EXPECT_EQ(cache.st_uid, 0U);
}

// A worker without its driver would be of no use. It may be of use without the other files that a setting
// names.
TEST_F(HostileDriver, ForTheDaemonsUserAloneLeavesTheWorkerThatUser) {
  if (const worker::OwnUser own = worker::sandbox_support().user; !own.active)
    GTEST_SKIP() << "workers get no user of their own here: " << own.gap;
  const std::string secret = (folder_ / "secret").string();
  const std::vector<std::string> settings = {
      "isolation.sandbox_paths=" + (folder_ / "driver").string() + ":" + secret};
  std::string log = log_of_attack(settings, {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  EXPECT_NE(log.find(secret + " may not be read by the worker's own user"), std::string::npos)
      << log;
  EXPECT_NE(log.find("driver: outside"), std::string::npos) << log;
  fs::permissions(folder_ / "driver" / "libhostile.so", fs::perms(0700));
  log = log_of_attack(settings, {{"BULKHEAD_DRIVER_LOOKS", "1"}});
  EXPECT_NE(log.find("no user id of its own: " + (folder_ / "driver").string() +
                     "/libhostile.so is for the daemon's user alone"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("driver: outside"), std::string::npos) << log;
}

TEST_F(HostileDriver, IsNotReadUnlessASettingAllowsItsFolder) {
  if (!worker::sandbox_support().files) GTEST_SKIP() << "this kernel has no Landlock";
  const std::string log = log_of_attack({});
  EXPECT_EQ(log.find("driver: "), std::string::npos) << log;
  EXPECT_NE(log.find("libhostile.so a confined worker may not read; to allow it: --set "
                     "isolation.sandbox_paths=" +
                     (folder_ / "driver").string()),
            std::string::npos)
      << log;
}

// Calls that would be refused are made, and each kind is logged once; allowed calls are not logged.
TEST_F(HostileDriver, IsReportedAndNotRefusedWhereTheSandboxOnlyLogs) {
  if (!worker::sandbox_support().system_calls) GTEST_SKIP() << "this kernel has no seccomp filters";
  const std::string secret = (folder_ / "secret").string();
  const std::string log = log_of_run({"isolation.sandbox=log"}, {{"BULKHEAD_DRIVER_ASKS", secret}});
  EXPECT_EQ(count(log, "driver: asked: both went through"), 2) << log;
  EXPECT_EQ(count(log, "would refuse getsid(0, "), 1) << log;
  EXPECT_EQ(count(log, ") to read " + secret), 1) << log;
  EXPECT_EQ(log.find(") to read " + (folder_ / "model.gguf").string()), std::string::npos) << log;
}

TEST_F(HostileDriver, IsWatchedWhereTheSandboxOnlyLogs) {
  if (!worker::sandbox_support().system_calls) GTEST_SKIP() << "this kernel has no seccomp filters";
  // The driver does not try harmful acts here, because they would succeed.
  Daemon::Options options;
  options.arguments = {"--set", "models.0.path=builtin", "--set", "isolation.sandbox=log"};
  options.computing_workers = {"builtin-0"};
  Daemon daemon(BULKHEADD, options);
  ASSERT_NE(daemon.wait_until_listening(), 0) << daemon.log();
  EXPECT_TRUE(daemon.says("isolation.sandbox is log")) << daemon.log();
  for (const json& each : worker_of(daemon)["protections"]) {
    if (each["name"] == "cgroup") continue;  // this has a setting of its own
    EXPECT_EQ(each["active"], false) << each;
    EXPECT_EQ(each["detail"], "isolation.sandbox is log") << each;
  }
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait_for_exit(), 0);
}

// /v1/workers says about the process what the kernel says about it.
TEST(Protections, OfAWorkerAreReportedAsTheyAre) {
  const auto run = [](const char* namespaces) {
    Daemon::Options options;
    options.arguments = {"--set", "models.0.path=builtin", "--set",
                         "isolation.namespaces="s + namespaces};
    options.computing_workers = {"builtin-0"};
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
    struct stat process {};
    EXPECT_EQ(::stat(("/proc/" + worker["pid"].dump()).c_str(), &process), 0);
    EXPECT_EQ(told["user_id"]["active"], kernel.user.active);
    EXPECT_EQ(told["user_id"]["active"], process.st_uid != ::geteuid());
    std::error_code refused;
    if (fs::read_symlink("/proc/" + worker["pid"].dump() + "/ns/net", refused).empty())
      GTEST_SKIP() << "this process may not look at the worker's namespaces: " << refused.message();
    const bool wanted = namespaces == "auto"s;
    EXPECT_EQ(told["network_namespace"]["detail"] == "isolation.namespaces is off", !wanted);
    for (const auto& [name, file, possible] :
         {std::tuple("network_namespace", "net", kernel.namespaces.network),
          std::tuple("ipc_namespace", "ipc", kernel.namespaces.ipc),
          std::tuple("mount_namespace", "mnt", kernel.namespaces.mounts),
          std::tuple("pid_namespace", "pid", kernel.namespaces.pids),
          std::tuple("user_namespace", "user", kernel.namespaces.user)}) {
      const auto of = [&](pid_t pid) {
        return fs::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + file);
      };
      EXPECT_EQ(told[name]["active"], wanted && possible) << told[name];
      EXPECT_EQ(told[name]["active"], of(worker["pid"]) != of(daemon.pid())) << told[name];
    }
    EXPECT_EQ(told["private_root"]["active"], wanted && kernel.namespaces.root);
    const fs::path root = "/proc/" + std::to_string(worker["pid"].get<int>()) + "/root";
    EXPECT_TRUE(fs::exists(root / "usr"));
    EXPECT_EQ(told["private_root"]["active"], !fs::exists(root / "etc/passwd"));
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_exit(), 0);
  };
  run("auto");
  run("off");
}

// The superuser alone may read the model's file and the template, and search the folder of both. A successor reads them
// again.
TEST(OwnUser, ServesWhatOnlyTheSuperuserMayRead) {
  if (const worker::OwnUser own = worker::sandbox_support().user; !own.active)
    GTEST_SKIP() << "workers get no user of their own here: " << own.gap;
  const TemporaryFolder temporary("own-user");
  const fs::path& folder = temporary.path();
  fs::copy_file(BULKHEAD_MODEL, folder / "model.gguf");
  fs::permissions(folder / "model.gguf", fs::perms::owner_read);
  std::ofstream(folder / "chat.jinja") << "{% for m in messages %}{{ m.content }}{% endfor %}";
  fs::permissions(folder / "chat.jinja", fs::perms::owner_read);
  for (const char* namespaces : {"auto", "off"}) {
    Daemon::Options options;
    for (const std::string& setting :
         {"models.0.path=" + (folder / "model.gguf").string(), "models.0.name=m"s,
          "models.0.chat_template=" + (folder / "chat.jinja").string(), "isolation.vault=false"s,
          "isolation.namespaces="s + namespaces})
      options.arguments.insert(options.arguments.end(), {"--set", setting});
    options.computing_workers = {"m-0"};
    Daemon daemon(BULKHEADD, options);
    ASSERT_NE(daemon.wait_until_listening(), 0) << daemon.log();
    const json before = worker_of(daemon);
    struct stat process {};
    ASSERT_EQ(::stat(("/proc/" + before["pid"].dump()).c_str(), &process), 0);
    EXPECT_NE(process.st_uid, ::geteuid());
    send_signal(before["pid"].get<pid_t>(), SIGKILL);
    const json request = {{"model", "m"},
                          {"max_tokens", 3},
                          {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
    const auto answer =
        HttpClient(daemon.port()).request("POST", "/v1/chat/completions", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body << daemon.log();
    const json after = worker_of(daemon);
    EXPECT_NE(after["pid"], before["pid"]);
    EXPECT_EQ(after["last_death"], "killed by signal 9 (SIGKILL)");
    struct stat successor {};
    ASSERT_EQ(::stat(("/proc/" + after["pid"].dump()).c_str(), &successor), 0);
    EXPECT_EQ(successor.st_uid, process.st_uid);
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_exit(), 0);
  }
}

// `bulkhead doctor` says about a worker of this machine what /v1/workers then says about a real one, and what the
// kernel says.
TEST(Protections, AreReportedByTheDoctorAsTheyAre) {
  const Outcome doctor = run_shell(std::string(BULKHEAD_TOOL) + " doctor");
  const std::size_t begins = doctor.out.find("\nWorkers' sandbox\n");
  ASSERT_NE(begins, std::string::npos) << doctor.out;
  std::map<std::string, std::string> told;
  std::istringstream lines(doctor.out.substr(begins + 1));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  ")) {
    const std::size_t ends = line.find(' ', 2);
    told[line.substr(2, ends - 2)] =
        line.substr(std::min(line.size(), line.find_first_not_of(' ', ends)));
  }
  const long landlock =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  EXPECT_EQ(told["landlock"],
            landlock > 0 ? "version " + std::to_string(landlock) : "no: the kernel has none");

  Daemon::Options options;
  options.arguments = {"--set", "models.0.path=builtin"};
  options.computing_workers = {"builtin-0"};
  Daemon daemon(BULKHEADD, options);
  ASSERT_NE(daemon.wait_until_listening(), 0) << daemon.log();
  const json protections = worker_of(daemon)["protections"];
  EXPECT_GE(protections.size(), 10U) << protections;
  for (const json& each : protections) {
    const std::string name = each["name"], detail = each["detail"];
    ASSERT_TRUE(told.contains(name)) << name << "\n" << doctor.out;
    // The daemon's control group may differ from this process's.
    if (name == "cgroup") continue;
    EXPECT_EQ(told[name], (each["active"] == true ? "" : "no: ") + detail) << name;
  }
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait_for_exit(), 0);
}

}  // namespace
}  // namespace bulkhead::test

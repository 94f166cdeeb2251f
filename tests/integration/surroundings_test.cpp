// What surrounds the daemon and must not be able to end or stop it: signals that mean nothing to it, readers of its
// log that stop or leave, workers that misuse their stderr.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "tests/integration/daemon_script.hpp"
#include "tests/integration/serving.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

// A pipe whose reader is the test.
struct Pipe {
  UniqueFd reader, writer;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  // Nobody else can write to the pipe before something is read from it.
  void fill() const {
    const int flags = ::fcntl(writer.get(), F_GETFL);
    ::fcntl(writer.get(), F_SETFL, flags | O_NONBLOCK);
    const std::string bytes(4096, '.');
    while (::write(writer.get(), bytes.data(), bytes.size()) > 0) {
    }
    while (::write(writer.get(), ".", 1) > 0) {
    }
    ::fcntl(writer.get(), F_SETFL, flags);
  }
};

Serving serve_with_log(const Pipe& log, std::vector<std::string> settings = {}) {
  Daemon::Options options;
  options.log_fd = log.writer.get();
  return serve(std::move(settings), {}, std::move(options));
}

bool answers(const Serving& serving) {
  const HttpReply reply = serving.complete({{"prompt", "hello"}, {"max_tokens", 3}, {"seed", 1}});
  return reply.status == 200;
}

TEST(Signals, ThatMeanNothingToTheDaemonDoNotEndIt) {
  const Serving serving = serve();
  for (const int number :
       {SIGPIPE, SIGXFSZ, SIGXCPU, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR,
        SIGSTKFLT, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, SIGCHLD, SIGRTMIN, SIGRTMAX})
    serving.daemon->signal(number);
  EXPECT_TRUE(answers(serving));
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

// A person who sends SIGTERM or SIGKILL to a worker means to end it, so it is no request's fault, however
// often it happens.
TEST(Signals, ATerminatedWorkerIsNoStrikeAgainstItsRequest) {
  const Serving serving = serve({"isolation.max_strikes=1"});
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", R"({"prompt":"never","stream":true})");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Serving::eventually([&] {
      const json worker = serving.worker();
      return worker["state"] == "ready" && worker["outstanding_requests"] == 1 &&
             worker["restarts"] == i;
    }));
    send_signal(serving.worker()["pid"].get<int>(), SIGTERM);
  }
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.worker()["restarts"] == 3 && serving.worker()["outstanding_requests"] == 1;
  }));
}

TEST(Endpoints, LivenessDiffersFromReadiness) {
  const Serving serving = serve({"server.api_key=secret"});
  EXPECT_EQ(serving.get("/livez").status, 200);
  EXPECT_EQ(serving.get("/readyz").status, 200);
  EXPECT_EQ(serving.get("/metrics").status, 401);
  const json worker =
      json::parse(HttpClient(serving.port)
                      .request("GET", "/v1/workers", "", {"Authorization: Bearer secret"})
                      .body)[0];
  HttpClient(serving.port)
      .request("POST", "/v1/workers/" + worker["name"].get<std::string>() + "/drain", "",
               {"Authorization: Bearer secret"});
  EXPECT_TRUE(Serving::eventually([&] { return serving.get("/readyz").status == 503; }));
  EXPECT_EQ(serving.get("/livez").status, 200);
}

TEST(Endpoints, APageThatBindsItsNameAnewReadsNothing) {
  const Serving serving = serve();
  const auto get = [&](const char* path, const char* field) {
    return HttpClient(serving.port).request("GET", path, "", {field}).status;
  };
  for (const char* path : {"/v1/workers", "/metrics", "/v1/models"}) {
    EXPECT_EQ(get(path, "Host: evil.example"), 403) << path;
    EXPECT_EQ(get(path, "Origin: http://evil.example"), 403) << path;
    EXPECT_EQ(get(path, "Host: localhost:1234"), 200) << path;
  }
  EXPECT_EQ(get("/health", "Host: probe.internal"), 200);
}

TEST(Endpoints, ATextThatCanNeverBeTokenizedIsTooLarge) {
  const Serving serving = serve();
  const HttpReply reply = serving.post("/tokenize", R"({"prompt":"too large"})");
  EXPECT_EQ(reply.status, 413) << reply.body;
  EXPECT_EQ(reply.headers.count("retry-after"), 0U);
}

// Otherwise the log would go into whatever the daemon opens first.
TEST(Log, DescriptorsThatAreClosedAtTheStartLeadNowhere) {
  const DaemonScript script("exec " BULKHEADD " \"$@\" <&- 2>&-\n");
  Daemon::Options options;
  options.environment["BULKHEAD_WORKER"] = FAKE_WORKER;
  Daemon daemon(script.path(), options);
  EXPECT_NE(daemon.wait_until_listening(), 0);
  for (const char* number : {"0", "2"}) {
    const std::string link = "/proc/" + std::to_string(daemon.pid()) + "/fd/" + number;
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null") << number;
  }
}

TEST(Log, AReaderThatIsGoneCostsNothingButLines) {
  Pipe log;
  const Serving serving = serve_with_log(log);
  log.reader.reset();
  log.writer.reset();
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(answers(serving));
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.metric("bulkhead_log_dropped_lines_total") > 0; }));
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

TEST(Log, AReaderThatStopsHoldsUpNeitherRequestsNorTheEnd) {
  const Pipe log;
  const Serving serving = serve_with_log(log);
  log.fill();
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(answers(serving));
  serving.daemon->signal(SIGHUP);
  EXPECT_TRUE(answers(serving));
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

TEST(Log, LinesThatFoundNoRoomAreCountedAndReported) {
  const Pipe log;
  const Serving serving = serve_with_log(log);
  log.fill();
  const auto dropped = [&] { return serving.metric("bulkhead_log_dropped_lines_total"); };
  for (int i = 0; i % 500 != 0 || dropped() == 0; ++i)
    ASSERT_TRUE(answers(serving)) << i;
  EXPECT_GT(dropped(), 0);
  // A reader that comes back reads how many lines were dropped.
  std::atomic<bool> told = false;
  std::thread reader([&] {
    std::string text;
    char bytes[65536];
    while (!told) {
      const ssize_t got = ::read(log.reader.get(), bytes, sizeof bytes);
      if (got <= 0) return;
      text.append(bytes, static_cast<std::size_t>(got));
      told = text.find("of this log were dropped") != std::string::npos;
    }
  });
  EXPECT_TRUE(Serving::eventually([&] { return answers(serving) && told; }));
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  told = true;
  (void)!::write(log.writer.get(), "\n", 1);
  reader.join();
}

// Measures how late a thread that only sleeps is woken at worst: the machine's part of every stall.
class Control {
 public:
  Control()
      : thread_([this] {
          using Clock = std::chrono::steady_clock;
          while (!over_) {
            const auto before = Clock::now();
            std::this_thread::sleep_for(milliseconds(1));
            const std::chrono::duration<double> late = Clock::now() - before - milliseconds(1);
            worst_ = std::max(worst_, late.count());
          }
        }) {}
  ~Control() { worst_seconds(); }
  double worst_seconds() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return worst_;
  }

 private:
  std::atomic<bool> over_ = false;
  double worst_ = 0;
  std::thread thread_;
};

TEST(Loop, IsHeldUpByNeitherLogNorDiskNorSettings) {
  const TemporaryFolder temporary("stall");
  const std::filesystem::path& folder = temporary.path();
  const std::string file = (folder / "config.yaml").string();
  std::ofstream(file) << "isolation: {journal_path: " << (folder / "journal").string() << "}\n";
  const Pipe log;
  Daemon::Options options;
  options.arguments = {"--config", file};
  options.log_fd = log.writer.get();
  const Serving serving = serve({}, {}, std::move(options));
  Control control;
  log.fill();
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  serving.daemon->signal(SIGHUP);
  rlimit limit{100, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(serving.daemon->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(answers(serving));
    serving.complete({{"prompt", "x"}, {"max_tokens", 3}, {"stream", true}, {"resumable", true}});
  }
  EXPECT_EQ(serving.metric("bulkhead_journal_disk_written"), 0);
  const double stall = serving.metric("bulkhead_loop_longest_stall_seconds");
  EXPECT_GT(stall, 0);
  // An overloaded machine delays both threads.
  EXPECT_LT(stall, 0.05 + 10 * control.worst_seconds());
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

// Bodies with as many values as allowed, which take a parser longest, beside small requests.
TEST(Loop, IsNotHeldUpByTheParserOfLargeBodies) {
  const Serving serving = serve();
  std::string body = R"({"prompt": "x", "max_tokens": 2, "nobodys": [1)";
  for (int i = 1; i < 1000000; ++i)
    body += ",           1";  // 13 MB
  body += "]}";
  const auto ask = [&] {
    return HttpClient(serving.port).request("POST", "/v1/completions", body);
  };
  ASSERT_EQ(ask().status, 200);
  // The parser's values count, in addition to the body and what is made of it.
  EXPECT_GT(serving.metric("bulkhead_http_memory_most_bytes"),
            3.0 * static_cast<double>(body.size()));
  HttpClient gone(serving.port);
  ASSERT_TRUE(gone.send("POST", "/v1/completions", body));
  gone.hang_up();
  Control control;
  std::vector<std::thread> clients;
  std::atomic<int> answered = 0;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      EXPECT_EQ(ask().status, 200);
      ++answered;
    });
  }
  while (answered < 3)
    ASSERT_TRUE(answers(serving));
  for (std::thread& each : clients)
    each.join();
  const double stall = serving.metric("bulkhead_loop_longest_stall_seconds");
  EXPECT_LT(stall, 0.05 + 10 * control.worst_seconds());
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.metric("bulkhead_http_memory_bytes") == 0; }));
  const HttpReply broken =
      HttpClient(serving.port).request("POST", "/v1/completions", body.substr(0, body.size() - 1));
  EXPECT_EQ(broken.status, 400) << "it lacks its end";
  EXPECT_NE(broken.body.find("not valid JSON"), std::string::npos) << broken.body;
}

// hung_mount.cpp plays the mount, of the model's file or of the cache folder.
TEST(Loop, IsNotHeldUpByAMountThatHangsWhenAWorkerStarts) {
  for (const bool of_model : {true, false}) {
    SCOPED_TRACE(of_model ? "of the model" : "of the cache");
    const TemporaryFolder temporary("mount");
    const std::filesystem::path& folder = temporary.path();
    std::filesystem::create_directory(folder / "cache");
    std::filesystem::create_directory(folder / "model");
    const std::filesystem::path mount = folder / (of_model ? "model" : "cache");
    std::ofstream(folder / "model" / "m.gguf") << "a model that the scripted worker does not read";
    const Serving serving =
        serve({"models.0.path=" + (folder / "model" / "m.gguf").string(), "models.0.name=m"},
              {{"LD_PRELOAD", HUNG_MOUNT_LIBRARY},
               {"HUNG_MOUNT", mount.string()},
               {"XDG_CACHE_HOME", (folder / "cache").string()}});
    ASSERT_TRUE(answers(serving)) << serving.daemon->log();
    const json first = serving.worker();

    std::ofstream(mount / "hangs") << "now";
    send_signal(first["pid"].get<pid_t>(), SIGKILL);
    // Its successor can't start, and everything else continues.
    const auto end = std::chrono::steady_clock::now() + milliseconds(of_model ? 6500 : 1500);
    while (std::chrono::steady_clock::now() < end) {
      ASSERT_EQ(serving.get("/livez").status, 200);
      ASSERT_EQ(serving.get("/metrics").status, 200);
      std::this_thread::sleep_for(milliseconds(100));
    }
    EXPECT_NE(serving.worker()["state"], "ready");
    if (of_model) {
      EXPECT_TRUE(serving.daemon->says("it may be on a network mount that hangs"))
          << serving.daemon->log();
    }
    std::filesystem::remove(mount / "hangs");
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["state"] == "ready"; }));
    EXPECT_NE(serving.worker()["pid"], first["pid"]);
    EXPECT_TRUE(answers(serving));
    serving.daemon->signal(SIGTERM);
    EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  }
}

// aborted_connection.cpp ends the connection.
TEST(Loop, IsNotHeldUpByAConnectionThatEndsBeforeItIsAccepted) {
  const TemporaryFolder folder("aborted");
  const std::filesystem::path mark = folder.path() / "abort";
  const Serving serving =
      serve({}, {{"LD_PRELOAD", ABORTED_CONNECTION_LIBRARY}, {"ABORTS_CONNECTION", mark.string()}});
  HttpClient kept(serving.port);
  ASSERT_EQ(kept.request("GET", "/livez").status, 200);
  std::ofstream(mark) << "now";
  const HttpClient aborted(serving.port);
  EXPECT_TRUE(Serving::eventually([&] { return !std::filesystem::exists(mark); }));
  EXPECT_EQ(kept.request("GET", "/livez").status, 200);
  EXPECT_EQ(serving.get("/livez").status, 200);
}

TEST(WorkersLog, IsPrefixedAndCleaned) {
  const Serving serving = serve();
  const std::string name = serving.worker()["name"];
  ASSERT_EQ(serving.complete({{"prompt", "scribble"}, {"max_tokens", 1}}).status, 200);
  EXPECT_TRUE(serving.daemon->says(name + "| 2026-01-01T00:00:00.000Z bulkheadd[1] info: all is"));
  const std::string log = serving.daemon->log();
  EXPECT_THAT(log, HasSubstr(name + "| look: \\x1b]0;title\\x07\\x1b[31mred \\x9b2J \\xff\\x0d\n"));
  EXPECT_THAT(log, Not(HasSubstr("\x1b")));
}

TEST(WorkersLog, CanNotBeUsedAgainstTheDaemon) {
  for (const char* act : {"flood", "endless", "truncate"}) {
    SCOPED_TRACE(act);
    const Serving serving = serve();
    ASSERT_EQ(serving.complete({{"prompt", act}, {"max_tokens", 1}}).status, 200);
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_TRUE(answers(serving));
    EXPECT_EQ(serving.worker()["restarts"], 0);
    EXPECT_LT(serving.daemon->log().size(), std::size_t{3} << 20);
  }
}

TEST(WorkersLog, AFloodIsCountedAndReported) {
  const Serving serving = serve();
  ASSERT_EQ(serving.complete({{"prompt", "flood"}, {"max_tokens", 1}}).status, 200);
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.metric("bulkhead_worker_log_dropped_lines_total") > 1000; }));
  EXPECT_TRUE(serving.daemon->says("it writes too much"));
}

// Any user of the machine may read the command line.
// The daemon with a scripted worker, and with the real process that asks NVIDIA's driver, which a library plays.
class NvidiaDriver : public testing::Test {
 protected:
  NvidiaDriver() {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/worker")
        << "#!/bin/sh\nif [ \"$1\" = --watch-nvidia ]; then exec '" BULKHEAD_WORKER_PROGRAM
           "' \"$@\"; fi\n"
        << "exec '" FAKE_WORKER "' \"$@\"\n";
    ::chmod((folder_ + "/worker").c_str(), 0700);
    behave("well");
  }
  ~NvidiaDriver() override { std::filesystem::remove_all(folder_); }

  void behave(const std::string& how) const {
    std::ofstream(folder_ + "/new") << how << "\n";
    std::filesystem::rename(folder_ + "/new", folder_ + "/behaviour");
  }
  Serving serve_with_driver() const {
    return serve({"server.nvml_library=" FAKE_NVML_LIBRARY},
                 {{"BULKHEAD_WORKER", folder_ + "/worker"}, {"FAKE_NVML", folder_ + "/behaviour"}});
  }
  // Returns how many processes ask this test's driver.
  int processes() const {
    int found = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      std::ifstream command(entry.path() / "cmdline"), environment(entry.path() / "environ");
      const std::string words{std::istreambuf_iterator<char>(command), {}};
      const std::string values{std::istreambuf_iterator<char>(environment), {}};
      found += words.find("--watch-nvidia") != std::string::npos &&
               values.find(folder_) != std::string::npos;
    }
    return found;
  }
  static constexpr const char* kMemory = "bulkhead_device_memory_bytes{device=\"0000:01:00.0\"}";

  const std::string folder_ = testing::TempDir() + "nvidia-" + std::to_string(::getpid());
};

TEST_F(NvidiaDriver, ThatHangsHoldsUpNeitherRequestsNorFiguresNorTheEnd) {
  const Serving serving = serve_with_driver();
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric(kMemory) == 4000; }));
  EXPECT_EQ(serving.metric("bulkhead_device_throttled{device=\"0000:01:00.0\"}"), 1);
  EXPECT_EQ(processes(), 1);
  behave("hang");
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_device_watch_up") == 0; }));
  EXPECT_EQ(serving.metric(kMemory), -1);
  EXPECT_TRUE(answers(serving));
  EXPECT_THAT(serving.daemon->log(), HasSubstr("the driver may hang"));
  EXPECT_LE(processes(), 1);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  EXPECT_EQ(processes(), 0);
}

TEST_F(NvidiaDriver, LeavesNoProcessAfterADaemonThatIsKilled) {
  const Serving serving = serve_with_driver();
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric(kMemory) == 4000; }));
  behave("hang");
  (void)serving.get("/metrics");
  serving.daemon->signal(SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] { return processes() == 0; }));
}

TEST(CommandLine, ShowsNoApiKey) {
  const Serving serving =
      serve({"server.api_key=open-sesame", "server.keys=alice sesame-1,bob sesame-2 streams=3"});
  std::ifstream file("/proc/" + std::to_string(serving.daemon->pid()) + "/cmdline");
  const std::string line(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(line, HasSubstr("server.api_key=***"));
  EXPECT_THAT(line, HasSubstr("server.keys=***"));
  EXPECT_THAT(line, Not(HasSubstr("sesame")));
  EXPECT_EQ(serving.get("/v1/workers").status, 401);
  EXPECT_EQ(HttpClient(serving.port)
                .request("GET", "/v1/workers", "", {"Authorization: Bearer open-sesame"})
                .status,
            200);
}

}  // namespace
}  // namespace bulkhead::test

// Replicas of one model on several devices: which device each worker gets, and which worker each request gets. The
// scripted worker opens no device.
#include "tests/integration/tool.hpp"
#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

std::vector<std::string> devices_of(const Serving& serving) {
  std::vector<std::string> devices;
  for (const json& worker : workers(serving))
    devices.push_back(worker["device_asked"]);
  return devices;
}

using Devices = std::vector<std::string>;

TEST(Devices, EachGetsItsWorkers) {
  const Serving serving = serve({"models.0.devices=[0, 3]", "models.0.workers=2"});
  EXPECT_EQ(devices_of(serving), (Devices{"0", "3", "0", "3"}));
  // The daemon listens once the first worker is ready.
  for (const json& worker : workers(serving))
    EXPECT_GT(pid_in(serving, worker["name"], "ready"), 0) << worker["name"];
  const pid_t pid = pid_in(serving, "builtin-1", "ready");
  std::ifstream stream("/proc/" + std::to_string(pid) + "/cmdline");
  std::string line;
  std::getline(stream, line);
  EXPECT_NE(line.find("--device\0"
                      "3"s),
            std::string::npos);
  EXPECT_NE(tool(serving, "workers").out.find("none (3)"), std::string::npos);
  // The worker's next process is on the same device.
  send_signal(pid, SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = find(serving, "builtin-1");
    return worker["state"] == "ready" && worker["pid"] != pid;
  }));
  EXPECT_EQ(find(serving, "builtin-1")["device_asked"], "3");
}

TEST(Devices, ChangeWithAReloadAndNoStreamIsLost) {
  const std::string file = testing::TempDir() + "devices-" + std::to_string(::getpid()) + ".yaml";
  const auto write = [&](const std::string& devices) {
    std::ofstream(file) << "models:\n  - path: builtin\n    devices: " << devices << "\n";
  };
  write("[0, 1]");
  Daemon::Options options;
  options.arguments = {"--config", file};
  const Serving serving = serve({}, {}, options);
  HttpClient stream(serving.port);
  stream.send("POST", "/v1/completions", stream_of("slow", 100).dump());
  EXPECT_EQ(stream.receive_head().status, 200);
  write("[1, 2, 2]");
  serving.daemon->signal(SIGHUP);
  expect_whole(rest_of(stream), 100);
  EXPECT_TRUE(Serving::eventually([&] {
    Devices devices = devices_of(serving);
    std::ranges::sort(devices);
    return devices == Devices{"1", "2", "2"};
  })) << workers(serving);
  ::unlink(file.c_str());
}

// Devices of different kinds compute different tokens. So a stream continues on the kind with which it began,
// although another worker is free.
TEST(Devices, AStreamWaitsForAWorkerOfItsKind) {
  const Serving serving = serve({"models.0.devices=[0, 1]"}, {{"FAKE_NUMERICS_BY_DEVICE", "1"}});
  pid_in(serving, "builtin-0", "ready");
  pid_in(serving, "builtin-1", "ready");
  expect_whole(serving.complete(stream_of("kill@5", 20)).body, 20);
  EXPECT_EQ(find(serving, "builtin-0")["recovered_requests"], 1) << workers(serving);
}

// A stream ends with an error that says why, if no worker will ever be able to continue it.
TEST(Devices, AStreamThatNoWorkerOfItsKindComesForEnds) {
  const Serving serving = serve({"models.0.devices=[0, 1]"}, {{"FAKE_NUMERICS_BY_PID", "1"}});
  pid_in(serving, "builtin-0", "ready");
  pid_in(serving, "builtin-1", "ready");
  const Events events = events_of(serving.complete(stream_of("kill@5", 20)).body);
  EXPECT_FALSE(events.done);
  EXPECT_EQ(events.chunks.back()["error"]["code"], "worker_crashed");
}

TEST(Devices, EachLosesAWorkerWhenThereAreToBeFewer) {
  const std::string file = testing::TempDir() + "fewer-" + std::to_string(::getpid()) + ".yaml";
  const auto write = [&](const char* count) {
    std::ofstream(file) << "models:\n  - {path: builtin, devices: [0, 1], workers: " << count
                        << "}\n";
  };
  write("2");
  Daemon::Options options;
  options.arguments = {"--config", file};
  const Serving serving = serve({}, {}, options);
  // The workers of one device do not serve; one of them stays nevertheless.
  for (const char* name : {"builtin-0", "builtin-2"}) {
    pid_in(serving, name, "ready");
    EXPECT_EQ(serving.post(std::string("/v1/workers/") + name + "/drain", "").status, 202);
    pid_in(serving, name, "drained");
  }
  write("1");
  serving.daemon->signal(SIGHUP);
  EXPECT_TRUE(Serving::eventually([&] { return workers(serving).size() == 2; }));
  EXPECT_EQ(devices_of(serving), (Devices{"0", "1"})) << workers(serving);
  ::unlink(file.c_str());
}

// Two prompts that begin differently go to one worker each. When both workers are idle, a prompt that begins as
// the second one goes to the second worker, although the first is idle, too.
TEST(Devices, APromptGoesWhereItsBeginningWasRead) {
  const Serving serving = serve({"models.0.devices=[0, 1]"});
  pid_in(serving, "builtin-0", "ready");  // the daemon listens once the first worker is ready
  pid_in(serving, "builtin-1", "ready");
  const std::string first(2000, 'a'), second(2000, 'b');
  const auto tokens_of = [&](const char* worker) {
    return find(serving, worker)["ipc"]["tokens_received"].get<int>();
  };
  HttpClient waiting(serving.port);
  waiting.send("POST", "/v1/completions", stream_of(first + "never", 3).dump());
  EXPECT_EQ(waiting.receive_head().status, 200);
  EXPECT_EQ(serving.complete({{"prompt", second + " one"}, {"max_tokens", 5}}).status, 200);
  EXPECT_EQ(tokens_of("builtin-1"), 5);
  waiting = HttpClient(serving.port);  // the old client hangs up
  EXPECT_TRUE(
      Serving::eventually([&] { return find(serving, "builtin-0")["outstanding_requests"] == 0; }));
  EXPECT_EQ(serving.complete({{"prompt", second + " two"}, {"max_tokens", 7}}).status, 200);
  EXPECT_EQ(tokens_of("builtin-1"), 12);
  EXPECT_EQ(tokens_of("builtin-0"), 0);
}

TEST(Devices, WhatMakesNoSenseIsRefusedByName) {
  const auto check = [](const std::string& arguments) {
    return run_shell(BULKHEAD_TOOL " check " + arguments);
  };
  for (const auto& [given, why] : std::map<std::string, std::string>{
           {"--set 'models.0.devices=[0, all]'", "all beside other devices"},
           {"--set 'models.0.devices=[auto]'", "takes no auto"},
           {"--set models.0.split=layers", "name at least two in `devices`"},
           {"--set models.0.split=layers --set 'models.0.devices=[0]'", "name at least two"},
           {"--set 'models.0.devices=[0,1]' --set models.0.device=0", "beside `device`"},
           {"--set 'models.0.devices=[0,1]' --set models.0.workers=40", "80 workers"}}) {
    const Outcome refused = check(given);
    EXPECT_EQ(refused.code, 1) << given;
    EXPECT_NE(refused.out.find(why), std::string::npos) << refused.out;
  }
  EXPECT_EQ(check("--set models.0.devices=all").code, 0);
  EXPECT_EQ(check("--set models.0.split=layers --set 'models.0.devices=[0, 0]'").code, 0);
}

}  // namespace
}  // namespace bulkhead::test

// Replicas with the real worker. The tests' machine has one device, Mesa's, so the settings list it
// twice.
#include <unistd.h>

#include <fstream>

#include "tests/integration/model_serving.hpp"
#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

const json kAsk = {{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}};

// Begins a stream, kills the process, and returns what the stream's client got.
std::string text_over_a_kill(const Serving& serving, json ask, pid_t pid) {
  ask["stream"] = true;
  HttpClient stream(serving.port);
  stream.send("POST", "/v1/completions", ask.dump());
  EXPECT_EQ(stream.receive_head().status, 200);
  send_signal(pid, SIGKILL);
  const Events events = events_of(rest_of(stream));
  EXPECT_TRUE(events.done);
  return text_of(events);
}

TEST(Replicas, OfOneDeviceGiveTheSameTokens) {
  const Serving serving = serve_model("", {"models.0.devices=[0, 0]"}, {}, {}, {"builtin-1"});
  ASSERT_EQ(workers(serving).size(), 2U);
  const std::string text = complete(serving, kAsk).text;
  for (const char* name : {"builtin-0", "builtin-1"})
    pid_in(serving, name, "ready");
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/drain", "").status, 202);
  pid_in(serving, "builtin-0", "drained");
  EXPECT_EQ(complete(serving, kAsk).text, text);
}

TEST(Replicas, GoOnWithTheStreamsOfOneThatIsKilled) {
  const Serving serving = serve_model("", {"models.0.devices=[0, 0]"}, {}, {}, {"builtin-1"});
  json ask = kAsk;
  ask["max_tokens"] = 100;
  const std::string text = complete(serving, ask).text;
  pid_in(serving, "builtin-1", "ready");
  const pid_t pid = pid_in(serving, "builtin-0", "ready");
  EXPECT_EQ(text_over_a_kill(serving, ask, pid), text);
}

TEST(Replicas, OnADeviceThatIsNotThereTheOthersServe) {
  const Serving serving = serve_model("", {"models.0.devices=[0, 77]"});
  EXPECT_EQ(complete(serving, kAsk).status, 200);
  EXPECT_TRUE(Serving::eventually([&] { return find(serving, "builtin-1")["state"] == "failed"; }));
  const std::string why = find(serving, "builtin-1")["last_death"];
  EXPECT_NE(why.find("device '77': no such device"), std::string::npos) << why;
}

TEST(Replicas, AreOnAllDevices) {
  const Serving serving = serve_model("", {"models.0.devices=all"});
  const json all = workers(serving);
  ASSERT_GE(all.size(), 1U);
  EXPECT_EQ(all[0]["device_asked"], "0");
}

// One worker computes some layers with each device; the tokens are those of a worker with one device, also where the
// process is killed and a successor goes on.
TEST(SplitModel, GivesTheTokensOfTheWholeOneAndSurvivesAKill) {
  json ask = kAsk;
  ask["max_tokens"] = 60;
  const std::string text = complete(serve_model(""), ask).text;
  for (const char* const vault : {"true", "false"}) {
    const Serving serving = serve_model("", {"models.0.devices=[0, 0]", "models.0.split=layers",
                                             std::string("isolation.vault=") + vault});
    ASSERT_EQ(workers(serving).size(), 1U);
    EXPECT_EQ(find(serving, "builtin-0")["device_asked"], "0,0");
    EXPECT_EQ(complete(serving, ask).text, text);
    const pid_t pid = pid_in(serving, "builtin-0", "ready");
    EXPECT_EQ(text_over_a_kill(serving, ask, pid), text) << "vault " << vault;
    const json vault_state = find(serving, "builtin-0")["vault"];
    EXPECT_EQ(vault_state["state"] == "imported", std::string(vault) == "true") << vault_state;
  }
}

// Returns the value of a line of /proc/PID/status.
std::string status_of(pid_t pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return line.substr(line.rfind('\t') + 1);
  }
  return "";
}

TEST(Cores, AreThoseThatTheModelNames) {
  const std::string ours = status_of(::getpid(), "Cpus_allowed_list");
  const std::string first = ours.substr(0, ours.find_first_of(",-"));
  // Core 1023 does not exist, and the worker leaves it out.
  const Serving serving = serve_model("", {"models.0.cores=[" + first + ", 1023]"});
  EXPECT_EQ(status_of(pid_in(serving, "builtin-0", "ready"), "Cpus_allowed_list"), first);
}

}  // namespace
}  // namespace bulkhead::test

// Models that are loaded and unloaded while the daemon runs: at first use, by request, beside a start and new settings,
// and from the command line.
#include <fstream>
#include <map>
#include <thread>

#include "tests/integration/run_time_models.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

TEST_F(RunTimeModels, AModelLoadsAtItsFirstUseAndItsRequestWaits) {
  const Serving serving = serve(models({"one", "two"}), {{"FAKE_LOAD_MS", "300"}});
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(state(serving, "one"), "unloaded");
  for (const json& worker : workers(serving)) {
    EXPECT_EQ(worker["state"], "unloaded");
    EXPECT_TRUE(worker["pid"].is_null());
  }
  const HttpReply reply = serving.complete(ask("one"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(state(serving, "one"), "loaded");
  EXPECT_EQ(state(serving, "two"), "unloaded");
  EXPECT_EQ(serving.metric("bulkhead_model_loads_total"), 1);
  EXPECT_EQ(serving.get("/health").status, 200);
}

TEST_F(RunTimeModels, ARequestWaitsForALoadNoLongerThanItsDeadline) {
  const Serving serving =
      serve(models({"one"}, {"server.request_timeout_s=1"}), {{"FAKE_LOAD_MS", "5000"}});
  EXPECT_EQ(serving.complete(ask("one")).status, 504);
}

TEST_F(RunTimeModels, AModelThatCanNotBeLoadedFailsItsRequestsAlone) {
  std::ofstream(folder_ / "broken.gguf") << "broken";
  const Serving serving = serve(models({"one", "broken"}));
  const HttpReply reply = serving.complete(ask("broken"));
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_EQ(state(serving, "broken"), "failed");
  EXPECT_EQ(serving.complete(ask("one")).status, 200);
  EXPECT_EQ(serving.get("/health").status, 200);
  // After the repair, the model is loaded when a client asks for it.
  make("broken.gguf");
  EXPECT_EQ(act(serving, "load", "broken").status, 202);
  EXPECT_TRUE(comes_to(serving, "broken", "loaded"));
  EXPECT_EQ(serving.complete(ask("broken")).status, 200);
}

// What keeps /health from 200 is its reason, and not a model that does not count.
TEST_F(RunTimeModels, AFailedModelThatIsLoadedOnDemandIsNoReasonForHealth) {
  std::ofstream(folder_ / "broken.gguf") << "broken";
  const Serving serving = serve(models({"one", "broken"}, {"models.0.load=start"}));
  EXPECT_EQ(serving.complete(ask("broken")).status, 503);
  EXPECT_EQ(serving.post("/v1/workers/one-0/drain", "").status, 202);
  EXPECT_TRUE(Serving::eventually([&] { return serving.get("/health").status == 503; }));
  const json health = json::parse(serving.get("/health").body);
  EXPECT_EQ(health["status"], "drained") << health;
  EXPECT_NE(health.value("reason", "").find("model one "), std::string::npos) << health;
}

TEST_F(RunTimeModels, UnloadingWaitsForRequestsAndALaterOneLoadsItAgain) {
  const Serving serving = serve(models({"one", "two"}, {"models.0.load=start"}));
  auto running = stream(serving, "one", 200);
  EXPECT_EQ(running->receive_head().status, 200);
  const pid_t before = pid_in(serving, "one-0", "ready");
  const HttpReply reply = act(serving, "unload", "one");
  EXPECT_EQ(reply.status, 202) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["state"], "unloading");
  auto waiting = stream(serving, "one", 20);  // this request must not keep it from ending
  expect_whole(rest_of(*running), 200);
  EXPECT_EQ(waiting->receive_head().status, 200);
  expect_whole(rest_of(*waiting), 20);
  EXPECT_NE(pid_in(serving, "one-0", "ready"), before);

  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  EXPECT_TRUE(comes_to(serving, "one", "unloaded"));
  EXPECT_EQ(find(serving, "one-0")["state"], "unloaded");
  EXPECT_EQ(act(serving, "unload", "one").status, 202);  // nothing to do
  EXPECT_EQ(act(serving, "load", "one").status, 202);
  EXPECT_TRUE(comes_to(serving, "one", "loaded"));
  EXPECT_EQ(find(serving, "one-0")["last_death"], nullptr);
}

TEST_F(RunTimeModels, WhileOthersStreamChangesNoTokenOfTheirs) {
  const Serving serving = serve(models({"one", "two", "three"}, {"models.0.load=start"}));
  std::vector<std::unique_ptr<HttpClient>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(stream(serving, "one", 200));
    EXPECT_EQ(streams.back()->receive_head().status, 200);
  }
  for (int round = 0; round < 2; ++round) {
    for (const char* model : {"two", "three"}) {
      EXPECT_EQ(act(serving, "load", model).status, 202);
      EXPECT_TRUE(comes_to(serving, model, "loaded"));
      EXPECT_EQ(act(serving, "unload", model).status, 202);
      EXPECT_TRUE(comes_to(serving, model, "unloaded"));
    }
  }
  for (auto& client : streams)
    expect_whole(rest_of(*client), 200);
}

TEST_F(RunTimeModels, AWorkerThatIsKilledWhileItsModelIsUnloadedCostsNoRequest) {
  const Serving serving = serve(models({"one"}, {"models.0.load=start"}));
  auto running = stream(serving, "one", 200);
  EXPECT_EQ(running->receive_head().status, 200);
  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  send_signal(find(serving, "one-0")["pid"].get<pid_t>(), SIGKILL);
  expect_whole(rest_of(*running), 200);
  EXPECT_TRUE(comes_to(serving, "one", "unloaded"));
}

// A restart that comes while the worker's process ends loads the model again.
TEST_F(RunTimeModels, LoadsAndUnloadsAreCountedInPairs) {
  const Serving serving = serve(models(
      {"one"}, {"isolation.heartbeat_timeout_ms=600000", "isolation.exit_timeout_ms=600000"}));
  EXPECT_EQ(act(serving, "load", "one").status, 202);
  EXPECT_TRUE(comes_to(serving, "one", "loaded"));
  const pid_t process = pid_in(serving, "one-0", "ready");
  send_signal(process, SIGSTOP);  // it does not end yet
  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  EXPECT_TRUE(comes_to(serving, "one", "unloading"));
  EXPECT_TRUE(Serving::eventually([&] { return find(serving, "one-0")["state"] == "drained"; }));
  EXPECT_EQ(serving.post("/v1/workers/one-0/restart", "").status, 202);
  send_signal(process, SIGCONT);
  EXPECT_TRUE(comes_to(serving, "one", "loaded"));
  EXPECT_EQ(serving.metric("bulkhead_model_loads_total"), 2);
  EXPECT_EQ(serving.metric("bulkhead_model_unloads_total"), 1);
  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  EXPECT_TRUE(comes_to(serving, "one", "unloaded"));
  EXPECT_EQ(serving.metric("bulkhead_model_unloads_total"), 2);
}

TEST_F(RunTimeModels, OllamasClientsSeeWhatIsLoadedAndAskForIt) {
  const Serving serving = serve(models({"one", "two"}));
  const auto listed = [&](const char* path) {
    std::map<std::string, json> found;
    const json body = json::parse(serving.get(path).body);
    for (const json& model : body["models"])
      found[model["name"]] = model;
    return found;
  };
  const auto ask_for = [&](const char* path, json body) {
    body["model"] = "one";
    const HttpReply reply = serving.post(path, body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  };
  EXPECT_TRUE(listed("/api/ps").empty());
  auto tags = listed("/api/tags");
  ASSERT_EQ(tags.size(), 2U);
  EXPECT_EQ(tags["one"]["size"], 40 << 20);
  EXPECT_EQ(tags["one"]["details"]["family"], "");
  EXPECT_EQ(ask_for("/api/show", {})["capabilities"], json{"completion"});
  EXPECT_EQ(state(serving, "one"), "unloaded");  // a look at its state loads nothing

  EXPECT_EQ(ask_for("/api/generate", {})["done_reason"], "load");
  EXPECT_TRUE(comes_to(serving, "one", "loaded"));
  auto running = listed("/api/ps");
  ASSERT_EQ(running.size(), 1U);
  EXPECT_EQ(running["one"]["details"]["family"], "fake");
  EXPECT_GT(running["one"]["context_length"], 0);

  EXPECT_EQ(ask_for("/api/chat", {{"keep_alive", 0}})["done_reason"], "unload");
  EXPECT_TRUE(comes_to(serving, "one", "unloaded"));
  EXPECT_TRUE(listed("/api/ps").empty());
  EXPECT_EQ(listed("/api/tags")["one"]["details"]["family"], "fake");
  EXPECT_EQ(ask_for("/api/show", {})["capabilities"], (json{"completion", "tools"}));
}

TEST_F(RunTimeModels, AModelThatIsUnloadedAtTheStartIsNotWaitedFor) {
  Serving serving;
  serving.port = free_port();
  Daemon::Options options;
  options.environment = {{"BULKHEAD_WORKER", FAKE_WORKER}, {"FAKE_LOAD_MS", "600000"}};
  for (const std::string& setting :
       models({"one"}, {"models.0.load=start", "server.port=" + std::to_string(serving.port)}))
    options.arguments.insert(options.arguments.end(), {"--set", setting});
  serving.daemon = std::make_unique<Daemon>(BULKHEADD, options);
  ASSERT_TRUE(Serving::eventually([&] { return HttpClient(serving.port).connected(); }));
  EXPECT_TRUE(comes_to(serving, "one", "loading"));
  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  EXPECT_EQ(serving.daemon->wait_until_listening(), serving.port);
  EXPECT_EQ(serving.get("/health").status, 200);
}

TEST_F(RunTimeModels, NewSettingsForgetNoLoadOrUnload) {
  const auto write = [this](int context, bool more, int budget = 0) {
    std::ofstream file(folder_ / "config.yaml");
    file << "server: {device_memory_mb: " << budget << "}\nmodels:\n";
    for (const char* name : {"one", "two"}) {
      if (more || name == std::string("one"))
        file << "  - {name: " << name << ", path: " << (folder_ / name).string()
             << ".gguf, context: " << context << "}\n";
    }
  };
  write(1024, false);
  Daemon::Options options;
  options.arguments = {"--config", (folder_ / "config.yaml").string()};
  const Serving serving = serve({}, {}, options);
  ASSERT_TRUE(comes_to(serving, "one", "loaded"));
  auto running = never_ending(serving, "one");
  EXPECT_EQ(act(serving, "unload", "one").status, 202);
  write(2048, true);
  serving.daemon->signal(SIGHUP);
  ASSERT_TRUE(comes_to(serving, "two", "loaded"));
  EXPECT_EQ(serving.metric("bulkhead_model_loads_total"), 2);
  running.reset();
  EXPECT_TRUE(Serving::eventually([&] { return find(serving, "one-0")["state"] == "unloaded"; }));
  EXPECT_EQ(state(serving, "one"), "unloaded");
  EXPECT_EQ(serving.post("/v1/workers/one-0/restart", "").status, 409);
  EXPECT_EQ(serving.complete(ask("one")).status, 200);

  // A model that outgrows a bound stays known while it is loaded; once unloaded, it is refused.
  EXPECT_EQ(act(serving, "unload", "two").status, 202);
  ASSERT_TRUE(comes_to(serving, "two", "unloaded"));
  write(2048, true, 30);
  serving.daemon->signal(SIGHUP);
  EXPECT_TRUE(Serving::eventually([&] {
    if (act(serving, "load", "two").status == 409) return true;
    act(serving, "unload", "two");  // the daemon has not read the new settings yet
    return false;
  }));
  EXPECT_EQ(act(serving, "load", "one").status, 202);
}

TEST_F(RunTimeModels, TheCommandThatUnloadsDoesNotWaitForRequestsThatLoadItAgain) {
  const Serving serving = serve(models({"one"}, {"models.0.load=start"}));
  ASSERT_TRUE(comes_to(serving, "one", "loaded"));
  auto running = never_ending(serving, "one");
  const std::string out = (folder_ / "out").string();
  const std::string url = "http://127.0.0.1:" + std::to_string(serving.port);
  std::thread command([&] {
    const std::string words =
        "timeout 20 " BULKHEAD_TOOL " models unload one --url " + url + " > " + out;
    EXPECT_EQ(WEXITSTATUS(std::system(words.c_str())), 0);
  });
  EXPECT_TRUE(comes_to(serving, "one", "unloading"));
  HttpClient again(serving.port);
  again.send("POST", "/v1/completions", ask("one", "never").dump());
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.metric("bulkhead_requests_waiting") == 1; }));
  running.reset();
  command.join();
  std::ifstream file(out);
  const std::string said(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(said, "one: was loaded again by a request\n");
}

TEST_F(RunTimeModels, OnlyOwnPagesAndHoldersOfTheKeyMayLoad) {
  const Serving serving = serve(models({"one"}, {"server.api_key=secret"}));
  const std::string body = json{{"model", "one"}}.dump();
  EXPECT_EQ(serving.post("/v1/models/load", body).status, 401);
  EXPECT_EQ(serving.post("/v1/models/unload", body).status, 401);
  EXPECT_EQ(serving
                .post("/v1/models/load", body,
                      {"Authorization: Bearer secret", "Origin: https://elsewhere.example"})
                .status,
            403);
  EXPECT_EQ(serving.post("/v1/models/load", body, {"Authorization: Bearer secret"}).status, 202);
}

}  // namespace
}  // namespace bulkhead::test

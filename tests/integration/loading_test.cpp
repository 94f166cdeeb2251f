// Models that are loaded and unloaded while the daemon runs: at first use, by request, and within a bound on memory.
// The scripted worker takes as much memory as its model's file is long.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/integration/watching.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

class RunTimeModels : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/bulkhead-loading-XXXXXX";
    folder_ = ::mkdtemp(name);
    for (const char* model : {"one.gguf", "two.gguf", "three.gguf"})
      make(model);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A sparse file of 40 MiB.
  void make(const std::string& file) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << "the scripted worker does not read it";
    std::filesystem::resize_file(folder_ / file, std::uintmax_t{40} << 20);
  }
  // Settings for `names`, each loaded at its first use.
  std::vector<std::string> models(const std::vector<std::string>& names,
                                  std::vector<std::string> more = {}) const {
    std::vector<std::string> settings;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string entry = "models." + std::to_string(i);
      settings.push_back(entry + ".name=" + names[i]);
      settings.push_back(entry + ".path=" + (folder_ / (names[i] + ".gguf")).string());
      settings.push_back(entry + ".load=first_use");
    }
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  static json ask(const std::string& model, const std::string& prompt = "x", int tokens = 3) {
    return {{"model", model}, {"prompt", prompt}, {"max_tokens", tokens}, {"seed", 9}};
  }
  static std::string state(const Serving& serving, const std::string& model) {
    return json::parse(serving.get("/v1/models/" + model).body).value("state", "unknown");
  }
  static bool comes_to(const Serving& serving, const std::string& model,
                       const std::string& wanted) {
    return Serving::eventually([&] { return state(serving, model) == wanted; });
  }
  static HttpReply act(const Serving& serving, const std::string& action,
                       const std::string& model) {
    return serving.post("/v1/models/" + action, json{{"model", model}}.dump());
  }
  static std::unique_ptr<HttpClient> stream(const Serving& serving, const std::string& model,
                                            int tokens) {
    auto client = std::make_unique<HttpClient>(serving.port);
    json request = stream_of("slow", tokens);
    request["model"] = model;
    client->send("POST", "/v1/completions", request.dump());
    return client;
  }

  // Starts a request that the model's worker has until its client leaves.
  static std::unique_ptr<HttpClient> never_ending(const Serving& serving,
                                                  const std::string& model) {
    auto client = std::make_unique<HttpClient>(serving.port);
    json request = stream_of("never", 3);
    request["model"] = model;
    client->send("POST", "/v1/completions", request.dump());
    EXPECT_EQ(client->receive_head().status, 200);  // the worker has accepted it
    return client;
  }

  std::filesystem::path folder_;
};

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
  // After the repair, it is loaded when somebody asks for that.
  make("broken.gguf");
  EXPECT_EQ(act(serving, "load", "broken").status, 202);
  EXPECT_TRUE(comes_to(serving, "broken", "loaded"));
  EXPECT_EQ(serving.complete(ask("broken")).status, 200);
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

// ---- a bound on memory ----

TEST_F(RunTimeModels, ABudgetForTwoOfThreeServesAllOfThem) {
  const std::vector<std::string> names = {"one", "two", "three"};
  const Serving serving = serve(models(names, {"server.device_memory_mb=100"}));
  std::atomic<int> failures{0};
  std::vector<std::thread> clients;
  for (unsigned seed = 0; seed < 4; ++seed) {
    clients.emplace_back([&, seed] {
      std::minstd_rand random(seed + 1);
      for (int i = 0; i < 75; ++i) {  // 300 requests in all
        const HttpReply reply = serving.complete(ask(names[random() % 3]));
        if (reply.status == 200) continue;
        ++failures;
        ADD_FAILURE() << reply.status << " " << reply.body;
      }
    });
  }
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    while (!over) {
      const json all = workers(serving);
      const auto running =
          std::ranges::count_if(all, [](const json& worker) { return !worker["pid"].is_null(); });
      EXPECT_LE(running, 2) << all;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  for (std::thread& client : clients)
    client.join();
  over = true;
  watcher.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(serving.metric("bulkhead_model_unloads_total"), 0);
}

TEST_F(RunTimeModels, NoModelIsUnloadedUnderItsRequests) {
  const Serving serving = serve(models({"one", "two"}, {"server.device_memory_mb=50"}));
  auto running = stream(serving, "one", 300);
  EXPECT_EQ(running->receive_head().status, 200);
  auto other = stream(serving, "two", 3);  // this waits, but the running request does not wait for it
  expect_whole(rest_of(*running), 300);
  EXPECT_EQ(other->receive_head().status, 200);
  expect_whole(rest_of(*other), 3);
  EXPECT_EQ(find(serving, "one-0")["state"], "unloaded");
  EXPECT_EQ(find(serving, "one-0")["last_death"], nullptr);
}

TEST_F(RunTimeModels, ModelsThatAreWantedAtOnceTakeTurns) {
  const Serving serving = serve(models({"one", "two"}, {"server.device_memory_mb=50"}));
  std::vector<std::thread> clients;
  std::atomic<bool> over{false};
  std::atomic<int> answers[2] = {0, 0};
  const auto began = std::chrono::steady_clock::now();
  for (const std::size_t model : {0U, 0U, 1U, 1U}) {
    clients.emplace_back([&, model] {
      while (!over) {
        EXPECT_EQ(serving.complete(ask(model == 0 ? "one" : "two")).status, 200);
        ++answers[model];
      }
    });
  }
  EXPECT_TRUE(Serving::eventually([&] { return answers[0] > 200 && answers[1] > 200; }));
  const double loads = serving.metric("bulkhead_model_loads_total");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  over = true;
  for (std::thread& client : clients)
    client.join();
  // Each turn serves all requests that come during it, however many they are, and lasts at least 0.2 s.
  EXPECT_LE(loads, took.count() / 0.2 + 2);
}

TEST_F(RunTimeModels, AModelThatCanNeverFitIsRefused) {
  const Serving serving = serve(models({"one"}, {"server.device_memory_mb=30"}));
  const HttpReply reply = serving.complete(ask("one"));
  EXPECT_EQ(reply.status, 409);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "model_too_large");
  EXPECT_NE(reply.body.find("server.device_memory_mb"), std::string::npos) << reply.body;
  EXPECT_EQ(act(serving, "load", "one").status, 409);
  EXPECT_EQ(serving.get("/health").status, 200);
}

std::size_t tries_without_room(const Serving& serving) {
  const std::string log = serving.daemon->log();
  std::size_t count = 0;
  for (std::size_t at = 0; (at = log.find("is not tried again now", at)) != std::string::npos; ++at)
    ++count;
  return count;
}

TEST_F(RunTimeModels, AFailedModelIsTriedAgainOnlyWhenThereIsRoom) {
  for (const std::string trigger : {"by itself", "load", "restart"}) {
    SCOPED_TRACE(trigger);
    std::ofstream(folder_ / "broken.gguf") << "broken\n";
    std::filesystem::resize_file(folder_ / "broken.gguf", std::uintmax_t{40} << 20);
    const std::string after_s = trigger == "by itself" ? "1" : "0";
    const Serving serving = serve(models(
        {"one", "broken"}, {"server.device_memory_mb=50", "isolation.retry_failed_s=" + after_s}));
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    EXPECT_TRUE(comes_to(serving, "broken", "failed"));
    auto running = never_ending(serving, "one");
    make("broken.gguf");
    if (trigger != "by itself") {
      const HttpReply reply = trigger == "load" ? act(serving, "load", "broken")
                                                : serving.post("/v1/workers/broken-0/restart", "");
      EXPECT_EQ(reply.status, 202) << reply.body;
    }
    if (trigger == "by itself") {
      // The model may fail again, so the daemon unloads no idle model for it.
      running.reset();
      EXPECT_TRUE(
          Serving::eventually([&] { return find(serving, "one-0")["outstanding_requests"] == 0; }));
      const std::size_t before = tries_without_room(serving);
      EXPECT_TRUE(Serving::eventually([&] { return tries_without_room(serving) > before; }));
      EXPECT_EQ(state(serving, "one"), "loaded");
      EXPECT_EQ(state(serving, "broken"), "failed");
      EXPECT_EQ(act(serving, "unload", "one").status, 202);
    } else {
      EXPECT_TRUE(comes_to(serving, "broken", "waiting"));
      EXPECT_TRUE(find(serving, "broken-0")["pid"].is_null());
      running.reset();
    }
    EXPECT_TRUE(comes_to(serving, "broken", "loaded"));
    EXPECT_EQ(state(serving, "one"), "unloaded");
  }
}

// A file may still be being copied when a client asks for the model.
TEST_F(RunTimeModels, AFailedModelIsLoadedOnceItsFileHasChanged) {
  for (const char* bound : {"server.device_memory_mb=50", "server.device_memory_mb=0"}) {
    SCOPED_TRACE(bound);
    std::ofstream(folder_ / "broken.gguf") << "broken\n";
    const Serving serving = serve(models({"one", "broken"}, {bound, "isolation.retry_failed_s=0"}));
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    EXPECT_EQ(serving.complete(ask("one")).status, 200);
    const auto tries = [&] { return find(serving, "broken-0")["restarts"].get<int>(); };
    const int before = tries();
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(tries(), before) << "the file has not changed";
    EXPECT_EQ(state(serving, "one"), "loaded");
    make("broken.gguf");
    EXPECT_TRUE(Serving::eventually([&] { return serving.complete(ask("broken")).status == 200; }))
        << serving.daemon->log();
  }
}

TEST_F(RunTimeModels, SparesCountInTheBudget) {
  const Serving serving =
      serve(models({"one", "two"}, {"server.device_memory_mb=100", "isolation.standby=1"}));
  EXPECT_EQ(serving.complete(ask("one")).status, 200);
  EXPECT_EQ(serving.complete(ask("two")).status, 200);
  EXPECT_EQ(state(serving, "one"), "unloaded");
  const Serving smaller =
      serve(models({"one"}, {"server.device_memory_mb=50", "isolation.standby=1"}));
  const HttpReply refused = act(smaller, "load", "one");
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("The 1 worker(s) of the model one and their spares take about "),
            std::string::npos)
      << refused.body;
}

// ---- beside a start, new settings, the command line ----

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

// ---- a folder of models ----

TEST_F(RunTimeModels, AFolderIsListedAndItsModelsLoadAtFirstUse) {
  make("deep/four-00001-of-00002.gguf");
  make("deep/four-00002-of-00002.gguf");
  make("mmproj-one.gguf");
  make("not-\xff-utf8.gguf");
  std::ofstream(folder_ / "notes.txt") << "no model";
  const Serving serving =
      serve({"server.models_folder=" + folder_.string(), "models.0.name=first",
             "models.0.path=" + (folder_ / "one.gguf").string(), "models.0.aliases=gpt-4o,Erste"});
  EXPECT_NE(serving.daemon->log().find("utf8.gguf is left out"), std::string::npos)
      << serving.daemon->log();
  std::vector<std::string> ids;
  const json listed = json::parse(serving.get("/v1/models").body);
  for (const json& model : listed["data"])
    ids.push_back(model["id"]);
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<std::string>{"first", "four", "three", "two"}));
  for (const char* name : {"two", "four", "GPT-4o", "erste", "first"})
    EXPECT_EQ(serving.complete(ask(name)).status, 200) << name;
  EXPECT_EQ(serving.complete(ask("unheard-of")).status, 404);

  // A file that was added later is found by its name in the folder or its path; files outside the folder are not.
  make("deep/new.gguf");
  make("deep/two.gguf");
  make("late.1.gguf");
  EXPECT_EQ(serving.complete(ask("new")).status, 404);
  EXPECT_EQ(json::parse(act(serving, "load", "deep/new.gguf").body)["id"], "new");
  EXPECT_EQ(json::parse(act(serving, "load", "late.1").body)["id"], "late.1");
  EXPECT_EQ(serving.complete(ask("new")).status, 200);
  const HttpReply same_name = act(serving, "load", (folder_ / "deep/two.gguf").string());
  EXPECT_EQ(same_name.status, 202);
  EXPECT_EQ(json::parse(same_name.body)["id"], "deep/two.gguf");
  for (const std::string& elsewhere : {"../one.gguf"s, "/etc/passwd"s, "/tmp/x.gguf"s, "deep"s,
                                       "notes.txt"s, "notes.txt\0.gguf"s, ""s})
    EXPECT_GE(act(serving, "load", elsewhere).status, 400) << elsewhere;
  const HttpReply none = act(serving, "load", "none");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(
      none.body.find("'none' does not exist; " + (folder_ / "none.gguf").string() + " is no file"),
      std::string::npos)
      << none.body;
  EXPECT_EQ(serving.post("/v1/models/load", "[1]").status, 400);
  EXPECT_EQ(serving.post("/v1/models/load", R"({"model": 3})").status, 400);
}

TEST_F(RunTimeModels, OfAFolderAThousandModelsAreServed) {
  for (int i = 3; i < 1000; ++i)
    std::filesystem::create_hard_link(folder_ / "one.gguf",
                                      folder_ / (std::to_string(i) + ".gguf"));
  const std::string setting = "server.models_folder=" + folder_.string();
  const auto models_of = [&](const Serving& serving) {
    return json::parse(serving.get("/v1/models").body)["data"].size();
  };
  const Serving all = serve({setting});
  EXPECT_EQ(models_of(all), 1000U);
  EXPECT_EQ(all.daemon->log().find("are left out"), std::string::npos) << all.daemon->log();
  make("more.gguf");
  const Serving most = serve({setting});
  EXPECT_EQ(models_of(most), 1000U);
  EXPECT_NE(most.daemon->log().find("are left out"), std::string::npos) << most.daemon->log();
}

TEST_F(RunTimeModels, AFolderMayBeGivenInAnyForm) {
  const std::filesystem::path form = folder_ / "deep" / ".." / ".." / folder_.filename();
  make("deep/one.gguf");
  const Serving serving =
      serve({"server.models_folder=" + form.string(), "models.0.name=first",
             "models.0.path=" + (form / "one.gguf").string(), "models.0.aliases=new"});
  const std::size_t listed = json::parse(serving.get("/v1/models").body)["data"].size();
  EXPECT_EQ(listed, 4U);
  // Files that are already served, and one whose name is also another model's.
  EXPECT_EQ(json::parse(act(serving, "load", "one.gguf").body)["id"], "first");
  EXPECT_EQ(json::parse(act(serving, "load", "two.gguf").body)["id"], "two");
  EXPECT_EQ(json::parse(act(serving, "load", (folder_ / "two.gguf").string()).body)["id"], "two");
  EXPECT_EQ(json::parse(serving.get("/v1/models").body)["data"].size(), listed);
  make("deep/new.gguf");
  EXPECT_EQ(json::parse(act(serving, "load", "deep/new.gguf").body)["id"], "deep/new.gguf");
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

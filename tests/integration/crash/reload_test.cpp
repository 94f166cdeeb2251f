// New settings and new workers while streams run: SIGHUP, and restarts by request. No stream is lost, and none
// changes its model on the way.
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/integration/resumable.hpp"
#include "tests/integration/watching.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

// A daemon with a configuration file, and the folder that has this file and its models.
class Reload : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const char* model : {"one.gguf", "two.gguf", "three.gguf", "four.gguf", "other.gguf"})
      std::ofstream(folder_ / model) << "the scripted worker does not read it";
  }

  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  std::string model(const std::string& name, const std::string& file, int workers = 1) const {
    return "  - {name: " + name + ", path: " + path(file) +
           ", workers: " + std::to_string(workers) + "}\n";
  }
  void write(const std::string& models, const std::string& rest = "") const {
    std::ofstream(path("config.yaml")) << "models:\n" << models << rest;
  }
  Serving start(const std::string& models, const std::string& rest = "",
                std::map<std::string, std::string> environment = {}) const {
    write(models, rest);
    Daemon::Options options;
    options.arguments = {"--config", path("config.yaml"), "--set",
                         std::string("ipc.transport=") + GetParam()};
    options.environment = std::move(environment);
    options.environment["BULKHEAD_WORKER"] = FAKE_WORKER;
    Serving serving;
    serving.daemon = std::make_unique<Daemon>(BULKHEADD, options);
    serving.port = serving.daemon->wait_until_listening();
    EXPECT_NE(serving.port, 0) << serving.daemon->log();
    return serving;
  }
  // Sends SIGHUP and waits until the log has the words.
  static void reload(const Serving& serving, const std::string& words) {
    const std::size_t before = serving.daemon->log().size();
    serving.daemon->signal(SIGHUP);
    ASSERT_TRUE(Serving::eventually([&] {
      return serving.daemon->log().find(words, before) != std::string::npos;
    })) << words
        << "\n"
        << serving.daemon->log();
  }
  static json ask(const std::string& model, const std::string& prompt, int tokens) {
    json request = stream_of(prompt, tokens);
    request["model"] = model;
    return request;
  }
  static std::vector<std::unique_ptr<HttpClient>> streams(const Serving& serving,
                                                          const std::string& model, int count,
                                                          int tokens) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<HttpClient>(serving.port));
      clients.back()->send("POST", "/v1/completions", ask(model, "slow", tokens).dump());
    }
    for (auto& client : clients)
      EXPECT_EQ(client->receive_head().status, 200);
    return clients;
  }
  // Says whether a new answer of the model is the other model's.
  static bool answers_as_other(const Serving& serving, const std::string& model) {
    const HttpReply reply = serving.complete(ask(model, "x", 3));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.body.find(" o1") != std::string::npos;
  }

  const TemporaryFolder temporary_{"reload"};
  const std::filesystem::path& folder_ = temporary_.path();
};
INSTANTIATE_TEST_SUITE_P(Transport, Reload, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Reload, AddsRemovesAndChangesModelsUnderStreams) {
  const Serving serving =
      start(model("one", "one.gguf", 2) + model("two", "two.gguf") + model("three", "three.gguf"));
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "one-1")["state"] == "ready"; }));
  const pid_t unchanged = pid_in(serving, "three-0", "ready");
  const pid_t removed = pid_in(serving, "two-0", "ready");
  auto changed_streams = streams(serving, "one", 6, 300);
  auto removed_streams = streams(serving, "two", 3, 300);
  auto unchanged_streams = streams(serving, "three", 3, 300);

  write(model("one", "other.gguf", 2) + model("three", "three.gguf") + model("four", "four.gguf"));
  reload(serving, "models whose workers are replaced: one");
  EXPECT_TRUE(serving.daemon->says("models added: four"));
  EXPECT_TRUE(serving.daemon->says("models removed, each ends with its last request: two"));
  // For new requests, the removed model is unknown at once, the added one becomes available, and the changed one
  // always answers.
  EXPECT_EQ(serving.complete(ask("two", "x", 3)).status, 404);
  EXPECT_EQ(serving.get("/v1/models/two").status, 404);
  ASSERT_TRUE(
      Serving::eventually([&] { return serving.complete(ask("four", "x", 3)).status == 200; }));
  int early = 0;
  while (!answers_as_other(serving, "one") && ++early < 10000) {
  }
  for (auto& client : changed_streams)
    expect_whole(rest_of(*client), 300);
  for (auto& client : removed_streams)
    expect_whole(rest_of(*client), 300);
  for (auto& client : unchanged_streams)
    expect_whole(rest_of(*client), 300);

  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "two-0").is_null(); }));
  EXPECT_NE(send_signal(removed, 0), 0);
  EXPECT_EQ(pid_in(serving, "three-0", "ready"), unchanged);
  ASSERT_TRUE(Serving::eventually([&] {
    return find(serving, "one-0")["state"] == "ready" && find(serving, "one-1")["state"] == "ready";
  }));
  EXPECT_EQ(find(serving, "one-0")["restarts"], 1);
  EXPECT_EQ(find(serving, "one-1")["restarts"], 1);
  for (int i = 0; i < 8; ++i)
    EXPECT_TRUE(answers_as_other(serving, "one"));
  EXPECT_EQ(workers(serving).size(), 4U);
  EXPECT_EQ(serving.get("/health").status, 200);
}

TEST_P(Reload, AModelIsNotFailedWhileThePredecessorsOfAFailedReplacementServe) {
  // Three starts succeed; all later processes die while they load.
  const Serving serving = start(model("one", "one.gguf", 2) + model("two", "two.gguf"), "",
                                {{"FAKE_COUNTER_FILE", path("starts")}, {"FAKE_DIE_AFTER", "3"}});
  for (const char* name : {"one-0", "one-1", "two-0"})
    pid_in(serving, name, "ready");
  write(model("one", "other.gguf", 2) + model("two", "two.gguf"));
  reload(serving, "models whose workers are replaced: one");
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "one-0")["state"] == "failed"; }));
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_FALSE(answers_as_other(serving, "one"));
  // The model that is not ready now is a different one, and the daemon still tries it.
  send_signal(pid_in(serving, "two-0", "ready"), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "two-0")["restarts"] >= 1; }));
  const HttpReply health = serving.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body)["status"], "loading") << health.body;
}

TEST_P(Reload, AWorkerThatDiesWhileItIsReplacedComesBackAsWhatItWas) {
  const Serving serving = start(model("one", "one.gguf", 2));
  pid_in(serving, "one-1", "ready");
  auto clients = streams(serving, "one", 8, 300);
  write(model("one", "other.gguf", 2));
  reload(serving, "models whose workers are replaced: one");
  // The first worker is draining; each of the two dies once, with streams of the old model.
  for (const char* name : {"one-0", "one-1"}) {
    const pid_t victim = find(serving, name)["pid"].get<pid_t>();
    send_signal(victim, SIGKILL);
    ASSERT_TRUE(Serving::eventually([&] { return find(serving, name)["restarts"] >= 1; }));
  }
  auto new_ones = streams(serving, "one", 4, 20);
  for (auto& client : clients)
    expect_whole(rest_of(*client), 300);
  for (auto& client : new_ones)
    EXPECT_TRUE(events_of(rest_of(*client)).done);
  ASSERT_TRUE(Serving::eventually([&] { return answers_as_other(serving, "one"); }));
  ASSERT_TRUE(Serving::eventually([&] {
    return find(serving, "one-0")["state"] == "ready" && find(serving, "one-1")["state"] == "ready";
  }));
  for (int i = 0; i < 8; ++i)
    EXPECT_TRUE(answers_as_other(serving, "one"));
}

TEST_P(Reload, ABadFileIsRefusedWithItsErrorAndChangesNothing) {
  const Serving serving = start(model("one", "one.gguf"));
  const pid_t pid = pid_in(serving, "one-0", "ready");
  auto clients = streams(serving, "one", 3, 200);
  write(model("one", "other.gguf"), "isolation: {standbye: 1}\n");
  reload(serving, "reload refused");
  EXPECT_TRUE(serving.daemon->says("isolation.standby")) << serving.daemon->log();
  write(model("one", "nowhere.gguf"));
  reload(serving, "reload refused");
  EXPECT_TRUE(serving.daemon->says("nowhere.gguf"));
  std::filesystem::remove(folder_ / "config.yaml");
  reload(serving, "reload refused");
  for (auto& client : clients)
    expect_whole(rest_of(*client), 200);
  EXPECT_EQ(pid_in(serving, "one-0", "ready"), pid);
  // The next valid file is accepted.
  write(model("one", "other.gguf"));
  reload(serving, "models whose workers are replaced: one");
  ASSERT_TRUE(Serving::eventually([&] { return answers_as_other(serving, "one"); }));
}

TEST_P(Reload, WhatWouldTakeAwayAllModelsOrTheKeyUnaskedIsRefused) {
  const std::string server = "server: {api_key: secret}\n";
  const Serving serving = start(model("one", "one.gguf"), server);
  const std::string good = "models:\n" + model("one", "one.gguf") + server;
  struct Bad {
    std::string text;
    const char* words;
  };
  const std::string file = path("config.yaml");
  for (const Bad& bad :
       {Bad{"", "the file is empty"}, Bad{"\n \n", "the file is empty"},
        Bad{server, "it names no models, and 1 are served"},
        Bad{"models:\n" + server, "it names no models"},
        Bad{"models:\n" + model("one", "one.gguf"), "it has no server.api_key"},
        Bad{good.substr(0, good.size() - 1), "cut off"}, Bad{good.substr(0, 30), "reload refused"},
        Bad{good + "server: {}\n", "given twice"}}) {
    SCOPED_TRACE(bad.text);
    std::ofstream(file, std::ios::trunc) << bad.text;
    const std::size_t before = serving.daemon->log().size();
    reload(serving, "reload refused");
    EXPECT_TRUE(serving.daemon->says(bad.words, before)) << serving.daemon->log().substr(before);
    EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 401);
    EXPECT_EQ(
        serving.post("/v1/completions", ask("one", "x", 3).dump(), {"Authorization: Bearer secret"})
            .status,
        200);
  }
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  reload(serving, "reload refused");
  std::filesystem::remove(file);
  // The daemon does what the settings explicitly ask for.
  std::ofstream(file) << "models: [{path: builtin}]\nserver: {api_key: \"\"}\n";
  reload(serving, "models added: builtin");
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.complete({{"prompt", "x"}, {"max_tokens", 2}}).status == 200;
  }));
}

TEST_P(Reload, AModelThatCanNotBeLoadedKeepsNoOtherFromItsClients) {
  std::ofstream(path("broken.gguf")) << "broken";
  const Serving serving = start(model("bad", "broken.gguf") + model("one", "one.gguf"),
                                "isolation: {retry_failed_s: 1}\n");
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
  const HttpReply refused = serving.complete(ask("bad", "x", 3));
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_EQ(json::parse(serving.get("/health").body)["status"], "failed");
  EXPECT_TRUE(serving.daemon->says("serving without what can't be loaded"));
  // The daemon tries it again by itself, and serves it once that is possible.
  std::ofstream(path("broken.gguf")) << "mended";
  EXPECT_TRUE(
      Serving::eventually([&] { return serving.complete(ask("bad", "x", 3)).status == 200; }));
  EXPECT_EQ(serving.get("/health").status, 200);
  // A reload that adds a model that can't be loaded ends no worker either.
  std::ofstream(path("broken-2.gguf")) << "broken";
  write(model("one", "one.gguf") + model("worse", "broken-2.gguf"));
  reload(serving, "models added: worse");
  ASSERT_TRUE(Serving::eventually([&] { return find(serving, "worse-0")["state"] == "failed"; }));
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
}

TEST_P(Reload, AFileThatNobodyWritesHoldsUpNobody) {
  const Serving serving = start(model("one", "one.gguf"));
  const std::string file = path("config.yaml");
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const std::size_t before = serving.daemon->log().size();
  serving.daemon->signal(SIGHUP);
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
  // A valid file in its place is accepted, whatever happens to the first one.
  std::filesystem::remove(file);
  write(model("one", "other.gguf"));
  reload(serving, "models whose workers are replaced: one");
  ASSERT_TRUE(Serving::eventually([&] { return answers_as_other(serving, "one"); }));
  EXPECT_EQ(serving.daemon->log().find("reload refused", before), std::string::npos);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

TEST_P(Reload, SettingsTakeEffectOrAreNamed) {
  const Serving serving = start(model("one", "one.gguf"), "server: {max_queue: 2}\n");
  const pid_t pid = pid_in(serving, "one-0", "ready");
  auto clients = streams(serving, "one", 2, 300);
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 429);
  write(model("one", "one.gguf", 2),
        "server: {max_queue: 9, host: 127.0.0.2, api_key: secret}\n"
        "ipc: {ring_kib: 2048}\nisolation: {standby: 1}\nlog: {level: debug}\n");
  reload(serving, "only in effect when the daemon is started again");
  const std::string log = serving.daemon->log();
  EXPECT_NE(log.find("started again: server.host, ipc.ring_kib"), std::string::npos) << log;
  EXPECT_NE(log.find("server.max_queue, isolation.standby, log.level"), std::string::npos) << log;
  EXPECT_EQ(log.find("secret"), std::string::npos);
  const std::vector<std::string> key = {"Authorization: Bearer secret"};
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 401);
  EXPECT_EQ(serving.post("/v1/completions", ask("one", "x", 3).dump(), key).status, 200);
  // Each model gets a second worker and a spare; the first worker continues unchanged.
  ASSERT_TRUE(Serving::eventually([&] {
    const json all =
        json::parse(HttpClient(serving.port).request("GET", "/v1/workers", "", key).body);
    int spares = 0, ready = 0;
    for (const json& each : all) {
      spares += each["state"] == "standby" ? 1 : 0;
      ready += each["state"] == "ready" ? 1 : 0;
    }
    return spares == 2 && ready == 2 && all.size() == 4 && all[0]["pid"] == pid;
  }));
  for (auto& client : clients)
    expect_whole(rest_of(*client), 300);
  // With the old settings again, the additional workers end.
  write(model("one", "one.gguf"), "isolation: {standby: 0}\nserver: {api_key: \"\"}\n");
  reload(serving, "models with another number of workers: one");
  ASSERT_TRUE(Serving::eventually([&] { return workers(serving).size() == 1; }));
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
  reload(serving, "nothing has changed");
  // The log also names a model's settings that change without new workers.
  write("  - {name: one, path: " + path("one.gguf") + ", aliases: [uno], reasoning_budget: 5}\n",
        "isolation: {standby: 0}\nserver: {api_key: \"\"}\n");
  reload(serving, "in effect now: one's aliases, one's reasoning_budget");
  EXPECT_EQ(serving.complete(ask("uno", "x", 3)).status, 200);
}

TEST_P(Reload, NoStreamGoesOnWithAnotherPartOfASplitModel) {
  std::ofstream(path("m-00001-of-00002.gguf")) << "one";
  const std::filesystem::path second = path("m-00002-of-00002.gguf");
  std::ofstream(second) << "two";
  const Serving serving = start(model("one", "m-00001-of-00002.gguf"));
  auto clients = streams(serving, "one", 1, 90000);
  clients[0]->receive_chunk();  // only a stream that has a token needs the old file
  const auto time = std::filesystem::last_write_time(second);
  std::ofstream(second, std::ios::trunc) << "TWO";
  std::filesystem::last_write_time(second, time);
  send_signal(pid_in(serving, "one-0", "ready"), SIGKILL);
  EXPECT_NE(rest_of(*clients[0]).find("its model file has changed"), std::string::npos);
}

TEST_P(Reload, AnotherFileUnderTheSameNameIsAnotherModel) {
  const Serving serving = start(model("one", "one.gguf"));
  const pid_t before = pid_in(serving, "one-0", "ready");
  std::ofstream(path("one.gguf")) << "another file";
  reload(serving, "models whose workers are replaced: one");
  ASSERT_TRUE(Serving::eventually([&] {
    const json worker = find(serving, "one-0");
    return worker["state"] == "ready" && worker["pid"] != before;
  }));
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
}

TEST_P(Reload, AStreamDoesNotGoOnWithAnotherFileAfterADeath) {
  const Serving serving = start(model("one", "one.gguf"));
  const pid_t before = pid_in(serving, "one-0", "ready");
  auto clients = streams(serving, "one", 2, 300);
  for (auto& client : clients)
    client->receive_chunk();
  std::ofstream(path("one.gguf")) << "another file";  // nobody told the daemon about the new file
  send_signal(before, SIGKILL);
  for (auto& client : clients) {
    const Events events = events_of(rest_of(*client));
    EXPECT_FALSE(events.done);
    ASSERT_FALSE(events.chunks.empty());
    const json& error = events.chunks.back()["error"];
    EXPECT_EQ(error["code"], "worker_crashed") << error;
    EXPECT_NE(error["message"].get<std::string>().find("model file has changed"), std::string::npos);
  }
  EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);  // a successor with the new file answers
}

TEST_P(Reload, ManyOfThemLeakNothing) {
  const Serving serving = start(model("one", "one.gguf"));
  const auto holdings = [&] {
    std::size_t descriptors = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(
             "/proc/" + std::to_string(serving.daemon->pid()) + "/fd"))
      ++descriptors;
    return descriptors;
  };
  const auto once = [&](int round) {
    write(model("one", round % 2 == 0 ? "other.gguf" : "one.gguf") +
          model("extra-" + std::to_string(round % 3), "two.gguf"));
    reload(serving, "models whose workers are replaced: one");
    EXPECT_EQ(serving.complete(ask("one", "x", 3)).status, 200);
    ASSERT_TRUE(Serving::eventually([&] {
      const json all = workers(serving);
      return all.size() == 2 && all[0]["state"] == "ready" && all[1]["state"] == "ready";
    })) << workers(serving);
  };
  once(0);
  ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") == 1; }));
  const std::size_t before = holdings();
  for (int round = 1; round < 12; ++round)
    once(round);
  EXPECT_TRUE(Serving::eventually([&] { return holdings() <= before; }))
      << before << " descriptors before, now " << holdings();
}

// ---- restarts by request ----

struct Way {
  const char* transport;
  bool journal;
};
class RestartUnderLoad : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, RestartUnderLoad,
                         testing::Values(Way{"shm", false}, Way{"shm", true}, Way{"stdio", false},
                                         Way{"stdio", true}),
                         [](const auto& test) {
                           return std::string(test.param.transport) +
                                  (test.param.journal ? "_journal" : "_memory");
                         });

TEST_P(RestartUnderLoad, LosesNothingAndRefusesNobody) {
  const TemporaryFolder temporary("restart");
  const std::filesystem::path& folder = temporary.path();
  std::vector<std::string> settings = {std::string("ipc.transport=") + GetParam().transport,
                                       "models.0.path=builtin", "models.0.workers=2"};
  if (GetParam().journal)
    settings.push_back("isolation.journal_path=" + (folder / "journal").string());
  {
    const Serving serving = serve(settings);
    // A worker that is restarted while it loads has died.
    for (const char* worker : {"builtin-0", "builtin-1"})
      pid_in(serving, worker, "ready");
    std::vector<std::unique_ptr<HttpClient>> clients;
    std::vector<ResumableClient> resumable(6);
    for (int i = 0; i < 12; ++i) {
      clients.push_back(std::make_unique<HttpClient>(serving.port));
      json request = stream_of("slow", 200);
      if (i < 6) {
        request["resumable"] = true;
        resumable[static_cast<std::size_t>(i)].begin(*clients.back(), "/v1/completions", request);
      } else {
        clients.back()->send("POST", "/v1/completions", request.dump());
        ASSERT_EQ(clients.back()->receive_head().status, 200);
      }
    }
    for (const char* worker : {"builtin-0", "builtin-1", "builtin-0"}) {
      const auto before = find(serving, worker)["restarts"].get<int>();
      EXPECT_EQ(serving.post(std::string("/v1/workers/") + worker + "/restart", "").status, 202);
      EXPECT_EQ(serving.complete(stream_of("x", 2)).status, 200);
      ASSERT_TRUE(Serving::eventually([&] {
        const json now = find(serving, worker);
        return now["restarts"] == before + 1 && now["state"] == "ready";
      }));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      SCOPED_TRACE(i);
      if (i >= 6) {
        expect_whole(rest_of(*clients[i]), 200);
        continue;
      }
      resumable[i].read_to_end(*clients[i]);
      EXPECT_TRUE(resumable[i].complete);
      expect_whole(resumable[i].body(), 200);
    }
    EXPECT_TRUE(find(serving, "builtin-0")["last_death"].is_null())
        << workers(serving) << serving.daemon->log();
  }
}

}  // namespace
}  // namespace bulkhead::test

// Answers of several requests (choices, inputs to embed) whose model is replaced or removed before all of these have
// gone to a worker. The model that has begun an answer computes all of it.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/watching.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

// The scripted worker computes one request at a time, and gets one more to prepare. Requests with the order hold@0 wait
// in it as long as there is the file `gate`.
class ReloadedAnswers : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* model : {"one.gguf", "other.gguf", "beside.gguf"})
      std::ofstream(folder_ / model) << "the scripted worker does not read it";
    std::ofstream(path("gate")) << "closed";
  }

  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  // Writes a configuration in which the model `a` has this file; without a file there is no such model.
  void configure(const std::string& file, int workers = 1) const {
    std::ofstream config(path("config.yaml"));
    config << "models:\n  - {name: beside, path: " << path("beside.gguf") << "}\n";
    if (file.empty()) return;
    config << "  - {name: a, path: " << path(file) << ", workers: " << workers << "}\n";
  }
  Serving start(int workers = 1) const {
    configure("one.gguf", workers);
    Daemon::Options options;
    options.arguments = {"--config", path("config.yaml")};
    Serving serving = serve({"server.api_key=operator", "server.keys=alice alice-secret",
                             "engine.max_batch=1", "server.request_timeout_s=60"},
                            {{"FAKE_HOLD", path("gate")}}, options);
    for (int i = 0; i < workers; ++i)
      EXPECT_TRUE(Serving::eventually([&] { return state_of(serving, i) == "ready"; }));
    return serving;
  }
  void reload(const Serving& serving, const std::string& file, int workers = 1) const {
    configure(file, workers);
    const std::size_t before = serving.daemon->log().size();
    serving.daemon->signal(SIGHUP);
    ASSERT_TRUE(serving.daemon->says(file.empty()
                                         ? "models removed, each ends with its last request: a"
                                         : "models whose workers are replaced: a",
                                     before));
  }
  void open() const { ::unlink(path("gate").c_str()); }

  static json as_operator(const Serving& serving, const std::string& what) {
    return json::parse(
        HttpClient(serving.port).request("GET", what, "", {"Authorization: Bearer operator"}).body);
  }
  static json worker_of_a(const Serving& serving, int index = 0) {
    for (const json& worker : as_operator(serving, "/v1/workers")) {
      if (worker["name"] == "a-" + std::to_string(index)) return worker;
    }
    return {{"state", "gone"}, {"outstanding_requests", 0}, {"pid", 0}};
  }
  static std::string state_of(const Serving& serving, int index = 0) {
    return worker_of_a(serving, index)["state"];
  }
  static int outstanding(const Serving& serving, int index = 0) {
    return worker_of_a(serving, index)["outstanding_requests"];
  }
  // Begins a request that can't end yet, and waits until the daemon has it.
  static std::unique_ptr<HttpClient> ask(const Serving& serving, const std::string& endpoint,
                                         const json& body) {
    const std::size_t before = as_operator(serving, "/v1/requests").size();
    auto client = std::make_unique<HttpClient>(serving.port);
    client->send("POST", endpoint, body.dump(), {"Authorization: Bearer alice-secret"});
    EXPECT_TRUE(Serving::eventually(
        [&] { return as_operator(serving, "/v1/requests").size() == before + 1; }));
    return client;
  }
  static json choices_of(int n, const std::string& prompt) {
    return {{"model", "a"}, {"prompt", prompt}, {"n", n}, {"max_tokens", 2}};
  }
  static std::unique_ptr<HttpClient> ask_for_choices(const Serving& serving, int n,
                                                     const std::string& prompt) {
    return ask(serving, "/v1/completions", choices_of(n, prompt));
  }
  // Returns the file of the model that has computed all of the answer's choices.
  static std::string file_of(const HttpReply& reply, int n) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (reply.status != 200) return "none";
    int of_one = 0, of_other = 0;
    const json body = json::parse(reply.body);
    for (const json& choice : body["choices"]) {
      const std::string text = choice["text"];
      of_one += text.find(" t1") != std::string::npos ? 1 : 0;
      of_other += text.find(" o1") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(std::max(of_one, of_other), n) << reply.body;
    return of_one == n ? "one.gguf" : "other.gguf";
  }
  static void expect_vectors(HttpClient& client, std::size_t count) {
    const HttpReply reply = client.receive();
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["data"].size(), count);
  }
  static void expect_replaced_too_early(HttpClient& client) {
    const HttpReply reply = client.receive();
    EXPECT_EQ(reply.status, 503);
    EXPECT_NE(reply.body.find("was replaced before this answer was complete"), std::string::npos)
        << reply.body;
  }

  const TemporaryFolder temporary_{"reloaded"};
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(ReloadedAnswers, ComeFromTheModelThatHasBegunThem) {
  for (const int workers : {1, 2}) {
    SCOPED_TRACE(workers);
    std::ofstream(path("gate")) << "closed";
    const Serving serving = start(workers);
    const int choices = 2 * workers + 4;  // four more than the workers get
    const auto begun = ask_for_choices(serving, choices, "hold@0");
    ASSERT_TRUE(Serving::eventually([&] {
      return outstanding(serving) == 2 && (workers == 1 || outstanding(serving, 1) == 2);
    }));
    const auto waits = ask_for_choices(serving, 3, "x");  // no worker has begun this answer
    reload(serving, "other.gguf", workers);
    const auto later = ask_for_choices(serving, 2, "x");
    open();
    EXPECT_EQ(file_of(begun->receive(), choices), "one.gguf");
    const std::string waited = file_of(waits->receive(), 3), last = file_of(later->receive(), 2);
    // With two workers, the second one serves while the first one is replaced.
    if (workers == 1) {
      EXPECT_EQ(waited + last, "other.ggufother.gguf");
    }
    for (int i = 0; i < workers; ++i) {
      EXPECT_TRUE(Serving::eventually([&] {
        const json worker = worker_of_a(serving, i);
        return worker["state"] == "ready" && worker["restarts"] == 1;
      }));
    }
  }
}

TEST_F(ReloadedAnswers, AreFinishedThoughTheWorkerDies) {
  const Serving serving = start();
  const auto begun = ask_for_choices(serving, 6, "hold@0");
  ASSERT_TRUE(Serving::eventually([&] { return outstanding(serving) == 2; }));
  reload(serving, "other.gguf");
  send_signal(worker_of_a(serving)["pid"].get<pid_t>(), SIGKILL);
  open();
  EXPECT_EQ(file_of(begun->receive(), 6), "one.gguf");
  EXPECT_EQ(file_of(serving.post("/v1/completions", choices_of(2, "x").dump(),
                                 {"Authorization: Bearer alice-secret"}),
                    2),
            "other.gguf");
}

TEST_F(ReloadedAnswers, AreFinishedBeforeTheirModelIsRemoved) {
  const Serving serving = start();
  const auto choices = ask_for_choices(serving, 6, "hold@0");
  const auto inputs = ask(serving, "/v1/embeddings",
                          {{"model", "a"}, {"input", std::vector<std::string>(40, "hold")}});
  reload(serving, "");
  open();
  EXPECT_EQ(file_of(choices->receive(), 6), "one.gguf");
  expect_vectors(*inputs, 40);
  EXPECT_TRUE(Serving::eventually([&] { return state_of(serving) == "gone"; }));
}

// The daemon asks workers for a few of a request's inputs at a time.
TEST_F(ReloadedAnswers, AboutManyInputsAreOfOneModel) {
  const Serving serving = start();
  const auto begun = ask(serving, "/v1/embeddings",
                         {{"model", "a"}, {"input", std::vector<std::string>(40, "hold")}});
  ASSERT_TRUE(Serving::eventually([&] { return outstanding(serving) == 2; }));
  reload(serving, "other.gguf");
  const auto waits = ask_for_choices(serving, 1, "x");
  open();
  expect_vectors(*begun, 40);
  EXPECT_EQ(file_of(waits->receive(), 1), "other.gguf");
}

// If an operator ends the worker, no worker computes the rest: neither requests that wait nor requests that
// have yet to start.
TEST_F(ReloadedAnswers, FailAtOnceIfAnOperatorDrainsTheLastWorkerOfTheirModel) {
  const Serving serving = start();
  const auto choices = ask_for_choices(serving, 3, "hold@0");
  ASSERT_TRUE(Serving::eventually([&] { return outstanding(serving) == 2; }));
  const auto waits = ask_for_choices(serving, 2, "x");
  reload(serving, "other.gguf");
  EXPECT_EQ(serving.post("/v1/workers/a-0/drain", "", {"Authorization: Bearer operator"}).status,
            202);
  open();
  expect_replaced_too_early(*choices);
  EXPECT_EQ(file_of(waits->receive(), 2), "other.gguf");

  std::ofstream(path("gate")) << "closed";
  ASSERT_TRUE(Serving::eventually([&] { return state_of(serving) == "ready"; }));
  const auto inputs = ask(serving, "/v1/embeddings",
                          {{"model", "a"}, {"input", std::vector<std::string>(40, "hold")}});
  ASSERT_TRUE(Serving::eventually([&] { return outstanding(serving) == 2; }));
  reload(serving, "one.gguf");
  EXPECT_EQ(serving.post("/v1/workers/a-0/drain", "", {"Authorization: Bearer operator"}).status,
            202);
  open();
  expect_replaced_too_early(*inputs);
}

}  // namespace
}  // namespace bulkhead::test

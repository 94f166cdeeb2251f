// kill -9 at random moments of real streams: every token, text, log-probability and finish reason
// must be what an undisturbed run gives. BULKHEAD_CRASH_KILLS: how many (one for each test by default);
// BULKHEAD_CRASH_SEED: which moments.
#include <cstdio>
#include <future>
#include <random>

#include "tests/integration/crash/streams.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

using std::chrono::microseconds;

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

class ModelKills : public testing::TestWithParam<const char*> {
 protected:
  ModelKills()
      : seed_(static_cast<unsigned>(number_from("BULKHEAD_CRASH_SEED", 1))), random_(seed_) {}
  int between(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }

  void kill_at_random_moments(bool sampled, int kills) {
    const int tokens = kills > 2 ? 200 : 60;
    // A token a piece: the moments are counted in pieces.
    const Serving serving =
        serve_model("", {std::string("ipc.transport=") + GetParam(), "engine.speculation=off"});
    const pid_t daemon = serving.daemon->pid();
    const json request = request_of(sampled, tokens, "Once upon a time there was", 1234);
    const Timed undisturbed = stream(serving.port, request);
    ASSERT_EQ(undisturbed.heard.ids.size(), static_cast<std::size_t>(tokens));
    ASSERT_TRUE(undisturbed.heard.done);
    int whole = 0;
    std::vector<milliseconds> pauses;
    for (int i = 0; i < kills; ++i) {
      const pid_t victim = serving_worker(serving);
      const int pieces = between(0, tokens - 2);
      const microseconds more{between(0, pieces == 0 ? 30000 : 3000)};
      SCOPED_TRACE(fmt_moment(i, pieces, more));
      const Timed killed = stream(serving.port, request, pieces, [&] {
        std::this_thread::sleep_for(more);
        send_signal(victim, SIGKILL);
      });
      EXPECT_EQ(killed.heard, undisturbed.heard);
      EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == i + 1; }));
      whole += killed.heard == undisturbed.heard ? 1 : 0;
      pauses.push_back(killed.longest_pause);
    }
    EXPECT_EQ(serving.worker()["last_death"], "killed by signal 9 (SIGKILL)");
    EXPECT_EQ(send_signal(daemon, 0), 0);
    std::ranges::sort(pauses);
    std::printf("%s, %s: %d of %d streams whole; longest pause: median %lld ms, most %lld ms\n",
                GetParam(), sampled ? "sampled" : "greedy", whole, kills,
                static_cast<long long>(pauses[pauses.size() / 2].count()),
                static_cast<long long>(pauses.back().count()));
  }

  std::string fmt_moment(int kill, int pieces, microseconds more) const {
    return "seed " + std::to_string(seed_) + ", kill " + std::to_string(kill) + ": " +
           std::to_string(more.count()) + " us after piece " + std::to_string(pieces);
  }

  unsigned seed_;
  std::mt19937 random_;
};

INSTANTIATE_TEST_SUITE_P(Transport, ModelKills, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ModelKills, GreedyStreamIsWhole) {
  kill_at_random_moments(false, number_from("BULKHEAD_CRASH_KILLS", 1));
}

TEST_P(ModelKills, SampledStreamIsWhole) {
  kill_at_random_moments(true, number_from("BULKHEAD_CRASH_KILLS", 1));
}

// The worker guesses wherever it can and is killed in the middle; the client must get the same as without guesses. To a
// transport a guessed token is one like others, so this test and the next one have a transport each.
TEST_F(ModelKills, GuessesChangeNoStream) {
  const std::string transport = "ipc.transport=stdio";
  const std::string prompt =
      "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on";
  std::vector<Heard> plain;
  {
    const Serving serving = serve_model("", {transport, "engine.speculation=off"});
    for (const bool sampled : {false, true})
      plain.push_back(stream(serving.port, request_of(sampled, 48, prompt, 5)).heard);
  }
  const Serving serving = serve_model("", {transport, "engine.speculation=always"});
  for (const bool sampled : {false, true}) {
    const json request = request_of(sampled, 48, prompt, 5);
    EXPECT_EQ(stream(serving.port, request).heard, plain[sampled ? 1 : 0]);
  }
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.metric("bulkhead_worker_speculation_drafted_tokens_total") > 0; }));
  for (const bool sampled : {false, true}) {
    const int before = serving.worker()["restarts"].get<int>();
    const pid_t victim = serving_worker(serving);
    const Timed killed = stream(serving.port, request_of(sampled, 48, prompt, 5), 3,
                                [&] { send_signal(victim, SIGKILL); });
    EXPECT_EQ(killed.heard, plain[sampled ? 1 : 0]);
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == before + 1; }));
  }
}

// The model is its own draft model, so each guess is right, and drawn as the token is.
TEST_F(ModelKills, ADraftModelChangesNoStream) {
  const std::string transport = "ipc.transport=shm";
  std::vector<Heard> plain;
  {
    const Serving serving = serve_model("", {transport, "engine.speculation=off"});
    for (const bool sampled : {false, true})
      plain.push_back(stream(serving.port, request_of(sampled, 40, "Once there", 5)).heard);
  }
  const Serving serving =
      serve_model("", {transport, "engine.speculation=always", "models.0.draft=builtin"});
  const auto accepted = [&] {
    return serving.metric("bulkhead_worker_draft_model_accepted_tokens_total");
  };
  for (const bool sampled : {false, true}) {
    EXPECT_EQ(stream(serving.port, request_of(sampled, 40, "Once there", 5)).heard,
              plain[sampled ? 1 : 0]);
  }
  EXPECT_TRUE(Serving::eventually([&] { return accepted() > 0; }));
  for (const bool sampled : {false, true}) {
    const int before = serving.worker()["restarts"].get<int>();
    const pid_t victim = serving_worker(serving);
    const Timed killed = stream(serving.port, request_of(sampled, 40, "Once there", 5), 3,
                                [&] { send_signal(victim, SIGKILL); });
    EXPECT_EQ(killed.heard, plain[sampled ? 1 : 0]);
    EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == before + 1; }));
  }
  EXPECT_TRUE(Serving::eventually([&] { return accepted() > 0; })) << "by the successor";
}

TEST_P(ModelKills, SixteenStreamsAreWhole) {
  const int kills = number_from("BULKHEAD_CRASH_KILLS", 1);
  const int tokens = kills > 2 ? 200 : 24;
  const Serving serving = serve_model("", {std::string("ipc.transport=") + GetParam()});
  std::vector<json> requests;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(request_of(i % 2 == 1, tokens,
                                  "Story number " + std::to_string(i) + ": once there was a", i));
  }
  const auto all = [&] {
    std::vector<std::future<Timed>> running;
    for (const json& request : requests) {
      running.push_back(
          std::async(std::launch::async, [&, request] { return stream(serving.port, request); }));
    }
    return running;
  };
  std::vector<Heard> undisturbed;
  const auto begin = steady_clock::now();
  for (auto& each : all())
    undisturbed.push_back(each.get().heard);
  const auto duration_ms =
      static_cast<int>(duration_cast<milliseconds>(steady_clock::now() - begin).count());
  for (const Heard& each : undisturbed) {
    ASSERT_EQ(each.ids.size(), static_cast<std::size_t>(tokens));
    ASSERT_TRUE(each.done);
  }
  int done = 0, streams = 0, whole = 0;
  while (done < kills) {
    auto running = all();
    // Several deaths hit the same streams as long as these last.
    for (int here = between(1, 3); here > 0 && done < kills; --here, ++done) {
      std::this_thread::sleep_for(milliseconds(between(0, duration_ms / 2)));
      send_signal(serving_worker(serving), SIGKILL);
      EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == done + 1; }));
    }
    for (std::size_t i = 0; i < running.size(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed_) + ", stream " + std::to_string(i) +
                   ", after kill " + std::to_string(done));
      const Heard heard = running[i].get().heard;
      EXPECT_EQ(heard, undisturbed[i]);
      ++streams;
      whole += heard == undisturbed[i] ? 1 : 0;
    }
  }
  std::printf("%s: %d kills, %d of %d streams whole, 16 at a time\n", GetParam(), done, whole,
              streams);
}

TEST_P(ModelKills, StandbyTakesOverAndTheStreamsAreWhole) {
  const Serving serving =
      serve_model("", {std::string("ipc.transport=") + GetParam(), "isolation.standby=1"});
  const auto spare = [&] {
    pid_t pid = -1;
    EXPECT_TRUE(Serving::eventually([&] {
      const json all = json::parse(serving.get("/v1/workers").body);
      if (all.size() != 2 || all[1]["state"] != "standby") return false;
      pid = all[1]["pid"].get<pid_t>();
      return true;
    }));
    return pid;
  };
  const int kills = number_from("BULKHEAD_CRASH_KILLS", 1);
  std::vector<milliseconds> pauses;
  for (int i = 0; i < kills; ++i) {
    const json request = request_of(i % 2 == 0, 50, "The little robot", 7 + i);
    const pid_t next = spare();
    const Timed undisturbed = stream(serving.port, request);
    const pid_t victim = serving_worker(serving);
    const Timed killed =
        stream(serving.port, request, between(1, 40), [&] { send_signal(victim, SIGKILL); });
    EXPECT_EQ(killed.heard, undisturbed.heard);
    EXPECT_EQ(serving.worker()["pid"], next);
    EXPECT_EQ(serving.worker()["takeovers"], i + 1);
    EXPECT_EQ(serving.worker()["last_recovery"]["way"], "standby");
    pauses.push_back(killed.longest_pause);
  }
  std::ranges::sort(pauses);
  std::printf("%s, standby: longest pause: median %lld ms, most %lld ms\n", GetParam(),
              static_cast<long long>(pauses[pauses.size() / 2].count()),
              static_cast<long long>(pauses.back().count()));
}

TEST_P(ModelKills, StoppedWorkerIsAHangAndItsStreamIsWhole) {
  const Serving serving = serve_model(
      "", {std::string("ipc.transport=") + GetParam(), "isolation.heartbeat_timeout_ms=3000"});
  const json request = request_of(true, 60, "The little robot", 5);
  const Timed undisturbed = stream(serving.port, request);
  const pid_t victim = serving_worker(serving);
  const Timed stopped = stream(serving.port, request, 30, [&] { send_signal(victim, SIGSTOP); });
  EXPECT_EQ(stopped.heard, undisturbed.heard);
  EXPECT_EQ(serving.worker()["last_death"], "hang: no progress for 3000 ms");
}

// An update writes the same file anew, or another model under its name, while a stream runs and its worker dies.
class ReplacedFile : public ModelKills {
 protected:
  ReplacedFile() { std::filesystem::copy_file(kBuiltin, model_); }
  Serving serve() const {
    return serve_model(model_.string(), {"isolation.vault=off", "engine.speculation=off",
                                         std::string("ipc.transport=") + GetParam()});
  }
  // Replaces the file, and kills the worker.
  void replace_and_kill(const Serving& serving, bool other) const {
    std::filesystem::path fresh = model_;
    fresh += ".new";
    std::filesystem::copy_file(kBuiltin, fresh);
    if (other) {  // a byte of the last tensor
      std::fstream file(fresh, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-64, std::ios::end);
      const char changed = static_cast<char>(file.get() ^ 0x55);
      file.seekp(-64, std::ios::end);
      file.put(changed);
    }
    std::filesystem::rename(fresh, model_);
    send_signal(serving_worker(serving), SIGKILL);
  }

  const std::filesystem::path kBuiltin = BULKHEAD_SOURCE_DIR "/worker/builtin/builtin.gguf";
  const TemporaryFolder folder_{"replaced"};
  const std::filesystem::path model_ = folder_.path() / "model.gguf";
};

TEST_P(ReplacedFile, ACopyGoesOnWithTheStream) {
  const json request = request_of(true, 60, "Once upon a time there was", 1234);
  const Serving serving = serve();
  const Heard undisturbed = stream(serving.port, request).heard;
  const Timed killed = stream(serving.port, request, 10, [&] { replace_and_kill(serving, false); });
  EXPECT_EQ(killed.heard, undisturbed);
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["restarts"] == 1; }));
}

TEST_P(ReplacedFile, AnotherModelDoesNot) {
  const Serving serving = serve();
  HttpClient client(serving.port);
  ASSERT_TRUE(client.send("POST", "/v1/completions",
                          request_of(true, 400, "Once upon a time there was", 1234).dump()));
  ASSERT_EQ(client.receive_head().status, 200);
  std::string body = client.receive_chunk().value_or("");
  replace_and_kill(serving, true);
  while (const auto piece = client.receive_chunk()) {
    if (piece->empty()) break;
    body += *piece;
  }
  EXPECT_NE(body.find("can't go on unchanged"), std::string::npos) << body;
}

// What a transport carries has nothing to do with the file.
INSTANTIATE_TEST_SUITE_P(Transport, ReplacedFile, testing::Values("shm"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace bulkhead::test

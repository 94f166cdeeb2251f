// One of two workers lies to the daemon. The daemon must survive and not grow, that worker must end with a reason,
// its request must continue elsewhere, and the other worker's stream must be complete.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/integration/serving.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMostGrowthKib = 700 << 10;  // freed memory stays in quarantine
#else
constexpr std::size_t kMostGrowthKib = 64 << 10;
#endif
constexpr std::size_t kMostNewDescriptors = 24;  // connections and a successor's channel

std::size_t resident_kib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  }
  return 0;
}
std::size_t descriptors_of(pid_t pid) {
  std::error_code error;
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error))
    ++count;
  return count;
}

// A file that does not exist yet, in a folder that is deleted afterwards.
class Mark {
 public:
  std::string path() const { return folder_.path() / "told"; }
  void remove() const { ::unlink(path().c_str()); }

 private:
  const TemporaryFolder folder_{"hostile"};
};

// Says whether a process may have this many threads; a container may allow fewer.
bool can_have_threads(int count) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  try {
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&done] { done.wait(false); });
  } catch (const std::system_error&) {
  }
  done = true;
  done.notify_all();
  const bool all = threads.size() == static_cast<std::size_t>(count);
  for (std::thread& each : threads)
    each.join();
  return all;
}

struct Lie {
  const char* name;
  const char* reason;         // part of last_death
  bool keeps_tokens = false;  // it sent some correct tokens, which count
};
constexpr const char* kViolation = "protocol violation: ";

const Lie kLies[] = {
    {"garbage", kViolation},
    {"late_vault", "that nobody asked for"},
    {"slab", "a slab of a vault that it does not have"},
    {"length", "longer than what was published or allowed"},
    {"kind", "no known kind"},
    {"index", "further than the ring allows"},
    {"unknown_tokens", "tokens of request 424242, which it does not have"},
    {"million_finished", "an answer to request 424242, which it does not have"},
    {"early_tokens", "before it was accepted"},
    {"endless_tokens", "got more than its 30 tokens", true},
    {"endless_text", "can't carry"},
    {"empty_batches", "bring nothing forward"},
    {"pongs", "bring nothing forward"},
    {"stats", "bring nothing forward"},
    {"counters", "2000 counters"},
    {"threads", "threads, and 1024 are allowed"},
    {"hello", "a second hello"},
    {"early_failed", "failed.message has 8388608 bytes"},
    {"long_prompt", "99999 prompt tokens"},
    {"large_record", "a record in pieces is longer than"},
    {"descriptor", "descriptors that nobody asked for"},
    {"descriptors", "descriptors"},
    {"many_descriptors", "a packet on the socket carries 253 descriptors"},
    {"doorbells", "it rang"},
    {"packet", "too long"},
    {"lingering", "descriptors that nobody asked for"},
    {"shutdown", "closed its channel"},
    {"last_words", "device lost and fff"},
};

// A stream on one of the workers, which a thread reads for as long as it lasts.
class Neighbour {
 public:
  explicit Neighbour(const Serving& serving) : client_(serving.port) {
    client_.send(
        "POST", "/v1/completions",
        json({{"prompt", "slow"}, {"max_tokens", 99999}, {"seed", 9}, {"stream", true}}).dump());
    EXPECT_EQ(client_.receive_head().status, 200);
    EXPECT_TRUE(client_.receive_chunk().has_value());
  }
  ~Neighbour() { stop_reading(); }

  void start_reading() {
    reader_ = std::thread([this] {
      while (const auto chunk = client_.receive_chunk()) {
        if (chunk->empty()) break;
        streamed_ += *chunk;
        received_ += chunk->size();
      }
    });
  }
  void stop_reading() {
    if (!reader_.joinable()) return;
    ::shutdown(client_.fd(), SHUT_RDWR);
    reader_.join();
  }
  bool goes_on() const {
    const std::size_t so_far = received_;
    return Serving::eventually([&] { return received_ > so_far; });
  }
  // What it got, after stop_reading(), is an exact beginning of its answer.
  void expect_true_beginning() const {
    std::string text;
    std::size_t at = 0;
    for (std::size_t end; (end = streamed_.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const json chunk = json::parse(streamed_.substr(at + 6, end - at - 6));
      text += chunk["choices"][0]["text"].get<std::string>();
    }
    EXPECT_GT(text.size(), 100U);
    const std::string whole = expected_text(9, 99999);
    EXPECT_NE(whole.find(text), std::string::npos) << text.substr(0, 200);
  }

 private:
  HttpClient client_;
  std::atomic<std::size_t> received_ = 0;
  std::string streamed_;
  std::thread reader_;
};

class HostileWorkerOver : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transport, HostileWorkerOver, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(HostileWorkerOver, EndsItselfOnly) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < 1024) {
    GTEST_SKIP() << "a worker may fill 256 of the daemon's descriptors, and here are only "
                 << limit.rlim_max;
  }
  const bool stdio = std::string(GetParam()) == "stdio";
  Mark mark;
  Serving serving = serve(
      {"models.0.path=builtin", "models.0.workers=2", "ipc.transport="s + GetParam(),
       "ipc.ring_kib=64", "isolation.heartbeat_timeout_ms=60000", "isolation.max_strikes=100"},
      {{"BULKHEAD_WORKER", HOSTILE_WORKER}, {"HOSTILE_TOLD", mark.path()}});
  ASSERT_TRUE(Serving::eventually([&] {
    return serving.worker(0)["state"] == "ready" && serving.worker(1)["state"] == "ready";
  }));
  const pid_t daemon = serving.daemon->pid();

  // This stream runs on one of the workers for as long as the test takes.
  Neighbour neighbour(serving);
  const std::size_t kept = serving.worker(0)["outstanding_requests"] == 1 ? 0 : 1;
  const std::size_t other = 1 - kept;
  const int kept_pid = serving.worker(kept)["pid"];
  ASSERT_EQ(serving.complete({{"prompt", "warm"}, {"max_tokens", 30}, {"seed", 3}}).status, 200);
  const std::size_t memory = resident_kib(daemon), descriptors = descriptors_of(daemon);

  neighbour.start_reading();

  for (const Lie& lie : kLies) {
    SCOPED_TRACE(lie.name);
    if (stdio && std::string(lie.name) == "index") continue;  // there is no ring
    if (std::string(lie.name) == "threads" && !can_have_threads(1300)) continue;
    mark.remove();
    const int restarts = serving.worker(other)["restarts"];
    const HttpReply reply =
        serving.complete({{"prompt", "lie="s + lie.name}, {"max_tokens", 30}, {"seed", 3}});
    ASSERT_EQ(reply.status, 200) << reply.body.substr(0, 500);
    if (!lie.keeps_tokens) {
      EXPECT_EQ(json::parse(reply.body)["choices"][0]["text"], expected_text(3, 30));
    }

    ASSERT_TRUE(Serving::eventually([&] {
      const json worker = serving.worker(other);
      return worker["restarts"] == restarts + 1 && worker["state"] == "ready";
    })) << serving.worker(other);
    const std::string cause = serving.worker(other)["last_death"];
    EXPECT_NE(cause.find(lie.reason), std::string::npos) << cause.substr(0, 500);
    EXPECT_LT(cause.size(), 5000U);
    // A token proves that the successor works. So the daemon starts the next successor at once.
    ASSERT_EQ(serving.complete({{"prompt", "warm"}, {"max_tokens", 3}, {"seed", 3}}).status, 200);
    ASSERT_TRUE(neighbour.goes_on()) << "the neighbour stands";
    ASSERT_EQ(serving.worker(kept)["pid"], kept_pid) << serving.worker(kept)["last_death"];
    EXPECT_LT(resident_kib(daemon), memory + kMostGrowthKib);
    EXPECT_TRUE(Serving::eventually([&] {
      return descriptors_of(daemon) <= descriptors + kMostNewDescriptors;
    })) << descriptors_of(daemon);
  }

  neighbour.stop_reading();
  neighbour.expect_true_beginning();
  EXPECT_EQ(send_signal(daemon, 0), 0);
  EXPECT_LT(serving.daemon->log().size(), std::size_t{1} << 20) << "what it logs is bounded, too";
}

TEST(HostileWorker, SaysThatItsVaultComesLaterAndSendsNoDescriptors) {
  const Mark mark;
  const Serving serving = serve({"models.0.path=builtin"}, {{"BULKHEAD_WORKER", HOSTILE_WORKER},
                                                            {"HOSTILE_READY", "waiting_vault"},
                                                            {"HOSTILE_TOLD", mark.path()}});
  EXPECT_EQ(serving.worker()["vault"]["state"], "waiting");
  const HttpReply reply =
      serving.complete({{"prompt", "lie=late_vault"}, {"max_tokens", 30}, {"seed", 3}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["choices"][0]["text"], expected_text(3, 30));
  const std::string cause = serving.worker()["last_death"];
  EXPECT_NE(cause.find("0 descriptors came, not 2"), std::string::npos) << cause;
}

// A request that a worker answers with numbers, and the rule that the worker breaks if it obeys the order.
struct NumberLie {
  std::string path;
  json body;
  std::string rule;
};
std::vector<NumberLie> number_lies(const std::string& order) {
  const std::string embedded = "embedded.values[1] is not a finite number";
  const std::string ranked = "ranked.score is not a finite number";
  return {{"/v1/embeddings", {{"input", order}}, embedded},
          {"/v1/embeddings", {{"input", order}, {"encoding_format", "base64"}}, embedded},
          {"/v1/embeddings", {{"input", order}, {"dimensions", 1}}, embedded},
          {"/api/embed", {{"input", order}}, embedded},
          {"/api/embeddings", {{"prompt", order}}, embedded},
          {"/v1/rerank", {{"query", "q"}, {"documents", {order}}}, ranked}};
}

TEST(HostileWorker, NumbersThatAreNotFiniteEndItAndItsSuccessorAnswers) {
  const Mark mark;
  const Serving serving = serve({"models.0.path=builtin"}, {{"BULKHEAD_WORKER", HOSTILE_WORKER},
                                                            {"HOSTILE_TOLD", mark.path()}});
  for (const char* const number : {"nan", "inf", "-inf"}) {
    for (const NumberLie& lie : number_lies("lie="s + number)) {
      SCOPED_TRACE(lie.path + lie.body.dump());
      mark.remove();
      const int restarts = serving.worker()["restarts"];
      const HttpReply reply = serving.post(lie.path, lie.body.dump());
      ASSERT_EQ(reply.status, 200) << reply.body;
      EXPECT_EQ(serving.worker()["restarts"], restarts + 1);
      const std::string cause = serving.worker()["last_death"];
      EXPECT_NE(cause.find(kViolation + lie.rule), std::string::npos) << cause;
      // A token proves that the successor works. So the daemon starts the next successor at once.
      ASSERT_EQ(serving.complete({{"prompt", "warm"}, {"max_tokens", 3}, {"seed", 3}}).status, 200);
    }
  }
}

TEST(HostileWorker, TextsOfTokensThatNobodyAskedForEndIt) {
  const Mark mark;
  const Serving serving = serve({"models.0.path=builtin"}, {{"BULKHEAD_WORKER", HOSTILE_WORKER},
                                                            {"HOSTILE_TOLD", mark.path()}});
  const json asked_for[] = {{{"with_pieces", true}}, {{"return_token_strs", true}}, json::object()};
  for (json body : asked_for) {
    SCOPED_TRACE(body.dump());
    mark.remove();
    body["content"] = "lie=few_texts";
    const HttpReply reply = serving.post("/tokenize", body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["count"], 2);
    const std::string cause = serving.worker()["last_death"];
    EXPECT_NE(cause.find("other texts of tokens than were asked for"), std::string::npos) << cause;
    ASSERT_EQ(serving.complete({{"prompt", "warm"}, {"max_tokens", 3}, {"seed", 3}}).status, 200);
  }
}

TEST(HostileWorker, NumbersThatAreNeverFiniteEndTheRequestWithTheReason) {
  const Serving serving = serve({"models.0.path=builtin", "isolation.max_strikes=1"},
                                {{"BULKHEAD_WORKER", HOSTILE_WORKER}});
  for (const NumberLie& lie : number_lies("always lie=nan")) {
    SCOPED_TRACE(lie.path + lie.body.dump());
    const HttpReply reply = serving.post(lie.path, lie.body.dump());
    EXPECT_EQ(reply.status, 500) << reply.body;
    EXPECT_NE(reply.body.find(lie.rule), std::string::npos) << reply.body;
    // A token proves that the successor works. So the daemon starts the next successor at once.
    ASSERT_EQ(serving.complete({{"prompt", "warm"}, {"max_tokens", 3}, {"seed", 3}}).status, 200);
  }
}

TEST(HostileWorker, LiesInTheHandshakeEndTheStartWithTheReason) {
  for (const Lie& lie :
       {Lie{"build", "hello.build has 1048576 bytes"}, Lie{"name", "ready.modelName has"},
        Lie{"context", "an impossible context limit"}, Lie{"optimizations", "10000 optimizations"},
        Lie{"protections", "10000 protections"},
        Lie{"template", "ready.templateSource has 1048576 bytes"},
        Lie{"bos", "ready.bosToken has 1048576 bytes"},
        Lie{"eos", "ready.eosToken has 1048576 bytes"},
        Lie{"long_numerics", "ready.numericsId has 1048576 bytes"},
        Lie{"no_numerics", "ready.numericsId is empty"},
        Lie{"numerics_of_two_lines", "ready.numericsId is no printable text"},
        Lie{"numerics_that_command", "ready.numericsId is no printable text"},
        Lie{"other_weights", "ready.numericsId names weights in another form"},
        Lie{"weights_twice", "ready.numericsId names weights in another form"},
        Lie{"progress", "bring nothing forward"}, Lie{"vault", "0 descriptors came, not 4"},
        Lie{"large_vault", "8589934591 descriptors, and 224 are allowed"},
        Lie{"second_vault", "a vault that nobody asked for"},
        Lie{"fatal", "no device daemon: all is well ff"}}) {
    SCOPED_TRACE(lie.name);
    Daemon daemon(BULKHEADD,
                  {{}, {{"BULKHEAD_WORKER", HOSTILE_WORKER}, {"HOSTILE_READY", lie.name}}});
    EXPECT_EQ(daemon.wait_for_exit(120000), 1);
    EXPECT_NE(daemon.log().find(lie.reason), std::string::npos) << daemon.log().substr(0, 2000);
    EXPECT_LT(daemon.log().size(), 100000U);
  }
}

}  // namespace
}  // namespace bulkhead::test

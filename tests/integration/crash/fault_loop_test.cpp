// Every fault at every step of a streamed request, with the real worker and the built-in model. The worker is killed,
// stopped or aborted at the n-th hit of each point of the channel, the device, the heap and the model's file; or a
// device call, an allocation, a send or a file fails; or a record is damaged. n is 1, 2, 3, ... until the point is
// not reached any more. After each fault, the stream must be complete and unchanged, the daemon must be the same
// process, and the daemon must not hold more memory or descriptors than before.
//
// Two phases: in a request, from its arrival to its end; in a successor, from its exec through
// loading and replaying to the end of a stream that a killed worker left.
//
// FaultSample runs some of these faults, always. FaultLoop runs all of them, in parts that run side by side, and is
// skipped without BULKHEAD_EVERY_FAULT=1 (N: only n = 1, 1+N, 1+2N, ...):
//   BULKHEAD_EVERY_FAULT=1 ctest --test-dir build/release -j N -R FaultLoop
// Only in a successor are some n left out, with growing gaps: it has tens of thousands of allocations, and each stop
// costs ten heartbeats.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "config/base/fault_points.hpp"
#include "ipc/fault_points.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/support/holdings.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

// Each token passes the same points, so a few tokens reach all of them.
constexpr int kTokens = 6;
constexpr int kTokensBeforeTheKill = 2;

enum class Phase { kRequest, kSuccessor };

// A successor whose kernels the daemon threw away compiles all of them: a minute and more on a busy machine.
constexpr std::chrono::minutes kCompiling{5};

// The plan that all workers of a daemon look at.
class Plan {
 public:
  Plan() : fd_(::mkostemp(path_.data(), O_CLOEXEC)) {
    if (::ftruncate(fd_.get(), sizeof(fault::LivePlan)) != 0) std::abort();
    void* base =
        ::mmap(nullptr, sizeof(fault::LivePlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (base == MAP_FAILED) std::abort();
    shared_ = static_cast<fault::LivePlan*>(base);
  }
  ~Plan() {
    ::munmap(shared_, sizeof(fault::LivePlan));
    ::unlink(path_.c_str());
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const std::string& path() const { return path_; }
  void arm(const std::string& text) {
    ASSERT_LT(text.size(), sizeof shared_->plan);
    shared_->generation.fetch_add(1);
    std::memset(shared_->plan, 0, sizeof shared_->plan);
    std::memcpy(shared_->plan, text.data(), text.size());
    shared_->generation.fetch_add(1);
  }
  // Removes the plan. Returns whether a worker had acted on it.
  bool disarm() {
    const auto planned = shared_->generation.load();
    arm("");
    return shared_->acted.load() == planned;
  }

 private:
  std::string path_ = "/tmp/bulkhead-plan-XXXXXX";
  UniqueFd fd_;
  fault::LivePlan* shared_ = nullptr;
};

class Faults : public testing::Test {
 protected:
  void serve(const char* transport, int heartbeat_ms, int sequences = 2) {
    transport_ = transport;
    // The model is loaded from its file, because points such as file.read are not passed for the model in the
    // program.
    const std::string model = BULKHEAD_BUILTIN_FILE;
    ASSERT_TRUE(std::filesystem::exists(model)) << model;
    // There is little to warm up, because most of the time goes into starting workers. The worker does not spin
    // before it sleeps: on a fast machine it would pass the same points more often.
    serving_ = serve_model(model,
                           {"ipc.transport="s + transport, "ipc.spin_us=0",
                            "engine.max_batch=" + std::to_string(sequences), "engine.prefill_chunk=32",
                            "isolation.heartbeat_timeout_ms=" + std::to_string(heartbeat_ms)},
                           {{"BULKHEAD_WORKER", WORKER_WITH_FAULTS},
                            {"BULKHEAD_FAULTS_LIVE", plan_.path()},
                            {"XDG_CACHE_HOME", caches_.string()}});
    ASSERT_NE(serving_.port, 0);
    daemon_ = serving_.daemon->pid();
    expected_ = complete(serving_, request());
    ASSERT_EQ(expected_.ids.size(), static_cast<std::size_t>(kTokens));
    // Each way is tried once before the measurement, because the daemon keeps some memory from then on.
    ASSERT_TRUE(strike(Phase::kRequest, "kill@ipc.commit", 2));
    ASSERT_TRUE(strike(Phase::kSuccessor, "kill@ipc.commit", 2));
    ASSERT_TRUE(settled());
    before_ = Holdings::at_rest(daemon_);
    mappings_ = Mappings::of(daemon_);
    faults_ = 0;
  }
  ~Faults() override {
    serving_.daemon.reset();
    std::error_code ignored;
    std::filesystem::remove_all(caches_, ignored);
  }
  void TearDown() override {
    if (serving_.port == 0) return;
    const Mappings mappings = Mappings::of(daemon_);
    EXPECT_LE(mappings.named, mappings_.named);
    EXPECT_LE(mappings.anonymous, mappings_.anonymous + kKeptAnonymousMappings);
    if (!HasFailure()) std::printf("%s: %d faults, each stream whole\n", transport_, faults_);
  }

  static json request() {
    return {{"prompt", "Once upon a time there was"},
            {"max_tokens", kTokens},
            {"ignore_eos", true},
            {"stream", true},
            {"temperature", 0.9},
            {"seed", 7},
            {"logprobs", 2},
            {"return_token_ids", true},
            {"stream_options", {{"include_usage", true}}}};
  }

  // Tries one fault; returns false if the point was not reached that often.
  bool strike(Phase phase, const std::string& fault, int n) {
    const std::string planned = fault + ":" + std::to_string(n);
    SCOPED_TRACE(planned + (phase == Phase::kRequest ? " in a request" : " in a successor"));
    for (int tries = 0; tries < 10 && !HasFailure(); ++tries) {
      const json before = serving_worker();
      if (strike_once(phase, planned, before)) return true;
      // On a busy machine the kill may come only when the stream is over. Then the successor has nothing to continue,
      // and the try does not count.
      if (phase == Phase::kRequest ||
          serving_.worker()["recovered_requests"] > before["recovered_requests"])
        break;
    }
    return false;
  }

  bool strike_once(Phase phase, const std::string& planned, const json& before) {
    auto client = std::make_unique<HttpClient>(serving_.port);
    if (phase == Phase::kRequest) plan_.arm(planned);
    EXPECT_TRUE(client->send("POST", "/v1/completions", request().dump()));
    HttpReply reply = client->receive_head();
    int pieces = 0;
    while (auto piece = client->receive_chunk()) {
      if (piece->empty()) break;
      reply.body += *piece;
      if (++pieces == kTokensBeforeTheKill && phase == Phase::kSuccessor) {
        plan_.arm(planned);
        send_signal(before["pid"].get<pid_t>(), SIGKILL);
      }
    }
    client.reset();
    EXPECT_EQ(answer_of(reply), expected_);
    // The daemon may not have noticed yet that the worker is dead.
    const auto restarted = [&] { return serving_.worker()["restarts"] > before["restarts"]; };
    if (phase == Phase::kSuccessor) {
      EXPECT_TRUE(Serving::eventually(restarted));
      serving_worker();
    }
    const bool acted = plan_.disarm();
    // A busy machine puts several tokens into one record, and the record that a fault spoils can be a heartbeat after
    // the stream.
    if (phase == Phase::kRequest && acted && !planned.starts_with("fail@")) {
      EXPECT_TRUE(Serving::eventually(restarted));
    }
    serving_worker();
    EXPECT_EQ(send_signal(daemon_, 0), 0);
    if (before_.descriptors != 0) {
      EXPECT_TRUE(settled()) << serving_.daemon->log() << "\nvault "
                             << serving_.worker()["vault"] << "\nbefore: "
                             << testing::PrintToString(before_)
                             << "\nnow: " << testing::PrintToString(Holdings::of(daemon_))
                             << "\nconnections: " << serving_.metric("bulkhead_connections");
    }
    faults_ += acted ? 1 : 0;
    return acted;
  }

  json serving_worker() {
    json worker;
    EXPECT_TRUE(Serving::eventually(
        [&] {
          worker = serving_.worker();
          return worker["state"] == "ready";
        },
        kCompiling));
    return worker;
  }
  bool settled() {
    return Serving::eventually(
        [&] {
          if (serving_.metric("bulkhead_connections") != 1) return false;
          if (before_.descriptors == 0) return true;
          // A process that was ending held something for longer than at_rest() looks, so there may be less.
          return Holdings::of(daemon_).within(before_);
        },
        kCompiling);
  }

  std::vector<std::string> channel_points() const {
    const unsigned over = transport_ == "stdio"s ? ipc::kOverStdio : ipc::kOverMemfd;
    std::vector<std::string> points;
    for (const ipc::PointInfo& point : ipc::kPoints) {
      if ((point.scope & over) != 0 && (point.scope & ipc::kInWorker) != 0)
        points.emplace_back(point.name);
    }
    return points;
  }

  // Each has its own folder, because a damaged record makes the daemon wipe a worker's cache folder.
  static std::filesystem::path new_caches() {
    char name[] = "/tmp/bulkhead-faults-XXXXXX";
    return ::mkdtemp(name);
  }
  std::filesystem::path cache_folder() {
    return caches_ / "bulkhead" / serving_.worker()["name"].get<std::string>();
  }

  const char* transport_ = "";
  const std::filesystem::path caches_ = new_caches();
  Plan plan_;
  Serving serving_;
  Answer expected_;
  Holdings before_;
  pid_t daemon_ = -1;
  Mappings mappings_;
  int faults_ = 0;
};

std::string name_of(Phase phase) {
  return phase == Phase::kRequest ? "Request" : "Successor";
}

class FaultSample : public Faults, public testing::WithParamInterface<const char*> {
 protected:
  // If the point is passed less often, the fault comes at its first hit.
  void strike_some(Phase phase, const std::string& fault, const std::vector<int>& sample) {
    int hits = 0;
    for (const int n : sample) {
      hits += strike(phase, fault, n) || (n != 1 && strike(phase, fault, 1)) ? 1 : 0;
      if (HasFailure()) break;
    }
    reached_ += hits > 0 ? 1 : 0;
  }
  int reached_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transport, FaultSample, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

// Over stdio, faults that have nothing to do with the channel are left out.
TEST_P(FaultSample, EveryStreamIsWhole) {
  serve(GetParam(), 2000);
  const auto points = channel_points();
  for (std::size_t i = 0; i < points.size(); i += 6) {
    // channel_deaths_test tries all of them with a scripted worker.
    const bool early = i % 12 == 0;
    strike_some(early ? Phase::kSuccessor : Phase::kRequest, "kill@" + points[i], {early ? 2 : 5});
  }
  EXPECT_GE(std::exchange(reached_, 0), 2);

  // A worker that broke a rule loses its kernels, and its successor compiles all of them.
  strike_some(Phase::kRequest, "corrupt@ipc.commit", {transport_ == "stdio"s ? 1 : 4});
  strike_some(Phase::kSuccessor, "corrupt@ipc.commit", {2});
  strike_some(Phase::kRequest, "fail@ipc.reserve", {2});
  strike_some(Phase::kRequest, "stop@ipc.commit", {3});
  EXPECT_EQ(std::exchange(reached_, 0), 4);
  if (transport_ == "stdio"s) return;

  strike_some(Phase::kRequest, "fail@gpu.submit", {8});
  strike_some(Phase::kRequest, "fail@heap.allocate", {40});
  strike_some(Phase::kSuccessor, "fail@gpu.wait", {2});
  strike_some(Phase::kRequest, "fail@gpu.submit", {1});
  strike_some(Phase::kRequest, "fail@gpu.wait", {7});
  strike_some(Phase::kRequest, "abort@gpu.wait", {3});
  strike_some(Phase::kSuccessor, "fail@gpu.allocate", {3});
  strike_some(Phase::kSuccessor, "fail@gpu.create", {1});
  strike_some(Phase::kSuccessor, "kill@gpu.submit", {2});
  strike_some(Phase::kSuccessor, "fail@heap.allocate", {100, 3000});
  // The successor has its predecessor's open file, so it opens none.
  strike_some(Phase::kSuccessor, "fail@file.map", {1});
  strike_some(Phase::kSuccessor, "fail@file.read", {1});
  EXPECT_GE(reached_, 11);  // with a vault, some steps of loading do not happen
}

// While a request is computed, submits and waits belong to its steps.
TEST_F(Faults, ADeviceThatIsLostSaysInWhichStep) {
  serve("shm", 2000);
  for (const char* const fault : {"fail@gpu.wait", "fail@gpu.submit"}) {
    ASSERT_TRUE(strike(Phase::kRequest, fault, 5)) << fault;
    const json worker = serving_.worker();
    const auto words = worker["last_death"].get<std::string>();
    EXPECT_TRUE(
        std::regex_search(words, std::regex("step \\d+ \\(\\d+ columns of \\d+ sequences\\).*: "
                                            "recorded for \\d+ columns and \\d+ outputs")))
        << fault << ": " << words;
    std::printf("%s: %s (%s)\n", fault, words.c_str(),
                worker["last_death_cause"].get<std::string>().c_str());
  }
}

// Several pages of a prompt, which wait in the prefix cache after the first such request.
json request_of_pages() {
  std::string prompt;
  for (int i = 0; i < 30; ++i)
    prompt += "Once upon a time there was ";
  return {{"prompt", prompt}, {"max_tokens", 40}, {"ignore_eos", true},
          {"stream", true},   {"temperature", 0}, {"return_token_ids", true}};
}

constexpr const char* kDamaged = "bulkhead_worker_kv_pages_damaged_total";

TEST_F(Faults, AWaitingPageThatChangesGivesNoToken) {
  serve("shm", 10000, 16);  // the cache has room without a page
  const Answer whole = complete(serving_, request_of_pages());
  ASSERT_EQ(whole.ids.size(), 40U);
  const json before = serving_.worker();
  // A page that was compared within the last second is not compared again.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  plan_.arm("corrupt@kv.waiting:1");
  ASSERT_EQ(serving_.complete({{"prompt", "z"}, {"max_tokens", 2}}).status, 200);
  ASSERT_TRUE(plan_.disarm()) << "no page waits";
  EXPECT_EQ(complete(serving_, request_of_pages()).ids, whole.ids);
  EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kDamaged) > 0; }));
  EXPECT_EQ(serving_.worker()["restarts"], before["restarts"]);
}

TEST_F(Faults, AUsedPageThatChangesBeforeADeathGivesNoToken) {
  serve("shm", 10000, 16);  // the cache has room without a page
  const Answer whole = complete(serving_, request_of_pages());
  ASSERT_EQ(whole.ids.size(), 40U);
  plan_.arm("corrupt@kv.used:5");
  EXPECT_EQ(complete(serving_, request_of_pages()).ids, whole.ids);
  ASSERT_TRUE(plan_.disarm()) << "no page is used";
  EXPECT_EQ(serving_worker()["last_death"], "killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kDamaged) > 0; }));
}

// The stream continues in a successor that runs without this part.
TEST_F(Faults, APartThatFailsToStartIsLeftOutAndReported) {
  serve("shm", 2000);
  ASSERT_TRUE(strike(Phase::kSuccessor, "fail@gpu.create", 1));
  const json worker = serving_.worker();
  for (const json& part : worker["optimizations"]) {
    const bool failed = part["name"] == "blit_queue";
    EXPECT_EQ(part["active"], !failed) << part;
    EXPECT_EQ(part["reason"].get<std::string>().empty(), !failed) << part;
    const std::string metric = "part=\"" + part["name"].get<std::string>() + "\"} ";
    EXPECT_NE(serving_.get("/metrics").body.find(metric + (failed ? "0" : "1")), std::string::npos);
  }
  EXPECT_TRUE(serving_.daemon->says("gpu_optimizations.blit_queue could not start"));
}

// A driver runs what it finds in the cache folder. The daemon keeps the kernels from before the first request, unless
// the process broke a rule, and keeps no later file. (The transport matters only to how a broken rule is noticed, which
// EveryStreamIsWhole tests over both.)
TEST_F(Faults, KernelsOfBeforeTheFirstRequestAreKeptAndNothingElse) {
  serve("shm", 10000);  // compiling everything must not count as a hang, however busy the machine is
  namespace fs = std::filesystem;
  const fs::path planted = cache_folder() / "planted";
  // Returns when the kernels were written, in nanoseconds; 0 if there are none.
  const auto compiled = [&]() -> long long {
    for (const auto& entry : fs::directory_iterator(cache_folder())) {
      struct stat file {};
      if (entry.path().filename().string().starts_with("pipelines-") &&
          ::stat(entry.path().c_str(), &file) == 0)
        return file.st_ctim.tv_sec * 1'000'000'000LL + file.st_ctim.tv_nsec;
    }
    return 0;
  };
  const long long first = compiled();
  ASSERT_NE(first, 0);
  std::ofstream(planted) << "x";
  ASSERT_TRUE(strike(Phase::kRequest, "kill@ipc.commit", 4));
  EXPECT_FALSE(fs::exists(planted));
  EXPECT_EQ(compiled(), first);
  std::ofstream(planted) << "x";
  ASSERT_TRUE(strike(Phase::kRequest, "corrupt@ipc.commit", 4));
  EXPECT_EQ(serving_.worker()["last_death_cause"], "protocol_violation") << serving_.worker();
  EXPECT_FALSE(fs::exists(planted));
  EXPECT_GT(compiled(), first);
}

// A part of the loop; without points it has the channel's.
struct Part {
  const char* name;
  std::vector<const char*> actions;
  std::vector<const char*> points;
  int least_reached = 1;  // how many of its points each action must reach
  int heartbeat_ms = 5000;
};
const std::vector<Part>& parts() {
  const std::vector<const char*> device = {"gpu.submit", "gpu.wait", "gpu.allocate", "gpu.create"};
  static const std::vector<Part> all = {
      {"KilledAtTheChannelsSteps", {"kill"}, {}, 10},
      {"RecordsAndSends", {"corrupt", "fail"}, {"ipc.commit", "ipc.reserve"}, 2},
      {"FailingDevice", {"fail"}, device, 2},
      {"KilledAtTheDevice", {"kill"}, device, 2},
      {"AbortedAtTheDevice", {"abort"}, device, 2},
      {"FailingAllocations", {"fail"}, {"heap.allocate"}},
      {"KilledAtAllocations", {"kill"}, {"heap.allocate"}},
      {"StoppedAtTheChannel", {"stop"}, {"ipc.commit", "ipc.received"}, 2, 1000},
      {"StoppedAtTheDevice", {"stop"}, {"gpu.submit", "gpu.wait"}, 2, 1000},
      // A request alone passes none of these points, because the model is already loaded.
      {"Files", {"fail", "kill"}, {"file.open", "file.map", "file.read"}, 0},
  };
  return all;
}

void PrintTo(const Part& part, std::ostream* out) {
  *out << part.name;
}

using Parted = std::tuple<Part, const char*, Phase>;

class FaultLoop : public Faults, public testing::WithParamInterface<Parted> {
 protected:
  void SetUp() override {
    const char* all = std::getenv("BULKHEAD_EVERY_FAULT");
    if (all == nullptr)
      GTEST_SKIP() << "every fault takes hours, and FaultSample tries some; set "
                      "BULKHEAD_EVERY_FAULT to 1 to try all, to N "
                      "for each N-th";
    stride_ = std::max(1, std::atoi(all));
    serve(std::get<1>(GetParam()), part().heartbeat_ms);
  }

  const Part& part() const { return std::get<0>(GetParam()); }
  Phase phase() const { return std::get<2>(GetParam()); }

  int next(const std::string& fault, int n) const {
    if (phase() == Phase::kRequest) return n + stride_;
    if (fault.ends_with("heap.allocate")) return n + std::max(stride_, n / 16);
    if (fault.starts_with("stop@")) return n + std::max(stride_, n / 3);
    return n + stride_;
  }

  // Tries all n of a point.
  void strike_all(const std::string& fault) {
    int hits = 0;
    // Some points are passed more often in one run than in another, so one miss does not end the loop.
    for (int n = 1, missed = 0; missed < 2 && !HasFailure();) {
      const bool acted = strike(phase(), fault, n);
      missed = acted ? 0 : missed + 1;
      if (!acted) continue;
      ++hits;
      n = next(fault, n);
    }
    std::printf("%s, %s, %s: %d times\n", transport_, name_of(phase()).c_str(), fault.c_str(),
                hits);
    std::fflush(stdout);
    reached_ += hits > 0 ? 1 : 0;
  }

  int stride_ = 1, reached_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, FaultLoop,
                         testing::Combine(testing::ValuesIn(parts()),
                                          testing::Values("shm", "stdio"),
                                          testing::Values(Phase::kRequest, Phase::kSuccessor)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::get<1>(test.param) + "_" + name_of(std::get<2>(test.param));
                         });

TEST_P(FaultLoop, EveryStreamIsWhole) {
  std::vector<std::string> points(part().points.begin(), part().points.end());
  if (points.empty()) points = channel_points();
  for (const char* action : part().actions) {
    for (const std::string& point : points) {
      // Damaged records are tried only at their own point.
      if (action == "corrupt"s && point != "ipc.commit") continue;
      if (action == "fail"s && point == "ipc.commit") continue;
      strike_all(action + "@"s + point);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GE(reached_, part().least_reached);
}

}  // namespace
}  // namespace bulkhead::test

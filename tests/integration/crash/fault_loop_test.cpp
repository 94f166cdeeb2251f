// Every fault at every step of a streamed request, with the real worker and the built-in model: it
// is killed, stopped or aborted at the n-th hit of each point of the channel, of the device, of the
// heap and of the model's file; a device call, an allocation, a send or a file fails; a record is
// spoilt. For n = 1, 2, 3, ... until the point is not reached any more. After each the stream is
// whole and the same, the daemon is the same process, and it holds no more than before.
//
// Two phases: in a request, from its arrival to its end; in a successor, from its exec through
// loading and replaying to the end of a stream that a killed worker left.
//
// A sample by default. BULKHEAD_EVERY_FAULT=1 with --gtest_also_run_disabled_tests for all of it, which
// takes hours; BULKHEAD_EVERY_FAULT=N for n = 1, 1+N, 1+2N, ...
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "config/base/fault_points.hpp"
#include "ipc/fault_points.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/support/holdings.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

constexpr int kTokens = 12;
constexpr int kTokensBeforeTheKill = 4;

enum class Phase { kRequest, kSuccessor };

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
  bool acted() const { return shared_->acted.load() == shared_->generation.load(); }

 private:
  std::string path_ = "/tmp/bulkhead-plan-XXXXXX";
  UniqueFd fd_;
  fault::LivePlan* shared_ = nullptr;
};

class FaultLoop : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    // From its file: the one in the program is not read.
    const std::string model = BULKHEAD_BUILTIN_FILE;
    if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not there";
    const char* all = std::getenv("BULKHEAD_EVERY_FAULT");
    stride_ = all == nullptr ? 0 : std::max(1, std::atoi(all));
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    if (stride_ == 0 && name.starts_with("DISABLED")) stride_ = 1;
    serving_ = serve_model(
        model, {over(), "isolation.heartbeat_timeout_ms=2000"},
        {{"BULKHEAD_WORKER", WORKER_WITH_FAULTS}, {"BULKHEAD_FAULTS_LIVE", plan_.path()}});
    ASSERT_NE(serving_.port, 0);
    daemon_ = serving_.daemon->pid();
    expected_ = complete(serving_, request());
    ASSERT_EQ(expected_.ids.size(), static_cast<std::size_t>(kTokens));
    // Once each way: what the daemon keeps from then on it keeps.
    ASSERT_TRUE(strike(Phase::kRequest, "kill@ipc.commit", 2));
    ASSERT_TRUE(strike(Phase::kSuccessor, "kill@ipc.commit", 2));
    ASSERT_TRUE(settled());
    before_ = Holdings::of(daemon_);
    mappings_ = Mappings::of(daemon_);
  }
  void TearDown() override {
    if (serving_.port == 0) return;
    const Mappings mappings = Mappings::of(daemon_);
    EXPECT_LE(mappings.named, mappings_.named);
    EXPECT_LE(mappings.anonymous, mappings_.anonymous + kKeptAnonymousMappings);
    std::printf("%s: %d faults, each stream whole\n", GetParam(), faults_);
  }

  static std::string over() { return std::string("ipc.transport=") + GetParam(); }

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

  // One fault; false when the point was not reached so often.
  bool strike(Phase phase, const std::string& fault, int n) {
    const std::string planned = fault + ":" + std::to_string(n);
    SCOPED_TRACE(planned + (phase == Phase::kRequest ? " in a request" : " in a successor"));
    const json before = serving_worker();
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
    const json after = serving_worker();
    const bool acted = plan_.acted();
    plan_.arm("");
    EXPECT_EQ(send_signal(daemon_, 0), 0);
    if (before_.descriptors != 0) {
      EXPECT_TRUE(settled()) << testing::PrintToString(Holdings::of(daemon_)) << " after "
                             << testing::PrintToString(before_);
    }
    faults_ += acted ? 1 : 0;
    return acted;
  }

  // All n of a point, or those of the sample.
  void strike_all(Phase phase, const std::string& fault, const std::vector<int>& sample) {
    int hits = 0;
    if (stride_ == 0) {
      for (const int n : sample) {
        // Where it is not passed so often, at once.
        hits += strike(phase, fault, n) || (n != 1 && strike(phase, fault, 1)) ? 1 : 0;
        if (HasFailure()) break;
      }
    } else {
      // Tens of thousands of allocations: the further, the wider apart.
      const bool many = fault.ends_with("heap.allocate");
      for (int n = 1; strike(phase, fault, n) && !HasFailure();
           n += many ? std::max(stride_, n / 16) : stride_) {
        ++hits;
      }
      std::printf("%s, %s, %s: %d times\n", GetParam(),
                  phase == Phase::kRequest ? "request" : "successor", fault.c_str(), hits);
      std::fflush(stdout);
    }
    reached_ += hits > 0 ? 1 : 0;
  }

  json serving_worker() {
    json worker;
    EXPECT_TRUE(Serving::eventually([&] {
      worker = serving_.worker();
      return worker["state"] == "ready";
    }));
    return worker;
  }
  bool settled() {
    return Serving::eventually([&] {
      if (serving_.metric("bulkhead_connections") != 1) return false;
      if (before_.descriptors == 0) return true;
      return Holdings::of(daemon_) == before_;
    });
  }

  std::vector<std::string> channel_points() const {
    const unsigned over = GetParam() == std::string("stdio") ? ipc::kOverStdio : ipc::kOverMemfd;
    std::vector<std::string> points;
    for (const ipc::PointInfo& point : ipc::kPoints) {
      if ((point.scope & over) != 0 && (point.scope & ipc::kInWorker) != 0)
        points.emplace_back(point.name);
    }
    return points;
  }

  Plan plan_;
  Serving serving_;
  Answer expected_;
  Holdings before_;
  pid_t daemon_ = -1;
  Mappings mappings_;
  int stride_ = 0, faults_ = 0, reached_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transport, FaultLoop, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

// The sample; over stdio without what has nothing to do with the channel.
TEST_P(FaultLoop, EveryStreamIsWhole) {
  if (stride_ != 0) GTEST_SKIP() << "all of it is asked for";
  const auto points = channel_points();
  for (std::size_t i = 0; i < points.size(); i += 6) {
    // channel_deaths_test has all of them, with a scripted worker.
    const bool early = i % 12 == 0;
    strike_all(early ? Phase::kSuccessor : Phase::kRequest, "kill@" + points[i], {early ? 2 : 5});
  }
  EXPECT_GE(std::exchange(reached_, 0), 2);

  strike_all(Phase::kRequest, "corrupt@ipc.commit", {1, 4});
  strike_all(Phase::kSuccessor, "corrupt@ipc.commit", {2});
  strike_all(Phase::kRequest, "fail@ipc.reserve", {2});
  strike_all(Phase::kRequest, "stop@ipc.commit", {3});
  strike_all(Phase::kRequest, "fail@gpu.submit", {8});
  strike_all(Phase::kRequest, "fail@heap.allocate", {40});
  strike_all(Phase::kSuccessor, "fail@gpu.wait", {2});
  EXPECT_EQ(std::exchange(reached_, 0), 7);
  if (GetParam() == std::string("stdio")) return;

  strike_all(Phase::kRequest, "fail@gpu.submit", {1});
  strike_all(Phase::kRequest, "fail@gpu.wait", {9});
  strike_all(Phase::kRequest, "abort@gpu.wait", {3});
  strike_all(Phase::kSuccessor, "fail@gpu.allocate", {3});
  strike_all(Phase::kSuccessor, "fail@gpu.create", {1});
  strike_all(Phase::kSuccessor, "kill@gpu.submit", {2});
  strike_all(Phase::kSuccessor, "fail@heap.allocate", {100, 3000});
  // It has its predecessor's open file, so that there is none to be opened.
  strike_all(Phase::kSuccessor, "fail@file.map", {1});
  strike_all(Phase::kSuccessor, "fail@file.read", {1});
  EXPECT_GE(reached_, 8);  // a vault leaves out some of loading
}

// All of it, in parts that may run side by side.
TEST_P(FaultLoop, DISABLED_DeathAtTheChannelsSteps) {
  for (const std::string& point : channel_points()) {
    strike_all(Phase::kRequest, "kill@" + point, {});
    strike_all(Phase::kSuccessor, "kill@" + point, {});
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(reached_, 20);
}

TEST_P(FaultLoop, DISABLED_BrokenRecords) {
  for (const Phase phase : {Phase::kRequest, Phase::kSuccessor}) {
    strike_all(phase, "corrupt@ipc.commit", {});
    strike_all(phase, "fail@ipc.reserve", {});
  }
  EXPECT_EQ(reached_, 4);
}

TEST_P(FaultLoop, DISABLED_TheDevice) {
  for (const Phase phase : {Phase::kRequest, Phase::kSuccessor}) {
    for (const char* point : {"gpu.allocate", "gpu.submit", "gpu.wait", "gpu.create"}) {
      for (const char* action : {"fail@", "kill@", "abort@"})
        strike_all(phase, std::string(action) + point, {});
    }
  }
  EXPECT_GE(reached_, 12);
}

TEST_P(FaultLoop, DISABLED_TheHeapAndTheFiles) {
  for (const char* point : {"file.open", "file.map", "file.read", "heap.allocate"}) {
    for (const char* action : {"fail@", "kill@"}) {
      strike_all(Phase::kRequest, std::string(action) + point, {});
      strike_all(Phase::kSuccessor, std::string(action) + point, {});
    }
  }
  EXPECT_GE(reached_, 8);
}

TEST_P(FaultLoop, DISABLED_Hangs) {
  for (const char* point : {"ipc.commit", "ipc.received", "gpu.submit", "gpu.wait"})
    strike_all(Phase::kRequest, std::string("stop@") + point, {});
  EXPECT_GE(reached_, 4);
}

}  // namespace
}  // namespace bulkhead::test

// Death at every point of the channel, seen from the programs. If a worker is killed there, its stream pauses and
// nothing else happens; if a daemon is killed there, its worker ends, too. (tests/unit/ipc/death_test.cpp tests the
// channel alone and in more detail.)
#include <sys/prctl.h>

#include <fstream>

#include "ipc/fault_points.hpp"
#include "tests/integration/serving.hpp"
#include "tests/support/holdings.hpp"

namespace bulkhead::test {
namespace {

// Large enough to travel in pieces, and to fill the ring, both ways.
const std::string kPrompt = "x" + std::string(20000, 'y');
constexpr int kTokens = 60;

json request() {
  return stream_with_ids(kPrompt, kTokens);
}

class ChannelDeaths : public testing::TestWithParam<const char*> {
 protected:
  ChannelDeaths() {
    folder_ = ::mkdtemp(folder_.data());
    done_ = folder_ + "/done";
  }
  ~ChannelDeaths() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> settings() const {
    return {std::string("ipc.transport=") + GetParam(), "ipc.ring_kib=16"};
  }
  std::map<std::string, std::string> plan(const ipc::PointInfo& point, int n, const char* program) {
    std::filesystem::remove(done_);
    return {{"BULKHEAD_FAULTS",
             std::string("kill@") + program + "/" + point.name + ":" + std::to_string(n)},
            {"BULKHEAD_FAULTS_DONE", done_}};
  }
  bool acted() const {
    std::ifstream done(done_);
    return done.get() == 'k';  // "kill ..."
  }
  std::vector<ipc::PointInfo> points(unsigned side) const {
    const unsigned over = GetParam() == std::string("stdio") ? ipc::kOverStdio : ipc::kOverMemfd;
    std::vector<ipc::PointInfo> found;
    for (const ipc::PointInfo& point : ipc::kPoints) {
      if ((point.scope & over) != 0 && (point.scope & side) != 0) found.push_back(point);
    }
    return found;
  }

  std::string folder_ = "/tmp/bulkhead-deaths-XXXXXX", done_;
};

INSTANTIATE_TEST_SUITE_P(Transport, ChannelDeaths, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ChannelDeaths, OfTheWorkerLeaveEveryStreamWhole) {
  Holdings undisturbed;
  {
    Serving serving = serve(settings());
    expect_whole_with_ids(serving.complete(request()).body, kTokens);
    ASSERT_TRUE(Serving::eventually([&] { return serving.metric("bulkhead_connections") == 1; }));
    undisturbed = Holdings::at_rest(serving.daemon->pid());
    EXPECT_EQ(undisturbed.regions, GetParam() == std::string("shm") ? 1 : 0);
  }
  std::size_t deaths = 0;
  const auto points = this->points(ipc::kInWorker);
  for (const ipc::PointInfo& point : points) {
    // The death is in the middle of the stream or, if the point is passed less often, at once.
    for (const int n : {20, 1}) {
      SCOPED_TRACE(point.name + (":" + std::to_string(n)));
      Serving serving = serve(settings(), plan(point, n, "fake_worker"));
      expect_whole_with_ids(serving.complete(request()).body, kTokens);
      EXPECT_EQ(serving.worker()["restarts"], acted() ? 1 : 0);
      if (acted()) {
        EXPECT_EQ(serving.worker()["last_death"], "killed by signal 9 (SIGKILL)");
      }
      EXPECT_TRUE(Serving::eventually([&] {
        return serving.metric("bulkhead_connections") == 1 &&
               Holdings::of(serving.daemon->pid()) == undisturbed;
      })) << testing::PrintToString(Holdings::of(serving.daemon->pid()))
          << ", undisturbed: " << testing::PrintToString(undisturbed);
      deaths += acted() ? 1 : 0;
      if (acted() || HasFailure()) break;
    }
    ASSERT_FALSE(HasFailure());
  }
  // These programs pass no descriptors to each other; all other points occur.
  std::printf("%zu points, %zu deaths\n", points.size(), deaths);
  EXPECT_GE(deaths, points.size() * 3 / 4);
}

TEST_P(ChannelDeaths, OfTheDaemonTakeTheWorkerAlong) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // an orphaned worker becomes our child
  std::size_t deaths = 0;
  const auto points = this->points(ipc::kInDaemon);
  for (const ipc::PointInfo& point : points) {
    for (const int n : {20, 1}) {
      SCOPED_TRACE(point.name + (":" + std::to_string(n)));
      Daemon::Options options;
      for (const std::string& setting : settings())
        options.arguments.insert(options.arguments.end(), {"--set", setting});
      options.environment = plan(point, n, "bulkheadd_with_faults");
      options.environment.emplace("BULKHEAD_WORKER", FAKE_WORKER);
      Daemon daemon(BULKHEADD_WITH_FAULTS, options);
      if (const std::uint16_t port = daemon.wait_until_listening(); port != 0) {
        HttpClient(port).request("POST", "/v1/completions", request().dump());
      }
      if (!acted()) daemon.signal(SIGTERM);
      const std::optional<int> exit = daemon.wait_for_exit();
      EXPECT_EQ(exit, acted() ? -SIGKILL : 0) << daemon.log();
      EXPECT_TRUE(Serving::eventually([] { return ::waitpid(-1, nullptr, WNOHANG) < 0; }))
          << "a worker outlives its daemon";
      deaths += acted() ? 1 : 0;
      if (acted() || HasFailure()) break;
    }
    ASSERT_FALSE(HasFailure());
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  std::printf("%zu points, %zu deaths\n", points.size(), deaths);
  EXPECT_GE(deaths, points.size() * 3 / 4);
}

}  // namespace
}  // namespace bulkhead::test

// Death at every point. A process is killed at each step of the channel in turn, the 1st, 2nd, 4th, 8th ... time that
// it reaches the step (each time with BULKHEAD_EVERY_DEATH; less often with a sanitizer, which slows everything). The
// other side must notice that promptly, must have received nothing wrong, and must leak nothing.
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "ipc/fault_points.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/ipc/death_conversation.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

// The promise is 100 ms; this limit leaves room for a loaded machine and for sanitizers. The measured times are
// printed.
constexpr milliseconds kNoticedWithin{2000};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kNextDeath = 8;
#else
constexpr std::uint64_t kNextDeath = 2;
#endif

class Folder {
 public:
  std::string file(const char* name) const { return folder_.path() / name; }

 private:
  const bulkhead::test::TemporaryFolder folder_{"death"};
};

// The descriptors and regions of this process; they must be the same afterwards.
struct Holdings {
  std::size_t descriptors = open_descriptors();
  std::size_t regions = mapped_regions();
  bool has_children = ::waitpid(-1, nullptr, WNOHANG) >= 0;
  bool operator==(const Holdings&) const = default;
};
void PrintTo(const Holdings& holdings, std::ostream* out) {
  *out << holdings.descriptors << " descriptors, " << holdings.regions << " regions, "
       << (holdings.has_children ? "children" : "no children");
}

// Returns POSIX objects that a process left behind because it died between naming and unlinking them.
std::vector<std::string> objects_of(pid_t pid) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("bulkhead-" + std::to_string(pid) + "-")) found.push_back(name);
  }
  return found;
}

struct Case {
  Kind kind;
  End victim;
};
std::string name_of_case(const Case& each) {
  return std::string(each.victim == End::kWorker ? "Worker" : "Daemon") + "_" + each.kind.name;
}
void PrintTo(const Case& each, std::ostream* out) {
  *out << name_of_case(each);
}

class DeathOf : public testing::TestWithParam<Case> {
 protected:
  struct Seen {
    bool reached = false;
    std::uint64_t killed_ns = 0, noticed_ns = 0;  // noticed_ns is 0 if there was nobody to notice it
    std::uint64_t waited_ns = 0;  // the time during which the survivor was ready but had no core
    std::map<std::string, std::uint64_t> hits;  // of a process that survived
  };

  // Lets the two exchange messages, with `plan` for the victim. Failures name `what`.
  Seen talk(const std::string& plan, const std::string& what) {
    SCOPED_TRACE(what);
    const Holdings before;
    Folder folder;
    Seen seen;
    std::vector<std::string> added = {"BULKHEAD_FAULTS_DONE=" + folder.file("done"),
                                      "BULKHEAD_FAULTS_COUNT=" + folder.file("count")};
    if (!plan.empty()) added.push_back("BULKHEAD_FAULTS=" + plan);
    const int exit = GetParam().victim == End::kWorker
                         ? with_worker(environment_with(added), seen)
                         : with_daemon(environment_with(added), folder.file("report"), seen);
    // Another thread may close what a worker sent some moments later.
    for (int i = 0; i < 2000 && Holdings() != before; ++i)
      ::usleep(1000);
    EXPECT_EQ(Holdings(), before);

    std::ifstream done(folder.file("done"));
    std::string action, point, n;
    seen.reached = static_cast<bool>(done >> action >> point >> n >> seen.killed_ns);
    EXPECT_EQ(exit, seen.reached ? 1000 + SIGKILL : 0);
    if (seen.reached && seen.noticed_ns != 0) {
      EXPECT_LT(seen.noticed_ns,
                seen.killed_ns +
                    static_cast<std::uint64_t>(kNoticedWithin / milliseconds(1)) * 1'000'000U);
    }
    std::ifstream count(folder.file("count"));
    for (std::uint64_t hits; count >> point >> hits;)
      seen.hits[point] = hits;
    return seen;
  }

  // This process is the daemon. Returns how the worker ended.
  int with_worker(std::vector<std::string> environment, Seen& seen) {
    auto pair = make_pair(settings_for(GetParam().kind, kDeathRingKib));
    EXPECT_EQ(mapped_regions(), GetParam().kind.transport == config::Transport::kShm ? 1U : 0U);
    const pid_t pid =
        spawn_worker(DEATH_PEER, {"worker", GetParam().kind.name}, pair, std::move(environment));
    EXPECT_GT(pid, 0);
    const std::uint64_t waited = waited_for_a_core_ns();
    const Error error = Conversation(*pair.daemon, End::kDaemon).run_to_the_peers_end();
    seen.noticed_ns = monotonic_ns();
    seen.waited_ns = waited_for_a_core_ns() - waited;
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.message();
    return wait_for(pid);
  }

  // The daemon is another process, and the worker is its child, which becomes ours when the daemon dies. The worker
  // must end by itself. Returns how the daemon ended.
  int with_daemon(std::vector<std::string> environment, const std::string& report, Seen& seen) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    std::string program = DEATH_PEER, role = "daemon", kind = GetParam().kind.name, file = report;
    char* argv[] = {program.data(), role.data(), kind.data(), file.data(), nullptr};
    std::vector<char*> variables;
    for (std::string& variable : environment)
      variables.push_back(variable.data());
    variables.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, DEATH_PEER, nullptr, nullptr, argv, variables.data()), 0);
    const int exit = wait_for(pid);
    if (!objects_of(pid).empty()) {  // a daemon removes them when it makes its first region
      make_pair(settings_for(kPosix, kDeathRingKib));
      EXPECT_EQ(objects_of(pid), std::vector<std::string>());
    }
    int status = 0;
    const bool worker = ::waitpid(-1, &status, 0) > 0;  // false: there was no worker yet
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    if (worker) {
      EXPECT_EQ(status, 0) << "the worker did not end by itself";
      std::ifstream in(report);
      int code = -1;
      long descriptors = -1, regions = -1;
      std::string message;
      in >> code >> seen.noticed_ns >> seen.waited_ns >> descriptors >> regions;
      std::getline(in, message);
      EXPECT_EQ(code, static_cast<int>(ErrorCode::kUnavailable)) << message;
      EXPECT_EQ(descriptors, 0);
      EXPECT_EQ(regions, 0);
    }
    return exit;
  }

  static int wait_for(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  bool concerned(const PointInfo& point) const {
    const Kind& kind = GetParam().kind;
    const unsigned over = kind.transport == config::Transport::kStdio ? kOverStdio
                          : kind.region == config::RegionKind::kMemfd ? kOverMemfd
                                                                      : kOverPosix;
    return (point.scope & over) != 0 &&
           (point.scope & (GetParam().victim == End::kWorker ? kInWorker : kInDaemon)) != 0;
  }
};

INSTANTIATE_TEST_SUITE_P(Transport, DeathOf,
                         testing::Values(Case{kMemfd, End::kWorker}, Case{kMemfd, End::kDaemon},
                                         Case{kPosix, End::kWorker}, Case{kPosix, End::kDaemon},
                                         Case{kStdio, End::kWorker}, Case{kStdio, End::kDaemon}),
                         [](const auto& test) { return name_of_case(test.param); });

TEST_P(DeathOf, OneEndIsSeenAtEveryPoint) {
  // Counts how often each point is passed if no process dies. This also shows that the exchange can
  // end well.
  const Seen undisturbed = talk("", "nobody dies");
  ASSERT_FALSE(undisturbed.reached);
  ASSERT_FALSE(undisturbed.hits.empty());
  for (const auto& [name, hits] : undisturbed.hits) {
    const auto row =
        std::ranges::find(kPoints, name, [](const auto& each) { return std::string(each.name); });
    ASSERT_NE(row, std::end(kPoints)) << name;
    EXPECT_TRUE(concerned(*row)) << name << " is passed where its row says that it is not";
  }

  const bool every_hit = std::getenv("BULKHEAD_EVERY_DEATH") != nullptr;  // minutes
  // The time from the kill to the error; and the same without the time in which the survivor could have run but other
  // programs had the cores, which is the machine's fault.
  std::vector<std::uint64_t> delays_us, own_us;
  std::string longest;
  int points = 0;
  for (const PointInfo& point : kPoints) {
    if (!concerned(point)) continue;
    ++points;
    const auto found = undisturbed.hits.find(point.name);
    const std::uint64_t hits = found == undisturbed.hits.end() ? 1 : found->second;
    for (std::uint64_t n = 1; n <= hits; n = every_hit ? n + 1 : n * kNextDeath) {
      const std::string plan = std::string("kill@") + point.name + ":" + std::to_string(n);
      const Seen seen = talk(plan, plan);
      if (!seen.reached) {  // the count varies a little from run to run, but each point is passed
        ASSERT_NE(n, 1U) << point.name << " is never reached: a dead row";
        break;
      }
      if (seen.noticed_ns != 0) {
        const std::uint64_t delay = seen.noticed_ns - std::min(seen.noticed_ns, seen.killed_ns);
        if (delays_us.empty() || delay / 1000 > std::ranges::max(delays_us)) {
          longest = plan + ", no core for " + std::to_string(seen.waited_ns / 1000) + " us";
        }
        delays_us.push_back(delay / 1000);
        own_us.push_back((delay - std::min(delay, seen.waited_ns)) / 1000);
      }
    }
    ASSERT_FALSE(HasFailure()) << "at " << point.name;
  }
  ASSERT_FALSE(delays_us.empty());
  std::ranges::sort(delays_us);
  std::ranges::sort(own_us);
  std::printf(
      "%d points, %zu deaths; from the kill to the error: median %llu us, longest %llu us (%s), "
      "over "
      "100 ms %zu; less the wait for a core: longest %llu us\n",
      points, delays_us.size(), static_cast<unsigned long long>(delays_us[delays_us.size() / 2]),
      static_cast<unsigned long long>(delays_us.back()), longest.c_str(),
      static_cast<std::size_t>(
          std::ranges::count_if(delays_us, [](std::uint64_t us) { return us > 100'000; })),
      static_cast<unsigned long long>(own_us.back()));
}

// ---- the fault plan itself ----

class FaultPlan : public testing::Test {
 protected:
  // Runs the worker's part with `plan`. Returns its wait status; a stopped process counts, too.
  int status_with(const std::string& plan) {
    auto pair = make_pair(settings_for(kMemfd, kDeathRingKib));
    const pid_t pid = spawn_worker(
        DEATH_PEER, {"worker", "shm_memfd"}, pair,
        environment_with({"BULKHEAD_FAULTS=" + plan, "BULKHEAD_FAULTS_DONE=" + done_}));
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
      bulkhead::test::send_signal(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    return status;
  }
  Folder folder_;
  std::string done_ = folder_.file("done");
};

TEST_F(FaultPlan, CanStopAndAbortToo) {
  EXPECT_TRUE(WIFSTOPPED(status_with("stop@ipc.published")));
  std::filesystem::remove(done_);
  const int status = status_with("kill@other-program/ipc.opened,abort@death_peer/ipc.published:1");
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

TEST_F(FaultPlan, ActsOnceOverAllProcessesThatShareTheFile) {
  EXPECT_TRUE(WIFSIGNALED(status_with("kill@ipc.opened")));
  // The second worker has no partner: it ends by itself when the daemon's end closes.
  auto pair = make_pair(settings_for(kMemfd, kDeathRingKib));
  const pid_t pid = spawn_worker(
      DEATH_PEER, {"worker", "shm_memfd"}, pair,
      environment_with({"BULKHEAD_FAULTS=kill@ipc.opened", "BULKHEAD_FAULTS_DONE=" + done_}));
  pair.daemon.reset();
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
}

TEST_F(FaultPlan, ThatCannotBeReadEndsTheProgram) {
  for (const char* plan :
       {"kill", "harm@ipc.open", "kill@ipc.open:0", "kill@ipc.open:x", "kill@"}) {
    const int status = status_with(plan);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << plan << ": " << status;
  }
}

TEST(FaultPoints, HaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const PointInfo& point : kPoints) {
    names.emplace_back(point.name);
    EXPECT_TRUE(names.back().starts_with("ipc."));
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

}  // namespace
}  // namespace bulkhead::ipc

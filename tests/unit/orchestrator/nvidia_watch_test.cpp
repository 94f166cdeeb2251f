// Figures of NVIDIA's devices: from the real process, which loads a library that plays NVIDIA's; and from programs that
// break the rules.
#include "orchestrator/metrics/nvidia_watch.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

namespace bulkhead::orchestrator {
namespace {

using std::chrono::milliseconds;

// Returns the value of "NAME{LABEL,LABEL}"; -1 if there is no such figure.
double value(const std::vector<DaemonFigure>& figures, const std::string& which) {
  for (const DaemonFigure& each : figures) {
    std::string labels = each.label_value;
    if (!each.more_label.empty()) labels += "," + each.more_label_value;
    if (which == std::string(each.name) + "{" + labels + "}") return each.value;
  }
  return -1;
}

class NvidiaFigures : public testing::Test {
 protected:
  NvidiaFigures() {
    // Several watches log at once. ThreadSanitizer does not see how libspdlog guards the making of its logger, so the
    // logger is made before their threads, as the daemon's is.
    static_cast<void>(spdlog::default_logger());
    behave("well");
    ::setenv("FAKE_NVML", file_.c_str(), 1);
  }
  ~NvidiaFigures() override {
    ::unlink(file_.c_str());
    ::unlink(script_.c_str());
  }

  void behave(const std::string& how) const {
    std::ofstream(file_ + ".new") << how << "\n";
    ::rename((file_ + ".new").c_str(), file_.c_str());
  }
  NvidiaWatch::Options options(const std::string& library = FAKE_NVML_LIBRARY) const {
    return {.program = BULKHEAD_WORKER_PROGRAM,
            .nvml_library = library,
            .patience = milliseconds(1500),
            .pause = milliseconds(10),
            .longest_pause = milliseconds(50)};
  }
  // Plays the process by a script.
  NvidiaWatch::Options scripted(const std::string& text) const {
    std::ofstream(script_) << "#!/bin/sh\n" << text << "\n";
    ::chmod(script_.c_str(), 0700);
    NvidiaWatch::Options made = options();
    made.program = script_;
    return made;
  }
  static bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 6000; ++i, ::usleep(10'000)) {
      if (holds()) return true;
    }
    return false;
  }
  static double up(NvidiaWatch& watch) {
    return value(watch.figures(true), "bulkhead_device_watch_up{}");
  }
  static double failures(NvidiaWatch& watch) {
    return value(watch.figures(true), "bulkhead_device_watch_failures_total{}");
  }

  const std::string file_ = testing::TempDir() + "fake-nvml-" + std::to_string(::getpid());
  const std::string script_ = file_ + ".sh";
};

TEST_F(NvidiaFigures, ComeFromAProcessThatLoadsTheLibrary) {
  {
    NvidiaWatch watch(options());
    ASSERT_TRUE(eventually([&] { return up(watch) == 1; }));
    const auto figures = watch.figures(true);
    EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:01:00.0,gpu}"), 91);
    EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:c1:00.0,gpu}"), 45);
    EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:01:00.0,memory}"), -1)
        << "the library does not have it";
    EXPECT_EQ(value(figures, "bulkhead_device_throttled{0000:01:00.0}"), 1);
    EXPECT_EQ(value(figures, "bulkhead_device_slowed{0000:01:00.0,heat}"), 1);
    EXPECT_EQ(value(figures, "bulkhead_device_slowed{0000:01:00.0,power_limit}"), 0);
    EXPECT_EQ(value(figures, "bulkhead_device_throttled{0000:c1:00.0}"), 0) << "no fault";
    EXPECT_EQ(value(figures, "bulkhead_device_slowed{0000:c1:00.0,power_limit}"), 1);
    EXPECT_EQ(value(figures, "bulkhead_device_memory_used_bytes{0000:01:00.0}"), 1000);
    EXPECT_EQ(value(figures, "bulkhead_device_memory_bytes{0000:01:00.0}"), 4000);
    EXPECT_EQ(failures(watch), 0);
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "the process has ended with the watch";
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(NvidiaFigures, CountXidErrorsAlsoOverTheEndOfTheProcess) {
  NvidiaWatch watch(options());
  const auto xids = [&](const char* number, bool wanted) {
    return value(watch.figures(wanted),
                 std::string("bulkhead_device_xid_errors_total{0000:c1:00,") + number + "}");
  };
  ASSERT_TRUE(eventually([&] { return up(watch) == 1; }));
  behave("xid 79 well");
  ASSERT_TRUE(eventually([&] { return xids("79", true) == 1; }));
  behave("xid 79 well");
  ASSERT_TRUE(eventually([&] { return xids("79", true) == 2; }));
  behave("crash");
  ASSERT_TRUE(eventually([&] { return failures(watch) > 0; }));
  behave("well");
  ASSERT_TRUE(eventually([&] { return up(watch) == 1; }));
  behave("xid 13 well");
  ASSERT_TRUE(eventually([&] { return xids("13", true) == 1; }));
  EXPECT_EQ(xids("79", true), 2);
  EXPECT_EQ(xids("79", false), -1) << "the kernel's log counts them";
}

TEST_F(NvidiaFigures, AreMissingWhileTheDriverHangsAndComeBack) {
  NvidiaWatch watch(options());
  ASSERT_TRUE(eventually([&] { return up(watch) == 1; }));
  behave("hang");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i)
    static_cast<void>(watch.figures(true));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1)) << "nobody waits";
  ASSERT_TRUE(eventually([&] { return up(watch) == 0 && failures(watch) > 0; }));
  EXPECT_EQ(value(watch.figures(true), "bulkhead_device_memory_bytes{0000:01:00.0}"), -1);
  behave("well");
  ASSERT_TRUE(eventually([&] { return up(watch) == 1; }));
  EXPECT_EQ(value(watch.figures(true), "bulkhead_device_memory_bytes{0000:01:00.0}"), 4000);
}

TEST_F(NvidiaFigures, AreNotBelievedIfTheyCanNotBe) {
  behave("lie");
  NvidiaWatch watch(options());
  ASSERT_TRUE(eventually([&] { return failures(watch) > 1; }));
  EXPECT_EQ(up(watch), 0);
  EXPECT_EQ(value(watch.figures(true), "bulkhead_device_temperature_celsius{0000:01:00.0,gpu}"),
            -1);
}

TEST_F(NvidiaFigures, AreNoneWithoutADriverOrItsLibrary) {
  behave("absent");
  NvidiaWatch without_driver(options());
  NvidiaWatch without_library(options("/no/such/libnvidia-ml.so.1"));
  ASSERT_TRUE(eventually([&] { return failures(without_driver) > 1; }));
  ASSERT_TRUE(eventually([&] { return failures(without_library) > 1; }));
  EXPECT_EQ(up(without_driver) + up(without_library), 0);

  NvidiaWatch::Options elsewhere = options("libnvidia-ml.so.1");
  elsewhere.root = "/no/such/root";
  NvidiaWatch no_device(elsewhere), not_wanted(options(""));
  EXPECT_TRUE(no_device.figures(true).empty()) << "no process is started";
  EXPECT_TRUE(not_wanted.figures(true).empty());
}

TEST_F(NvidiaFigures, OfAProcessThatBreaksTheRulesEndIt) {
  for (const char* const text :
       {"yes 'xid 0000:01:00.0 79 1'", "head -c 100000 /dev/zero",
        "yes a-very-long-line | tr -d '\\n'", "exec true", "exec sleep 1000"}) {
    NvidiaWatch watch(scripted(text));
    EXPECT_TRUE(eventually([&] { return failures(watch) > 0; })) << text;
    EXPECT_EQ(up(watch), 0) << text;
  }
}

TEST(NvidiaReports, TakeOnlyWhatTheRulesAllow) {
  for (const char* const bad :
       {"", "end", "end - -", "end - - 0 0", "end - - x", "temperature 0000:01:00.0 gpu 301",
        "temperature 0000:01:00.0 gpu -1", "temperature 0000:01:00.0 gpu 1e3",
        "temperature 0000:01:00.0 nose 30", "temperature \"} gpu 30", "temperature  gpu 30",
        "slowed 0000:01:00.0 heat 2", "slowed 0000:01:00.0 hunger 1", "memory 0000:01:00.0 free 1",
        "memory 0000:01:00.0 used 99999999999999999999", "xid 0000:01:00.0 79 2",
        "xid 0000:01:00.0 12345 1", "xid 0000:01:00.0 x 1", "power 0000:01:00.0 gpu 1"}) {
    NvidiaReports reports;
    EXPECT_FALSE(reports.take(bad)) << bad;
  }
  NvidiaReports reports;
  EXPECT_FALSE(reports.take("end - " + std::string(300, '-') + " 0"));
  EXPECT_TRUE(reports.take("temperature 0000:01:00.0 gpu 61"));
  std::vector<DaemonFigure> figures;
  reports.append_to(figures, true);
  EXPECT_TRUE(figures.empty()) << "the look has not ended";
  EXPECT_FALSE(reports.look_ended());
  EXPECT_TRUE(reports.take("end - - 0"));
  EXPECT_TRUE(reports.look_ended());
  EXPECT_FALSE(reports.look_ended());
  reports.append_to(figures, true);
  EXPECT_EQ(value(figures, "bulkhead_device_temperature_celsius{0000:01:00.0,gpu}"), 61);
  EXPECT_TRUE(reports.take("failed - no~driver 0"));
  EXPECT_EQ(reports.failure(), "no driver");

  bool all = true;
  for (int i = 0; i < 300; ++i)
    all &= reports.take("xid 0000:01:00.0 " + std::to_string(i) + " 1");
  EXPECT_FALSE(all) << "the kinds of errors are bounded";
}

}  // namespace
}  // namespace bulkhead::orchestrator

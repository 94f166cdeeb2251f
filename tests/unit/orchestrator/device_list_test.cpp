#include "orchestrator/supervisor/device_list.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/router/replicas.hpp"

namespace bulkhead::orchestrator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DeviceList, TakesTheGpusAndTheCpuOnlyWhereThereIsNone) {
  const auto both = usable_devices("0 discrete usable\n1 cpu usable\n2 discrete usable\n");
  ASSERT_TRUE(both.ok());
  EXPECT_THAT(*both, ElementsAre("0", "2"));
  const auto cpu = usable_devices("a driver says hello\n0 discrete unusable\n1 cpu usable\n");
  ASSERT_TRUE(cpu.ok());
  EXPECT_THAT(*cpu, ElementsAre("1"));
  for (const char* none : {"", "0 discrete unusable\n", "x discrete usable", "12345 cpu usable"})
    EXPECT_EQ(usable_devices(none).error().code(), ErrorCode::kNotFound) << none;
}

class ListingProgram : public testing::Test {
 protected:
  std::string script(const std::string& text) {
    const std::string path = testing::TempDir() + "lister-" + std::to_string(::getpid());
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }
  void TearDown() override {
    ::unlink((testing::TempDir() + "lister-" + std::to_string(::getpid())).c_str());
  }
  static config::Settings settings_with(std::vector<std::string> devices) {
    config::Settings settings;
    settings.models.resize(2);
    settings.models[1].devices = std::move(devices);
    return settings;
  }
};

TEST_F(ListingProgram, IsAskedWhereAModelIsToBeOnAllDevices) {
  config::Settings settings = settings_with({"all"});
  ::setenv("BULKHEAD_API_KEY", "secret", 1);
  const Status done = resolve_all_devices(
      settings, script("[ \"$1$BULKHEAD_API_KEY\" = --list-devices ] || exit 1\n"
                       "echo 0 discrete usable; echo 1 discrete usable"));
  ::unsetenv("BULKHEAD_API_KEY");
  ASSERT_TRUE(done.ok()) << done.error().message();
  EXPECT_THAT(settings.models[1].devices, ElementsAre("0", "1"));
  EXPECT_THAT(settings.models[0].devices, ElementsAre());
}

TEST_F(ListingProgram, IsNotStartedForDevicesThatAreNamed) {
  config::Settings settings = settings_with({"0", "3"});
  EXPECT_TRUE(resolve_all_devices(settings, "/no/such/program").ok());
  EXPECT_THAT(settings.models[1].devices, ElementsAre("0", "3"));
}

TEST_F(ListingProgram, ThatFailsOrHangsIsAnErrorThatNamesTheSetting) {
  const auto error_of = [](const std::string& program) {
    config::Settings settings = settings_with({"all"});
    const Status done = resolve_all_devices(settings, program);
    if (done.ok()) return Error(ErrorCode::kInternal, "no error");
    EXPECT_THAT(done.error().message(), HasSubstr("models.1.devices: all"));
    return done.error();
  };
  EXPECT_EQ(error_of("/no/such/program").code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of(script("exit 3")).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of(script("yes")).code(), ErrorCode::kCorrupt);
  // The process has printed everything but does not end.
  config::Settings said = settings_with({"all"});
  EXPECT_TRUE(
      resolve_all_devices(said, script("echo 0 cpu usable; exec 1>&-; exec sleep 100")).ok());
  config::Settings settings = settings_with({"all"});
  const Status hung =
      resolve_all_devices(settings, script("exec sleep 100"), std::chrono::milliseconds(100));
  ASSERT_FALSE(hung.ok());
  EXPECT_EQ(hung.error().code(), ErrorCode::kDeadlineExceeded);
}

TEST_F(ListingProgram, MayNotListDevicesForMoreWorkersThanAModelMayHave) {
  config::Settings settings = settings_with({"all"});
  settings.models[1].workers = config::kMostWorkersOfModel;
  const std::string program = script("echo 0 discrete usable; echo 1 discrete usable");
  EXPECT_EQ(resolve_all_devices(settings, program).error().code(), ErrorCode::kInvalidArgument);
  settings.models[1].workers /= 2;
  EXPECT_TRUE(resolve_all_devices(settings, program).ok());
}

TEST(ReplicaDevices, AreSharedOutEvenly) {
  config::ModelSettings settings;
  EXPECT_EQ(replica_count(settings), 1U);
  EXPECT_EQ(next_device(settings, {}), "auto");
  settings.devices = {"0", "1", "0"};
  settings.workers = 2;
  EXPECT_EQ(replica_count(settings), 6U);
  EXPECT_EQ(replica_count(settings, "0"), 4U);
  EXPECT_EQ(replica_count(settings, "9"), 0U);
  std::vector<std::string> taken;
  for (int i = 0; i < 6; ++i)
    taken.push_back(next_device(settings, taken));
  EXPECT_THAT(taken, ElementsAre("0", "1", "0", "0", "1", "0"));
  EXPECT_EQ(next_device(settings, {"0", "0", "9"}), "1");
}

TEST(ReplicaDevices, OfASplitModelAreAllForEachWorker) {
  config::ModelSettings settings;
  settings.devices = {"0", "1", "0"};
  settings.split = config::Split::kLayers;
  EXPECT_EQ(replica_count(settings), 1U);
  EXPECT_EQ(next_device(settings, {}), "0,1,0");
  const std::vector<std::string> devices = devices_of_share(settings, "0,1,0");
  EXPECT_THAT(devices, ElementsAre("0", "1", "0"));
  EXPECT_EQ(part_on("0", devices, 300), 200U);
  EXPECT_EQ(part_on("1", devices, 300), 100U);
  EXPECT_EQ(part_on("2", devices, 300), 0U);
}

TEST_F(ListingProgram, IsAskedWhichTextsNameTheSameDevice) {
  config::Settings settings = settings_with({"some GPU", "7"});
  const std::string finder =
      "[ \"$1\" = --find-devices ] || exit 1\necho a driver says hello\n"
      "shift; for text; do echo 7 \"$text\"; done; echo 3 unasked";
  EXPECT_TRUE(number_devices(settings, script(finder)).ok());
  EXPECT_THAT(numbered({"some GPU", "7"}), ElementsAre("some GPU", "7")) << "nothing is bounded";
  settings.server.device_memory_mb = 1000;
  for (const std::string& failing : {std::string("/no/such/program"), script("exit 1")}) {
    const Status failed = number_devices(settings, failing);
    ASSERT_FALSE(failed.ok()) << failing;
    EXPECT_THAT(failed.error().message(), ::testing::HasSubstr("counts as a device of its own"));
  }
  EXPECT_THAT(numbered({"some GPU", "7"}), ElementsAre("some GPU", "7"));
  EXPECT_TRUE(number_devices(settings, script(finder)).ok());
  EXPECT_THAT(numbered({"some GPU", "7", "unasked"}), ElementsAre("7", "7", "unasked"));
}

}  // namespace
}  // namespace bulkhead::orchestrator

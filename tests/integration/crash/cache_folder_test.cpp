// What a worker's processes leave in their cache folder, and to whom it is given: a driver runs what
// it finds there. With the scripted worker, which writes nothing there; the test does.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/integration/watching.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;

class CacheFolder : public testing::Test {
 protected:
  CacheFolder() {
    char name[] = "/tmp/bulkhead-caches-XXXXXX";
    caches_ = ::mkdtemp(name);
  }
  ~CacheFolder() override { fs::remove_all(caches_); }

  Serving serve_here(std::vector<std::string> settings = {}) const {
    return serve(std::move(settings), {{"XDG_CACHE_HOME", caches_.string()}});
  }
  fs::path folder(const std::string& worker = "builtin-0") const {
    return caches_ / "bulkhead" / worker;
  }
  void plant(const std::string& worker = "builtin-0") const {
    fs::create_directories(folder(worker) / "ab" / "cd");
    std::ofstream(folder(worker) / "ab" / "cd" / "kernel") << "x";
    ::chmod((folder(worker) / "ab").c_str(), 0);
  }
  bool nothing_is_left() const {
    return std::ranges::none_of(fs::directory_iterator(caches_ / "bulkhead"), [](const auto& each) {
      return each.path().filename().string().starts_with(".dropped-");
    });
  }

  fs::path caches_;
};

TEST_F(CacheFolder, OfAProcessThatBrokeARuleIsGivenToNobody) {
  const Serving serving = serve_here();
  plant();
  plant("another-0");
  for (const char* order : {"kill@3", "exit@3", "device@3"}) {
    expect_whole(serving.complete(stream_of(order, 10)).body, 10);
    EXPECT_TRUE(fs::exists(folder())) << order;
  }
  for (const char* order : {"garbage@3", "gap@3"}) {
    SCOPED_TRACE(order);
    plant();
    expect_whole(serving.complete(stream_of(order, 10)).body, 10);
    EXPECT_EQ(serving.worker()["last_death_cause"], "protocol_violation");
    EXPECT_FALSE(fs::exists(folder()));
    EXPECT_TRUE(Serving::eventually([&] { return nothing_is_left(); }));
  }
  EXPECT_TRUE(fs::exists(folder("another-0"))) << "it is another worker's";
  EXPECT_NE(serving.daemon->log().find("its cache folder " + folder().string() + " is wiped"),
            std::string::npos)
      << serving.daemon->log();
}

// It may have loaded what the liar wrote.
TEST_F(CacheFolder, ASpareThatMayHaveReadItDoesNotTakeOver) {
  const Serving serving = serve_here({"isolation.standby=1"});
  const pid_t spare = pid_in(serving, "builtin-0.standby-0", "standby");
  plant();
  expect_whole(serving.complete(stream_of("garbage@3", 10)).body, 10);
  EXPECT_EQ(find(serving, "builtin-0")["takeovers"], 0);
  EXPECT_FALSE(fs::exists(folder()));
  EXPECT_NE(send_signal(spare, 0), 0);
  // It is replaced.
  ASSERT_TRUE(Serving::eventually([&] {
    const json all = workers(serving);
    return std::ranges::any_of(all, [](const json& each) { return each["state"] == "standby"; });
  }));
}

// It wrote to the same folder. Who serves goes on; the other spare goes with it, and both are replaced.
TEST_F(CacheFolder, OfASpareThatBrokeARuleIsGivenToNobodyEither) {
  const fs::path lie = caches_ / "lie";
  const Serving serving = serve({"isolation.standby=2"}, {{"XDG_CACHE_HOME", caches_.string()},
                                                          {"FAKE_SPARE_LIES", lie.string()}});
  const pid_t serves = pid_in(serving, "builtin-0", "ready");
  const std::set<pid_t> before = {pid_in(serving, "builtin-0.standby-0", "standby"),
                                  pid_in(serving, "builtin-0.standby-1", "standby")};
  plant();
  HttpClient client(serving.port);
  client.send("POST", "/v1/completions", stream_of("slow", 100).dump());
  ASSERT_EQ(client.receive_head().status, 200);
  std::ofstream(lie) << "x";
  ASSERT_TRUE(Serving::eventually([&] {
    int others = 0;
    for (const json& each : workers(serving)) {
      if (each["state"] == "standby" && !before.contains(each["pid"].get<pid_t>())) ++others;
    }
    return others == 2;
  })) << workers(serving);
  EXPECT_FALSE(fs::exists(folder()));
  expect_whole(rest_of(client), 100);
  EXPECT_EQ(pid_in(serving, "builtin-0", "ready"), serves);
}

TEST_F(CacheFolder, WhatAnEarlierDaemonLeftIsDeleted) {
  plant(".dropped-builtin-0-0");
  plant();
  const Serving serving = serve_here();
  EXPECT_TRUE(Serving::eventually([&] { return nothing_is_left(); }));
  EXPECT_TRUE(fs::exists(folder()));
}

TEST_F(CacheFolder, IsDoneWithoutWhereItCantBeTakenAway) {
  const Serving serving = serve_here();
  plant();
  // All the names that it could get are taken.
  for (int i = 0; i < 100; ++i)
    fs::create_directories(folder(".dropped-builtin-0-" + std::to_string(i)) / "x");
  expect_whole(serving.complete(stream_of("garbage@3", 10)).body, 10);
  std::ifstream file("/proc/" + std::to_string(pid_in(serving, "builtin-0", "ready")) + "/cmdline");
  const std::string words((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(words.find("--no-cache"), std::string::npos) << words;
  EXPECT_NE(serving.daemon->log().find("can't be taken out of the way"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::test

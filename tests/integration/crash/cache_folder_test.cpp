// Tests which processes get the files that a worker's processes leave in their cache folder. It matters because a
// driver runs the code that it finds there. The scripted worker writes nothing there; the test does.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>

#include "tests/integration/watching.hpp"
#include "tests/support/signals.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

namespace fs = std::filesystem;

class CacheFolder : public testing::Test {
 protected:
  Serving serve_here(std::vector<std::string> settings = {}) const {
    return serve(std::move(settings), {{"XDG_CACHE_HOME", caches_.string()}});
  }
  fs::path folder(const std::string& worker = "builtin-0") const {
    return caches_ / "bulkhead" / worker;
  }
  void plant(const std::string& worker = "builtin-0") const {
    fs::create_directories(folder(worker) / "ab" / "cd");
    std::ofstream(folder(worker) / "ab" / "cd" / "kernel") << "x";
    ::mkfifo((folder(worker) / "ab" / "cd" / "pipe").c_str(), 0600);
    std::error_code there;
    fs::create_directory_symlink(caches_, folder(worker) / "link", there);
    fs::create_symlink("/dev/tty", folder(worker) / "ab" / "link", there);
    ::chmod((folder(worker) / "ab").c_str(), 0);
  }
  // Returns the folder that the process's arguments name.
  static std::string folder_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::string last;
    for (std::string word; std::getline(file, word, '\0'); last = word) {
      if (last == "--cache" || word == "--no-cache") return word;
    }
    return {};
  }
  bool nothing_is_left() const {
    return std::ranges::none_of(fs::directory_iterator(caches_ / "bulkhead"), [](const auto& each) {
      return each.path().filename().string().starts_with(".dropped-");
    });
  }

  const TemporaryFolder temporary_{"caches"};
  const fs::path& caches_ = temporary_.path();
};

TEST_F(CacheFolder, OfAProcessThatBrokeARuleIsGivenToNobody) {
  const Serving serving = serve_here();
  plant("another-0");
  // The seal does not cover files from after the first request, whatever the process died of.
  for (const char* order : {"kill@3", "exit@3", "device@3"}) {
    plant();
    expect_whole(serving.complete(stream_of(order, 10)).body, 10);
    EXPECT_FALSE(fs::exists(folder() / "ab")) << order;
    EXPECT_FALSE(fs::is_symlink(folder() / "link")) << order;
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
  EXPECT_TRUE(serving.daemon->says("its cache folder " + folder().string() + " is wiped"))
      << serving.daemon->log();
}

TEST_F(CacheFolder, OfAColdRestartIsEmpty) {
  const Serving serving = serve_here({"isolation.standby=1"});
  const auto restart = [&](const char* body) {
    const pid_t before = pid_in(serving, "builtin-0", "ready");
    plant();
    EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", body).status, 202);
    EXPECT_TRUE(Serving::eventually([&] {
      const json worker = find(serving, "builtin-0");
      return worker["state"] == "ready" && worker["pid"] != before;
    }));
  };
  const std::string wiped = "is wiped: a cold start was asked for";
  restart("{}");
  EXPECT_EQ(serving.daemon->log().find(wiped), std::string::npos);
  restart(R"({"cold": true})");
  EXPECT_TRUE(serving.daemon->says(wiped));
  EXPECT_FALSE(fs::exists(folder()));
  // A spare has a name of its own until its process has ended, so the next one may have another.
  std::string name;
  ASSERT_TRUE(Serving::eventually([&] {
    const json all = workers(serving);
    if (all.size() != 2 || all[1]["state"] != "standby") return false;
    name = all[1]["name"];
    return true;
  })) << workers(serving);
  const pid_t spare = pid_in(serving, name, "standby");
  EXPECT_EQ(serving.post("/v1/workers/" + name + "/restart", R"({"cold": true})").status, 409);
  EXPECT_EQ(pid_in(serving, name, "standby"), spare);
}

// The daemon checked the folder when the first process died. The spare that took over wrote its files
// after that check.
TEST_F(CacheFolder, WhatAPromotedSpareWroteIsGivenToNobody) {
  const Serving serving = serve_here({"isolation.standby=1"});
  pid_in(serving, "builtin-0.standby-0", "standby");
  expect_whole(serving.complete(stream_of("kill@3", 10)).body, 10);
  ASSERT_EQ(find(serving, "builtin-0")["takeovers"], 1);
  ASSERT_TRUE(Serving::eventually([&] {
    const json all = workers(serving);
    return std::ranges::any_of(all, [](const json& each) { return each["state"] == "standby"; });
  }));
  const pid_t promoted = pid_in(serving, "builtin-0", "ready");
  plant();
  EXPECT_EQ(serving.post("/v1/workers/builtin-0/restart", "{}").status, 202);
  ASSERT_TRUE(Serving::eventually([&] {
    const json worker = find(serving, "builtin-0");
    return worker["state"] == "ready" && worker["pid"] != promoted;
  }));
  EXPECT_FALSE(fs::exists(folder() / "ab"));
}

// The spare may have loaded what the process that broke a rule wrote.
TEST_F(CacheFolder, ASpareThatMayHaveReadItDoesNotTakeOver) {
  const Serving serving = serve_here({"isolation.standby=1"});
  const pid_t spare = pid_in(serving, "builtin-0.standby-0", "standby");
  plant();
  expect_whole(serving.complete(stream_of("garbage@3", 10)).body, 10);
  EXPECT_EQ(find(serving, "builtin-0")["takeovers"], 0);
  EXPECT_FALSE(fs::exists(folder()));
  // The daemon has killed the spare, but the kernel may still be ending it.
  EXPECT_TRUE(Serving::eventually([&] { return send_signal(spare, 0) != 0; }));
  // It is replaced.
  ASSERT_TRUE(Serving::eventually([&] {
    const json all = workers(serving);
    return std::ranges::any_of(all, [](const json& each) { return each["state"] == "standby"; });
  }));
}

// The spare wrote to the same folder. The serving process continues; the other spare ends, too, and both spares are
// replaced.
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
  EXPECT_FALSE(fs::exists(folder() / "ab")) << "it has no seal";
}

TEST_F(CacheFolder, ThatIsTooLargeEndsItsWorker) {
  const Serving serving = serve_here({"isolation.cache_mb=1"});
  const pid_t before = pid_in(serving, "builtin-0", "ready");
  fs::create_directories(folder());
  std::ofstream(folder() / "large") << std::string(3 << 20, 'x');
  ASSERT_TRUE(Serving::eventually([&] {
    const json worker = find(serving, "builtin-0");
    return worker["state"] == "ready" && worker["pid"] != before;
  }));
  EXPECT_THAT(find(serving, "builtin-0")["last_death"].get<std::string>(),
              testing::HasSubstr("cache folder: more than 1 MiB (isolation.cache_mb)"));
  EXPECT_FALSE(fs::exists(folder() / "large"));
}

// Two daemons of one user have workers of the same name: the second daemon's worker has its own folder.
TEST_F(CacheFolder, OfOneDaemonIsNotWipedByAnother) {
  auto first = std::make_unique<Serving>(serve_here());
  const Serving second = serve_here();
  EXPECT_EQ(folder_of(pid_in(*first, "builtin-0", "ready")), folder());
  EXPECT_EQ(folder_of(pid_in(second, "builtin-0", "ready")), folder("builtin-0%1"));
  plant();
  plant("builtin-0%1");
  expect_whole(second.complete(stream_of("garbage@3", 10)).body, 10);
  EXPECT_FALSE(fs::exists(folder("builtin-0%1")));
  EXPECT_TRUE(fs::exists(folder()));
  expect_whole(first->complete(stream_of("x", 5)).body, 5);
  EXPECT_EQ(first->worker()["restarts"], 0);
  // However this daemon ends, the next daemon gets its folder.
  first->daemon->signal(SIGKILL);
  EXPECT_EQ(first->daemon->wait_for_exit(), -SIGKILL);
  const Serving third = serve_here();
  EXPECT_EQ(folder_of(pid_in(third, "builtin-0", "ready")), folder());
}

TEST_F(CacheFolder, OfAnyNameIsWipedAndNoOther) {
  const std::string name(250, 'n');
  const std::vector<std::string> settings = {"models.0.path=builtin", "models.0.name=" + name,
                                             "models.1.path=builtin", "models.1.name=.dropped"};
  auto serving = std::make_unique<Serving>(serve_here(settings));
  const std::string long_one = folder_of(pid_in(*serving, name + "-0", "ready"));
  const std::string odd_one = folder_of(pid_in(*serving, ".dropped-0", "ready"));
  plant(fs::path(long_one).filename().string());
  plant(fs::path(odd_one).filename().string());
  ASSERT_TRUE(fs::exists(long_one) && fs::exists(odd_one));
  json request = stream_of("garbage@3", 10);
  request["model"] = name;
  expect_whole(serving->complete(request).body, 10);
  EXPECT_FALSE(fs::exists(long_one));
  EXPECT_EQ(folder_of(pid_in(*serving, name + "-0", "ready")), long_one);
  EXPECT_TRUE(fs::exists(odd_one));
  EXPECT_TRUE(Serving::eventually([&] { return nothing_is_left(); }));
  // The next daemon must not delete it as the remains of another one.
  serving.reset();
  serving = std::make_unique<Serving>(serve_here(settings));
  EXPECT_EQ(folder_of(pid_in(*serving, ".dropped-0", "ready")), odd_one);
  plant(fs::path(odd_one).filename().string());
  request["model"] = ".dropped";
  expect_whole(serving->complete(request).body, 10);
  EXPECT_FALSE(fs::exists(odd_one));
  EXPECT_TRUE(Serving::eventually([&] { return nothing_is_left(); }));
}

TEST_F(CacheFolder, IsDoneWithoutWhereItCantBeTakenAway) {
  const Serving serving = serve_here();
  plant();
  // Takes all names that the folder could be moved to.
  for (int i = 0; i < 100; ++i)
    fs::create_directories(folder(".dropped-builtin-0-" + std::to_string(i)) / "x");
  expect_whole(serving.complete(stream_of("garbage@3", 10)).body, 10);
  EXPECT_EQ(folder_of(pid_in(serving, "builtin-0", "ready")), "--no-cache");
  EXPECT_TRUE(serving.daemon->says("can't be taken out of the way"));
}

// If others made that link, or may write to the folder, they would choose what a driver runs.
TEST_F(CacheFolder, IsNoLinkAndNobodyElseMayWriteToIt) {
  fs::create_directories(caches_ / "elsewhere");
  std::ofstream(caches_ / "elsewhere" / "kernel") << "x";
  fs::create_directories(caches_ / "bulkhead");
  fs::create_directory_symlink(caches_ / "elsewhere", folder());
  {
    const Serving serving = serve_here();
    EXPECT_TRUE(serving.daemon->says("is not used, and is deleted: it is a link"));
    EXPECT_FALSE(fs::is_symlink(folder()));
    EXPECT_TRUE(fs::exists(caches_ / "elsewhere" / "kernel"));
    EXPECT_TRUE(Serving::eventually([&] { return nothing_is_left(); }));
  }
  fs::create_directories(folder());
  std::ofstream(folder() / "kernel") << "x";
  ::chmod(folder().c_str(), 0777);
  const Serving serving = serve_here();
  EXPECT_TRUE(serving.daemon->says("others may write to it (mode 0777)"));
  EXPECT_FALSE(fs::exists(folder() / "kernel"));
}

TEST_F(CacheFolder, IsNotMadeWhereOthersMayWrite) {
  fs::create_directories(caches_ / "bulkhead");
  ::chmod((caches_ / "bulkhead").c_str(), 0777);
  const Serving serving = serve_here();
  EXPECT_TRUE(serving.daemon->says("is no place for its cache folder: others may write to it"));
  EXPECT_EQ(folder_of(pid_in(serving, "builtin-0", "ready")), "--no-cache");
}

TEST_F(CacheFolder, IsTheUsersAloneWhateverTheUmask) {
  for (const mode_t mask : {mode_t{0}, mode_t{0777}}) {
    {
      const mode_t before = ::umask(mask);
      const Serving serving = serve_here();
      ::umask(before);
      struct stat home {};
      ASSERT_EQ(::stat((caches_ / "bulkhead").c_str(), &home), 0);
      EXPECT_EQ(home.st_mode & 07777, mode_t{0700});
    }
    // Now the daemon and its workers have ended, so none of them writes into the folder.
    fs::remove_all(caches_ / "bulkhead");
  }
}

}  // namespace
}  // namespace bulkhead::test

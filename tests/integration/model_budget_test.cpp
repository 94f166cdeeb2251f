// Models that share a bound on memory (server.device_memory_mb): which of them is unloaded, when a failed one is tried
// again, and what is refused.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "tests/integration/run_time_models.hpp"

namespace bulkhead::test {
namespace {

TEST_F(RunTimeModels, ABudgetForTwoOfThreeServesAllOfThem) {
  const std::vector<std::string> names = {"one", "two", "three"};
  const Serving serving = serve(models(names, {"server.device_memory_mb=100"}));
  std::atomic<int> failures{0};
  std::vector<std::thread> clients;
  for (unsigned seed = 0; seed < 4; ++seed) {
    clients.emplace_back([&, seed] {
      std::minstd_rand random(seed + 1);
      for (int i = 0; i < 75; ++i) {  // 300 requests in all
        const HttpReply reply = serving.complete(ask(names[random() % 3]));
        if (reply.status == 200) continue;
        ++failures;
        ADD_FAILURE() << reply.status << " " << reply.body;
      }
    });
  }
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    while (!over) {
      const json all = workers(serving);
      const auto running =
          std::ranges::count_if(all, [](const json& worker) { return !worker["pid"].is_null(); });
      EXPECT_LE(running, 2) << all;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  for (std::thread& client : clients)
    client.join();
  over = true;
  watcher.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(serving.metric("bulkhead_model_unloads_total"), 0);
}

// Settings may name one device in several ways.
TEST_F(RunTimeModels, ADeviceHasOneBudgetHoweverItIsNamed) {
  const Serving serving =
      serve(models({"one", "two", "three"}, {"server.device_memory_mb=50", "models.0.device=auto",
                                             "models.1.device=my GPU 0x", "models.2.device=1"}));
  for (const char* name : {"one", "two", "three"})
    EXPECT_EQ(serving.complete(ask(name)).status, 200) << name;
  EXPECT_TRUE(comes_to(serving, "one", "unloaded"));
  EXPECT_EQ(state(serving, "two"), "loaded");
  EXPECT_EQ(state(serving, "three"), "loaded") << "it is on another device";
}

TEST_F(RunTimeModels, NoModelIsUnloadedUnderItsRequests) {
  const Serving serving = serve(models({"one", "two"}, {"server.device_memory_mb=50"}));
  auto running = stream(serving, "one", 300);
  EXPECT_EQ(running->receive_head().status, 200);
  auto other =
      stream(serving, "two", 3);  // this waits, but the running request does not wait for it
  expect_whole(rest_of(*running), 300);
  EXPECT_EQ(other->receive_head().status, 200);
  expect_whole(rest_of(*other), 3);
  EXPECT_EQ(find(serving, "one-0")["state"], "unloaded");
  EXPECT_EQ(find(serving, "one-0")["last_death"], nullptr);
}

TEST_F(RunTimeModels, ModelsThatAreWantedAtOnceTakeTurns) {
  const Serving serving = serve(models({"one", "two"}, {"server.device_memory_mb=50"}));
  std::vector<std::thread> clients;
  std::atomic<bool> over{false};
  std::atomic<int> answers[2] = {0, 0};
  const auto began = std::chrono::steady_clock::now();
  for (const std::size_t model : {0U, 0U, 1U, 1U}) {
    clients.emplace_back([&, model] {
      while (!over) {
        EXPECT_EQ(serving.complete(ask(model == 0 ? "one" : "two")).status, 200);
        ++answers[model];
      }
    });
  }
  EXPECT_TRUE(Serving::eventually([&] { return answers[0] > 200 && answers[1] > 200; }));
  const double loads = serving.metric("bulkhead_model_loads_total");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  over = true;
  for (std::thread& client : clients)
    client.join();
  // Each turn serves all requests that come during it, however many they are, and lasts at least 0.2 s.
  EXPECT_LE(loads, took.count() / 0.2 + 2);
}

TEST_F(RunTimeModels, AModelThatCanNeverFitIsRefused) {
  const Serving serving = serve(models({"one"}, {"server.device_memory_mb=30"}));
  const HttpReply reply = serving.complete(ask("one"));
  EXPECT_EQ(reply.status, 409);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "model_too_large");
  EXPECT_NE(reply.body.find("server.device_memory_mb"), std::string::npos) << reply.body;
  EXPECT_EQ(act(serving, "load", "one").status, 409);
  EXPECT_EQ(serving.get("/health").status, 200);
}

std::size_t tries_without_room(const Serving& serving) {
  const std::string log = serving.daemon->log();
  std::size_t count = 0;
  for (std::size_t at = 0; (at = log.find("is not tried again now", at)) != std::string::npos; ++at)
    ++count;
  return count;
}

TEST_F(RunTimeModels, AFailedModelIsTriedAgainOnlyWhenThereIsRoom) {
  for (const std::string trigger : {"by itself", "load", "restart"}) {
    SCOPED_TRACE(trigger);
    std::ofstream(folder_ / "broken.gguf") << "broken\n";
    std::filesystem::resize_file(folder_ / "broken.gguf", std::uintmax_t{40} << 20);
    const std::string after_s = trigger == "by itself" ? "1" : "0";
    const Serving serving = serve(models(
        {"one", "broken"}, {"server.device_memory_mb=50", "isolation.retry_failed_s=" + after_s}));
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    EXPECT_TRUE(comes_to(serving, "broken", "failed"));
    auto running = never_ending(serving, "one");
    make("broken.gguf");
    if (trigger != "by itself") {
      const HttpReply reply = trigger == "load" ? act(serving, "load", "broken")
                                                : serving.post("/v1/workers/broken-0/restart", "");
      EXPECT_EQ(reply.status, 202) << reply.body;
    }
    if (trigger == "by itself") {
      // The model may fail again, so the daemon unloads no idle model for it.
      running.reset();
      EXPECT_TRUE(
          Serving::eventually([&] { return find(serving, "one-0")["outstanding_requests"] == 0; }));
      const std::size_t before = tries_without_room(serving);
      EXPECT_TRUE(Serving::eventually([&] { return tries_without_room(serving) > before; }));
      EXPECT_EQ(state(serving, "one"), "loaded");
      EXPECT_EQ(state(serving, "broken"), "failed");
      EXPECT_EQ(act(serving, "unload", "one").status, 202);
    } else {
      EXPECT_TRUE(comes_to(serving, "broken", "waiting"));
      EXPECT_TRUE(find(serving, "broken-0")["pid"].is_null());
      running.reset();
    }
    EXPECT_TRUE(comes_to(serving, "broken", "loaded"));
    EXPECT_EQ(state(serving, "one"), "unloaded");
  }
}

// A file may still be being copied when a client asks for the model.
TEST_F(RunTimeModels, AFailedModelIsLoadedOnceItsFileHasChanged) {
  for (const char* bound : {"server.device_memory_mb=50", "server.device_memory_mb=0"}) {
    SCOPED_TRACE(bound);
    std::ofstream(folder_ / "broken.gguf") << "broken\n";
    const Serving serving = serve(models({"one", "broken"}, {bound, "isolation.retry_failed_s=0"}));
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    EXPECT_EQ(serving.complete(ask("one")).status, 200);
    const auto tries = [&] { return find(serving, "broken-0")["restarts"].get<int>(); };
    const int before = tries();
    EXPECT_EQ(serving.complete(ask("broken")).status, 503);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(tries(), before) << "the file has not changed";
    EXPECT_EQ(state(serving, "one"), "loaded");
    make("broken.gguf");
    EXPECT_TRUE(Serving::eventually([&] { return serving.complete(ask("broken")).status == 200; }))
        << serving.daemon->log();
  }
}

TEST_F(RunTimeModels, WhatAKvCacheHasGrownByCountsInTheBudget) {
  for (const bool grows : {false, true}) {
    const Serving serving = serve(models({"one", "two"}, {"server.device_memory_mb=100"}));
    EXPECT_EQ(serving.complete(ask("one", grows ? "grows@40" : "x")).status, 200);
    EXPECT_EQ(serving.complete(ask("two")).status, 200);
    EXPECT_EQ(state(serving, "one"), grows ? "unloaded" : "loaded");
    EXPECT_EQ(serving.complete(ask("one")).status, 200) << "it begins with less again";
  }
}

TEST_F(RunTimeModels, SparesCountInTheBudget) {
  const Serving serving =
      serve(models({"one", "two"}, {"server.device_memory_mb=100", "isolation.standby=1"}));
  EXPECT_EQ(serving.complete(ask("one")).status, 200);
  EXPECT_EQ(serving.complete(ask("two")).status, 200);
  EXPECT_EQ(state(serving, "one"), "unloaded");
  const Serving smaller =
      serve(models({"one"}, {"server.device_memory_mb=50", "isolation.standby=1"}));
  const HttpReply refused = act(smaller, "load", "one");
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("The 1 worker(s) of the model one and their spares take about "),
            std::string::npos)
      << refused.body;
}

}  // namespace
}  // namespace bulkhead::test

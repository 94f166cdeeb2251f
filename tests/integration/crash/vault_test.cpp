// What outlives a worker: its successor takes over weights and KV pages, even when the model's file has been deleted.
// Any damage to them causes a cold start, but never a wrong token.
//
// The daemon's descriptors of a vault can be opened under /proc, so the tests change that memory, as a process out of
// control would.
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include "tests/integration/crash/vault_harness.hpp"
#include "tests/support/descriptor_packet.hpp"
#include "worker/vault/directory.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Transport, VaultTransports, testing::Values("shm", "stdio"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(VaultTransports, SuccessorTakesOverWeightsAndPages) {
  start("");
  EXPECT_EQ(vault()["state"], "kept") << vault();
  EXPECT_TRUE(vault()["held"]);
  for (int i = 1; i <= 2; ++i) {
    kill_in_stream();
    EXPECT_EQ(way(), "imported");
    const json figures = vault();
    EXPECT_EQ(figures["state"], "imported") << figures;
    EXPECT_EQ(figures["imports_total"], i);
    EXPECT_GT(figures["pages_adopted"], 1) << figures;
    EXPECT_EQ(figures["drops_total"], 0) << figures;
    std::printf("%s: pause %lld ms; import %.1f, check %.1f, adopt %.2f ms\n", transport(),
                pause_ms_, figures["import_ms"].get<double>(), figures["check_ms"].get<double>(),
                figures["adopt_ms"].get<double>());
  }
  EXPECT_EQ(serving_.metric("bulkhead_worker_draws_below_accepted_total"), 0);
  // The pages were found, not computed; at most the last pages of prompt and answer were computed.
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving_.metric("bulkhead_worker_prefix_cache_hit_tokens_total") > 0; }));
}

TEST_F(Vault, ModelFileDeletedAfterTheStart) {
  for (const char* const fixture : {"tiny-llama-Q4_0.gguf", "tiny-qwen2-Q8_0.gguf"}) {
    SCOPED_TRACE(fixture);
    const std::string model = copy_of(fixture);
    if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
    start(model);
    fs::remove(model);
    kill_in_stream();
    EXPECT_EQ(vault()["state"], "imported");
    EXPECT_GT(vault()["pages_adopted"], 1);
    // The tokenizer, too, comes from the deleted file.
    const HttpReply tokens = serving_.post("/tokenize", R"({"content": "once"})");
    EXPECT_EQ(tokens.status, 200) << tokens.body;
    EXPECT_EQ(serving_.metric("bulkhead_worker_draws_below_accepted_total"), 0);
    // A restart by request has no other file to load either.
    restart();
    EXPECT_EQ(vault()["state"], "imported") << vault();
    EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
  }
}

TEST_F(Vault, StatesThatLayersCarryAreTakenOverWithThePages) {
  const std::string model = copy_of("tiny-qwen35moe-Q8_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model);
  kill_in_stream();
  EXPECT_EQ(way(), "imported");
  EXPECT_GT(vault()["pages_adopted"], 1);
  // At least one page of the prompt and half of the answer is found; without a saved state that would be useless.
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving_.metric("bulkhead_worker_prefix_cache_hit_tokens_total") >= 32; }));
  EXPECT_GT(serving_.metric("bulkhead_worker_state_snapshots"), 0);
  // Nothing is saved, so the prompt is read again.
  start(model, {"engine.prefix_cache=false"});
  kill_in_stream();
}

TEST_F(Vault, SixteenStreamsGoOnWithTheirPages) {
  start("");
  std::vector<json> requests;
  std::vector<Heard> undisturbed;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(
        request_of(i % 2 == 1, 28, "Tale " + std::to_string(i) + ": there was a very long", i));
    undisturbed.push_back(stream(serving_.port, requests.back()).heard);
  }
  const pid_t victim = serving_worker(serving_);
  std::vector<std::future<Timed>> running;
  for (int i = 0; i < 16; ++i) {
    running.push_back(std::async(std::launch::async, [&, i] {
      return stream(serving_.port, requests[static_cast<std::size_t>(i)], i == 3 ? 14 : -1,
                    [&] { send_signal(victim, SIGKILL); });
    }));
  }
  for (std::size_t i = 0; i < running.size(); ++i)
    EXPECT_EQ(running[i].get().heard, undisturbed[i]);
  EXPECT_EQ(way(), "imported");
  EXPECT_GT(vault()["pages_adopted"], 16);
}

TEST_P(VaultTransports, RestartOnRequestTakesItOver) {
  start("");
  restart();
  EXPECT_EQ(vault()["state"], "imported") << vault();
  EXPECT_GT(vault()["pages_adopted"], 1);
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
}

TEST_F(Vault, AColdRestartTakesNothingOver) {
  start("");
  restart(R"({"cold": true})");
  EXPECT_EQ(vault()["state"], "kept") << vault();
  EXPECT_EQ(vault()["pages_adopted"], 0) << vault();
  EXPECT_EQ(vault()["last_drop"], "a cold start was asked for");
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
  // The next restart is not cold again.
  restart();
  EXPECT_EQ(vault()["state"], "imported") << vault();
  EXPECT_GT(vault()["pages_adopted"], 1);
  const std::string path =
      "/v1/workers/" + serving_.worker()["name"].get<std::string>() + "/restart";
  for (const char* const body : {R"({"cold": 1})", R"({"warm": true})", "[]", "{"})
    EXPECT_EQ(serving_.post(path, body).status, 400) << body;
}

TEST_F(Vault, ChangedModelFileIsLoadedAtARestartAndNotAtADeath) {
  const std::string model = copy_of("tiny-llama-Q4_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model);
  replace_by("tiny-llama-Q8_0.gguf", model);
  kill_in_stream();
  EXPECT_EQ(vault()["state"], "imported");
  restart();
  EXPECT_EQ(vault()["state"], "kept") << vault();
  EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("the model file has changed"));
  EXPECT_NE(stream(serving_.port, request_).heard, undisturbed_.heard);
}

// The streams that the restart waits for end with the file with which they began.
TEST_F(Vault, AChangedModelFileIsLoadedThoughTheProcessDiesInTheRestart) {
  const std::string model = copy_of("tiny-llama-Q4_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model);
  replace_by("tiny-llama-Q8_0.gguf", model);
  const std::string name = serving_.worker()["name"];
  kill_in_stream(
      [&] { EXPECT_EQ(serving_.post("/v1/workers/" + name + "/restart", "{}").status, 202); });
  ASSERT_TRUE(serves_a_changed_file()) << serving_.worker() << serving_.daemon->log();
  EXPECT_NE(stream(serving_.port, request_).heard, undisturbed_.heard);
}

TEST_F(Vault, AChangedModelFileIsLoadedAtTheRestartOfADrainedWorkerThatDied) {
  const std::string model = copy_of("tiny-llama-Q4_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model);
  const json worker = serving_.worker();
  const std::string path = "/v1/workers/" + worker["name"].get<std::string>();
  EXPECT_EQ(serving_.post(path + "/drain", "{}").status, 202);
  ASSERT_TRUE(Serving::eventually([&] { return serving_.worker()["state"] == "drained"; }));
  send_signal(worker["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(Serving::eventually([&] { return serving_.worker()["last_death"].is_string(); }));
  replace_by("tiny-llama-Q8_0.gguf", model);
  EXPECT_EQ(serving_.post(path + "/restart", "{}").status, 202);
  ASSERT_TRUE(serves_a_changed_file()) << serving_.worker() << serving_.daemon->log();
}

// The same file with other content, but with the same size and the same time of content.
TEST_F(Vault, AFileThatWasEditedInPlaceIsLoadedAtARestartAndNotAtADeath) {
  const std::string model = copy_of("tiny-llama-Q4_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model);
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(model.c_str(), &before), 0);
  {
    std::fstream file(model, std::ios::in | std::ios::out | std::ios::binary);
    // In the last tensor's data.
    file.seekp(-512, std::ios::end);
    file << std::string(256, '\x35');
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, model.c_str(), times, 0), 0);
  ASSERT_EQ(::stat(model.c_str(), &after), 0);
  ASSERT_EQ(before.st_size, after.st_size);
  ASSERT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  kill_in_stream();
  EXPECT_EQ(vault()["state"], "imported");
  restart();
  EXPECT_EQ(vault()["state"], "kept") << vault();
  EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("the model file has changed"));
  restart();
  EXPECT_EQ(vault()["state"], "imported") << "the new content is known now: " << vault();
}

TEST_F(Vault, SwitchedOffNothingIsKept) {
  start("", {"isolation.vault=false"});
  EXPECT_FALSE(HeldMemory(serving_.daemon->pid(), "bulkhead vault").valid());
  kill_in_stream();
  EXPECT_EQ(way(), "loaded");
  EXPECT_EQ(vault()["state"], "off");
  EXPECT_EQ(vault()["imports_total"], 0);
}

TEST_F(Vault, WhatIsOfNoUseToASpareIsNotGivenToASuccessor) {
  start("", {"isolation.standby=1"});
  const json before = spare_with("imported");
  {
    const HeldMemory directory(serving_.daemon->pid(), "bulkhead vault");
    ASSERT_TRUE(directory.valid());
    directory.bytes()[64] ^= std::byte{0x10};
  }
  const std::string name = before["name"];
  EXPECT_EQ(serving_.post("/v1/workers/" + name + "/restart", "{}").status, 202);
  const json after = spare_with("off");  // it has loaded the model itself
  EXPECT_EQ(after["last_death_cause"], "asked") << after;
  EXPECT_EQ(vault()["drops_total"], 1);
  EXPECT_FALSE(vault()["held"]);
  EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("a spare: "));
  kill_in_stream();
  EXPECT_EQ(way(), "standby");
}

TEST_F(Vault, WeightsThatChangeUnderASpareAreNoticedWhenItTakesOver) {
  start("", {"isolation.standby=1"});
  spare_with("imported");
  bool there = true;
  kill_in_stream([&] { there = flip_a_weight(); });
  if (!there) GTEST_SKIP() << "this device's memory is no memory file";
  EXPECT_EQ(way(), "loaded") << vault();
  EXPECT_EQ(vault()["drops_total"], 1);
  EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("checksums differ"));
}

TEST_F(Vault, WithoutThePrefixCacheWeightsAloneAreTakenOver) {
  start("", {"engine.prefix_cache=false"});
  kill_in_stream();
  EXPECT_EQ(vault()["state"], "imported") << vault();
  EXPECT_EQ(vault()["pages_adopted"], 0);
}

TEST_F(Vault, TheBaselineTakesItOverToo) {
  start("", {"gpu_optimizations.enabled=false"});
  kill_in_stream();
  EXPECT_EQ(vault()["state"], "imported") << vault();
  EXPECT_GT(vault()["pages_adopted"], 0);
}

// Descriptors that other processes of the same user are sending count against what a worker may send, unless the worker
// is a user of its own. This worker may send fewer than others, so that the test does not hinder them.
TEST_P(VaultTransports, IsOfferedOnceThereIsRoomForItsDescriptors) {
  const fs::path worker = folder_ / "worker";
  std::ofstream(worker) << "#!/bin/sh\nulimit -n 100\nexec " << BULKHEAD_BIN_DIR
                        << "/bulkhead-worker \"$@\"\n";
  fs::permissions(worker, fs::perms::owner_all);
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd from(sockets[0]), to(sockets[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  constexpr int kOnTheWay = 120;
  const std::vector<int> same(kOnTheWay, nothing.get());
  ASSERT_EQ(send_packet(from.get(), "x", 1, same), 1) << std::strerror(errno);

  start("", {"isolation.worker_user=off"},
        {{"BULKHEAD_WORKER", worker.string()}});  // and it serves
  EXPECT_EQ(vault_now()["state"], "waiting") << vault_now();
  EXPECT_THAT(vault_now()["reason"].get<std::string>(), HasSubstr("on the way"));
  EXPECT_FALSE(vault_now()["held"]);
  kill_in_stream();
  EXPECT_EQ(way(), "loaded");
  EXPECT_EQ(vault_now()["state"], "waiting") << vault_now();
  EXPECT_EQ(vault_now()["drops_total"], 0) << vault_now();
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);

  to.reset();
  from.reset();
  EXPECT_EQ(vault()["state"], "kept") << vault();
  EXPECT_TRUE(vault()["held"]);
  EXPECT_TRUE(vault()["reason"].is_null()) << vault();
  kill_in_stream();
  EXPECT_EQ(way(), "imported");
  // These include pages that were full before the vault was offered.
  EXPECT_GT(vault()["pages_adopted"], 1) << vault();
}

// A model is added, replaced by another file, and removed, each by SIGHUP, the last during a stream whose worker dies
// on the way. Each model has its own vault, and nothing of it is left afterwards.
TEST_F(Vault, OfAModelThatIsReplacedOrTakenOutGoesWithIt) {
  for (const char* const name : {"a.gguf", "b.gguf"})
    fs::copy_file(BULKHEAD_SOURCE_DIR "/worker/builtin/builtin.gguf", folder_ / name);
  const auto write = [&](const std::string& other) {
    std::ofstream file(folder_ / "config.yaml");
    file << "models:\n  - {name: stays, path: builtin}\n";
    if (!other.empty()) file << "  - {name: other, path: " << (folder_ / other).string() << "}\n";
  };
  write("");
  serving_ = serve_model("", {std::string("ipc.transport=") + transport()}, {},
                         {"--config", (folder_ / "config.yaml").string()}, {"stays-0", "other-0"});
  const pid_t daemon = serving_.daemon->pid();
  const auto workers = [&] { return json::parse(serving_.get("/v1/workers").body); };
  const auto reload = [&](const std::string& other, const std::function<bool()>& done) {
    write(other);
    serving_.daemon->signal(SIGHUP);
    ASSERT_TRUE(Serving::eventually(done)) << workers() << serving_.daemon->log();
  };
  const auto other_serves = [&](const json& not_this_pid) {
    const json all = workers();
    return all.size() == 2 && all[1]["state"] == "ready" && all[1]["pid"] != not_this_pid &&
           all[1]["vault"]["held"] == true;
  };
  request_["model"] = "other";
  std::size_t alone = 0;
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    reload("a.gguf", [&] { return other_serves(nullptr); });
    const Timed undisturbed = stream(serving_.port, request_);
    ASSERT_TRUE(undisturbed.heard.done);
    const json first = workers()[1];
    reload("b.gguf", [&] { return other_serves(first["pid"]); });
    const json second = workers()[1];
    EXPECT_EQ(second["vault"]["state"], "kept") << "it took over another file's memory";
    const Timed killed = stream(serving_.port, request_, kTokens / 2, [&] {
      reload("", [&] { return serving_.get("/v1/models/other").status == 404; });
      send_signal(second["pid"].get<pid_t>(), SIGKILL);
    });
    EXPECT_EQ(killed.heard, undisturbed.heard) << serving_.daemon->log();
    ASSERT_TRUE(Serving::eventually([&] { return workers().size() == 1; })) << workers();
    ASSERT_TRUE(Serving::eventually([&] { return serving_.metric("bulkhead_connections") == 1; }));
    if (round == 0) {  // the daemon keeps some memory from then on
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      alone = descriptors_of(daemon);
    }
    EXPECT_TRUE(Serving::eventually([&] { return descriptors_of(daemon) <= alone; }))
        << alone << " descriptors, now " << descriptors_of(daemon);
  }
  EXPECT_EQ(workers()[0]["restarts"], 0);
  EXPECT_TRUE(workers()[0]["vault"]["held"]);
}

// ---- damage ----

TEST_F(Vault, EachDamageOfTheDirectoryMeansAColdStart) {
  start("");
  // The magic and a checksum's place. Directory.EveryChangedByteOfTheDescriptionIsSeen has all others.
  int drops = 0;
  for (const std::size_t at : {0u, 140u}) {
    SCOPED_TRACE("byte " + std::to_string(at));
    kill_in_stream([&] {
      const HeldMemory directory(serving_.daemon->pid(), "bulkhead vault");
      ASSERT_TRUE(directory.valid());
      directory.bytes()[at] ^= std::byte{0x10};
    });
    EXPECT_EQ(way(), "loaded");
    EXPECT_EQ(vault()["state"], "kept");
    EXPECT_EQ(vault()["drops_total"], ++drops);
    EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("the vault's directory"));
  }
}

TEST_F(Vault, OneBitOfTheWeightsMeansAColdStart) {
  start("");
  bool there = true;
  kill_in_stream([&] { there = flip_a_weight(); });
  if (!there) GTEST_SKIP() << "this device's memory is no memory file";
  EXPECT_EQ(way(), "loaded") << vault();
  EXPECT_THAT(vault()["last_drop"].get<std::string>(), HasSubstr("checksums differ"));
}

std::uint64_t first_entry(const HeldMemory& directory) {
  std::uint64_t offset = 0;
  std::memcpy(&offset, directory.bytes().data() + 32, sizeof offset);
  return offset;
}

TEST_F(Vault, TornEntriesAreNotBelievedAndTheOthersAre) {
  start("");
  std::size_t whole = 0, torn = 0;
  kill_in_stream([&] {
    const HeldMemory directory(serving_.daemon->pid(), "bulkhead vault");
    ASSERT_TRUE(directory.valid());
    const auto opened = vault::Directory::open(directory.fd());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto pages = (*opened)->entries();
    whole = pages.pages.size();
    // Leaves the entry as a writer does that is killed between its first store and its last.
    const std::size_t stride = 32 + std::size_t{(*opened)->description().page_tokens} * 4;
    for (std::size_t i = whole / 2; i < whole; ++i, ++torn)
      directory.bytes()[first_entry(directory) + pages.pages[i].page * stride] |= std::byte{1};
  });
  EXPECT_GT(torn, 0u);
  EXPECT_EQ(way(), "imported");
  EXPECT_GT(vault()["pages_adopted"], 0) << vault();
  EXPECT_LT(vault()["pages_adopted"], whole) << vault();
}

TEST_F(Vault, AnEntryThatIsWholeAndWrongCastsDoubtOnAllPages) {
  start("");
  kill_in_stream([&] {
    const HeldMemory directory(serving_.daemon->pid(), "bulkhead vault");
    ASSERT_TRUE(directory.valid());
    const auto opened = vault::Directory::open(directory.fd());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto pages = (*opened)->entries();
    ASSERT_FALSE(pages.pages.empty());
    const std::size_t stride = 32 + std::size_t{(*opened)->description().page_tokens} * 4;
    // Writes another token that is in range.
    directory.bytes()[first_entry(directory) + pages.pages[0].page * stride + 36] ^= std::byte{1};
  });
  EXPECT_EQ(way(), "imported");
  EXPECT_EQ(vault()["pages_adopted"], 0) << vault();
  EXPECT_THAT(vault()["reason"].get<std::string>(), HasSubstr("not whole"));
  // From here on it is undamaged again.
  kill_in_stream();
  EXPECT_GT(vault()["pages_adopted"], 0) << vault();
}

TEST_P(VaultTransports, ThreeDeathsLeakNoDescriptor) {
  start("");
  kill_in_stream();
  const pid_t daemon = serving_.daemon->pid();
  const std::size_t before = descriptors_of(daemon);
  for (int i = 0; i < 3; ++i) {
    send_signal(serving_worker(serving_), SIGKILL);
    ASSERT_TRUE(Serving::eventually([&] { return serving_.worker()["restarts"] == i + 2; }));
    // A death without a token after another such death has to wait, so this death comes after a token.
    EXPECT_EQ(serving_.complete({{"prompt", "a"}, {"max_tokens", 1}, {"ignore_eos", true}}).status,
              200);
  }
  serving_worker(serving_);
  EXPECT_TRUE(Serving::eventually([&] { return descriptors_of(daemon) <= before; }))
      << before << " before, " << descriptors_of(daemon) << " now";
  EXPECT_EQ(vault()["imports_total"], 4);
  EXPECT_EQ(vault()["drops_total"], 0);
}

}  // namespace
}  // namespace bulkhead::test

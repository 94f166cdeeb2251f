// A real worker's memory changes, or its outputs are not finite numbers: no client gets a token that depends on
// either. As in vault_test.cpp, the tests change the memory that the daemon's descriptors refer to.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <thread>
#include <vector>

#include "tests/integration/crash/vault_harness.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

constexpr const char* kDamaged = "bulkhead_worker_kv_pages_damaged_total";
constexpr const char* kNotFinite = "bulkhead_worker_nonfinite_outputs_total";

class SpoiltMemory : public Vault {
 protected:
  // Kills the worker in a stream, and spoils its memory before a successor has it. Returns false if the device's memory
  // is no memory file.
  bool kill_and_spoil(const std::function<bool()>& spoil) {
    bool there = true;
    kill_in_stream([&] {
      stop(serving_worker(serving_));  // it would compute with the spoilt memory
      there = spoil();
    });
    if (there) {
      EXPECT_EQ(way(), "imported") << "the weights are what they were: " << vault();
    }
    return there;
  }
  // The successor found what was spoilt, and leaves that memory out.
  void expect_found() const {
    EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kDamaged) > 0; }));
    EXPECT_EQ(serving_.metric("bulkhead_worker_kv_pages_quarantined"), serving_.metric(kDamaged));
  }

  // The built-in model with one infinite weight in its last norm.
  std::string model_with_infinity() const {
    std::ifstream file(BULKHEAD_SOURCE_DIR "/worker/builtin/builtin.gguf", std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    const auto model = model::GgufFile::from_memory(bytes, "built-in");
    if (!model.ok()) return {};
    const model::TensorInfo* const norm = (*model)->find_tensor("output_norm.weight");
    if (norm == nullptr || norm->type != model::TensorType::kF32) return {};
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() + (norm->data.data() - bytes.data()) + sizeof(float), &infinity,
                sizeof infinity);
    const std::string path = (folder_ / "infinite.gguf").string();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path;
  }
};

TEST_F(SpoiltMemory, PagesThatAreSpoiltBetweenDeathAndAdoptionAreComputedAnew) {
  start("");
  if (!kill_and_spoil([&] { return flip_pages(); }))
    GTEST_SKIP() << "this device's memory is no memory file";
  EXPECT_EQ(vault()["pages_adopted"], 0) << vault();
  expect_found();
}

TEST_F(SpoiltMemory, PagesThatAreSpoiltWhileTheyWaitAreComputedAnew) {
  start("", {"isolation.check_memory_s=0"});
  ASSERT_TRUE(Serving::eventually(
      [&] { return serving_.metric("bulkhead_worker_kv_pages_summed_total") > 1; }));
  // A page that was compared within the last second is not compared again.
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  if (!flip_pages()) GTEST_SKIP() << "this device's memory is no memory file";
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard) << serving_.daemon->log();
  EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kDamaged) > 0; }));
  EXPECT_GT(serving_.metric("bulkhead_worker_kv_pages_quarantined"), 0);
  EXPECT_EQ(serving_.worker()["restarts"], 0);
}

TEST_F(SpoiltMemory, TheBackgroundFindsSpoiltPagesAndSpoiltWeights) {
  start("", {"isolation.check_memory_s=1"});
  if (!flip_pages()) GTEST_SKIP() << "this device's memory is no memory file";
  // The worker sends its figures only while it has requests.
  EXPECT_TRUE(Serving::eventually([&] {
    serving_.complete({{"prompt", "z"}, {"max_tokens", 1}});
    return serving_.metric(kDamaged) > 0;
  }));
  const pid_t first = serving_worker(serving_);
  ASSERT_TRUE(flip_a_weight());
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = serving_.worker();
    return worker["state"] == "ready" && worker["pid"] != first;
  })) << serving_.worker();
  EXPECT_THAT(serving_.worker()["last_death"].dump(), HasSubstr("no longer what was loaded"));
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
}

TEST_F(SpoiltMemory, StatesThatAreSpoiltBetweenDeathAndAdoptionAreComputedAnew) {
  const std::string model = copy_of("tiny-qwen35moe-Q8_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model, {"isolation.check_memory_s=0"});
  if (!kill_and_spoil([&] { return flip_states(); }))
    GTEST_SKIP() << "this device's memory is no memory file";
  EXPECT_GT(vault()["pages_adopted"], 1) << "the pages are what they were: " << vault();
  EXPECT_TRUE(serving_.daemon->says("saved states that the last process left have changed in memory"))
      << serving_.daemon->log();
  expect_found();
}

TEST_F(SpoiltMemory, StatesThatAreSpoiltWhileTheyWaitAreFoundByTheBackground) {
  const std::string model = copy_of("tiny-qwen35moe-Q8_0.gguf");
  if (model.empty()) GTEST_SKIP() << "no fixtures at " << fixtures();
  start(model, {"isolation.check_memory_s=1"});
  // A state that changes before its checksum is made counts as whole.
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  if (!flip_states()) GTEST_SKIP() << "this device's memory is no memory file";
  // No sequence continues from these states.
  EXPECT_TRUE(Serving::eventually([&] {
    return serving_.daemon->says("saved states have changed in memory");
  })) << serving_.daemon->log();
  const std::string log = serving_.daemon->log();
  EXPECT_EQ(log.find("KV pages have changed in memory"), std::string::npos) << log;
  EXPECT_EQ(stream(serving_.port, request_).heard, undisturbed_.heard);
  EXPECT_GT(serving_.metric(kDamaged), 0);
  EXPECT_EQ(serving_.worker()["restarts"], 0);
}

// ---- outputs that are not finite numbers ----

TEST_F(SpoiltMemory, AnInfiniteWeightFailsRequestsAndGivesNoToken) {
  const std::string model = model_with_infinity();
  ASSERT_FALSE(model.empty());
  serving_ = serve_model(model, {});
  double seen = 0;
  for (const bool sampled : {false, true}) {
    for (const int logprobs : {0, 2}) {
      SCOPED_TRACE(testing::Message() << "sampled " << sampled << ", logprobs " << logprobs);
      json request = request_of(sampled, 4, "Once upon", 7);
      request["stream"] = false;
      if (logprobs == 0) request.erase("logprobs");
      const HttpReply reply = serving_.complete(request);
      EXPECT_EQ(reply.status, 500) << reply.body;
      EXPECT_THAT(reply.body, HasSubstr("not finite numbers"));
      // It is computed twice, because the first time the pages could have been the cause.
      EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kNotFinite) >= seen + 2; }));
      seen = serving_.metric(kNotFinite);
    }
  }
  // Streams have begun when the first output comes, so an event reports the failure.
  const HttpReply streamed = serving_.complete(request_of(false, 4, "Once upon", 7));
  EXPECT_THAT(streamed.body, HasSubstr("not finite numbers"));
  EXPECT_THAT(streamed.body, testing::Not(HasSubstr("token_ids")));
  EXPECT_EQ(serving_.post("/v1/embeddings", R"({"input": "Once"})").status, 500);
  const json worker = serving_.worker();
  EXPECT_EQ(worker["state"], "ready") << "the weights are what was loaded: " << worker;
  EXPECT_EQ(worker["restarts"], 0) << worker;
}

// Pages become not-a-number while a sequence computes with them; no checksum notices that in time.
TEST_F(SpoiltMemory, PagesThatAreNoNumbersUnderAStreamAreComputedAgain) {
  start("", {"isolation.check_memory_s=0", "isolation.heartbeat_timeout_ms=20000"});
  for (const bool sampled : {false, true}) {
    SCOPED_TRACE(sampled);
    request_ = request_of(sampled, kTokens, sampled ? "A long time ago" : "Once there was", 3);
    undisturbed_ = stream(serving_.port, request_);
    const double before = serving_.metric(kNotFinite);
    bool there = true;
    const pid_t worker = serving_worker(serving_);
    const Timed disturbed = stream(serving_.port, request_, kTokens / 2, [&] {
      stop(worker);  // so that nothing is computed again before all pages are damaged
      there = fill_pages(std::byte{0xff});  // halves and floats of these bytes are not numbers
      send_signal(worker, SIGCONT);
    });
    if (!there) GTEST_SKIP() << "this device's memory is no memory file";
    EXPECT_EQ(disturbed.heard, undisturbed_.heard) << serving_.daemon->log();
    EXPECT_TRUE(Serving::eventually([&] { return serving_.metric(kNotFinite) > before; }));
  }
  EXPECT_GE(serving_.metric("bulkhead_worker_requests_computed_again_total"), 2);
  EXPECT_EQ(serving_.worker()["restarts"], 0);
}

}  // namespace
}  // namespace bulkhead::test

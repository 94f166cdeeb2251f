// A prefix that the cache holds changes no bit, for one model of each family: windows free pages, and states are taken
// up where they were saved.
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/fixture_models.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

class FamilyPrefix : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, FamilyPrefix, testing::ValuesIn(kFamilies),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST_P(FamilyPrefix, CachedOnesChangeNoBit) {
  const std::filesystem::path model = fixtures() / "models" / (std::string(GetParam()) + ".gguf");
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "no " << model << "; set BULKHEAD_FIXTURES";
  // A system prompt of two pages and a part, beyond the windows, with two questions; the first one again.
  const auto prompt = [](std::uint32_t question) {
    std::vector<ipc::TokenId> ids;
    for (std::uint32_t i = 0; i < 80; ++i)
      ids.push_back((i * 7919 + (i < 70 ? 0 : question * 104729) + i * i * 31) % 1500);
    return ids;
  };
  constexpr std::uint32_t kQuestions[] = {1, 2, 1};
  std::vector<std::map<RequestId, WorkerAnswer>> answers;
  for (const char* cache : {"engine.prefix_cache=false", "engine.prefix_cache=true"}) {
    SCOPED_TRACE(cache);
    WorkerProcess worker(BULKHEAD_BIN_DIR "/bulkhead-worker",
                         {"--model", model.string(), "--set", "log.level=warn", "--set",
                          "isolation.heartbeat_timeout_ms=100000", "--set", cache},
                         {});
    ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
    std::uint64_t id = 0;
    for (const std::uint32_t question : kQuestions) {
      ipc::Submit submit;
      submit.request = RequestId{++id};
      submit.prompt = prompt(question);
      submit.max_tokens = 5;
      submit.ignore_eos = true;
      submit.logprobs = 3;
      submit.sampling.temperature = 0;
      worker.send(submit);
      ASSERT_TRUE(worker.receive_until([&] { return worker.answer(id).ended(); }));
    }
    answers.push_back(worker.answers);
  }
  std::uint32_t cached = 0;
  for (const auto& [id, without] : answers[0]) {
    SCOPED_TRACE(id.value);
    const WorkerAnswer& with = answers[1].at(id);
    ASSERT_TRUE(with.finished && without.finished);
    EXPECT_EQ(with.tokens, without.tokens);
    EXPECT_EQ(with.logprobs, without.logprobs);
    EXPECT_EQ(without.finished->cached_tokens, 0U);
    cached += with.finished->cached_tokens;
  }
  EXPECT_GE(cached, 64U);
}

}  // namespace
}  // namespace bulkhead::test

// A prefix that the cache holds changes no bit, for one model of each family: windows free pages, and states are taken
// up where they were saved.
#include "tests/support/family_test.hpp"
#include "tests/support/worker_process.hpp"

namespace bulkhead::test {
namespace {

using FamilyPrefix = FamilyTest;
INSTANTIATE_TEST_SUITE_P(Families, FamilyPrefix, testing::ValuesIn(kFamilies), family_test_name);

TEST_P(FamilyPrefix, CachedOnesChangeNoBit) {
  // Two pages and a part, beyond the windows. The second time the cache has the pages.
  std::vector<ipc::TokenId> prompt;
  for (std::uint32_t i = 0; i < 80; ++i)
    prompt.push_back((i * 7919 + i * i * 31) % 1500);
  WorkerProcess worker(BULKHEAD_BIN_DIR "/bulkhead-worker",
                       {"--model", model_.string(), "--set", "log.level=warn", "--set",
                        "isolation.heartbeat_timeout_ms=100000", "--set", "engine.speculation=off"},
                       {});
  ASSERT_TRUE(worker.wait_ready()) << worker.why_not_ready();
  for (const std::uint64_t id : {1U, 2U}) {
    ipc::Submit submit;
    submit.request = RequestId{id};
    submit.prompt = prompt;
    submit.max_tokens = 5;
    submit.ignore_eos = true;
    submit.logprobs = 3;
    submit.sampling.temperature = 0;
    worker.send(submit);
    ASSERT_TRUE(worker.receive_until([&] { return worker.answer(id).ended(); }));
  }
  const WorkerAnswer &without = worker.answer(1), &with = worker.answer(2);
  ASSERT_TRUE(with.finished && without.finished);
  EXPECT_EQ(without.finished->cached_tokens, 0U);
  EXPECT_GE(with.finished->cached_tokens, 64U);
  EXPECT_EQ(with.tokens, without.tokens);
  EXPECT_EQ(with.logprobs, without.logprobs);
}

}  // namespace
}  // namespace bulkhead::test

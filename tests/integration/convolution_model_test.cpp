// A model whose layers are mostly short convolutions, behind the daemon: what a sequence carries from token to token is
// saved for others, and lost with a worker. The file is made with random weights; more_architectures_test.cpp compares
// what such models compute with an evaluation in double.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/made_model.hpp"
#include "tests/integration/model_serving.hpp"

namespace bulkhead::test {
namespace {

class ConvolutionModel : public MadeModel {
 protected:
  void SetUp() override { make("tiny-convolutions"); }

  static std::vector<std::uint32_t> some_prompt(std::size_t count) {
    std::vector<std::uint32_t> ids;
    for (std::size_t i = 0; i < count; ++i)
      ids.push_back(static_cast<std::uint32_t>((i * i * 7 + i * 31) % 500));
    return ids;
  }
};

TEST_F(ConvolutionModel, GoesOnFromASavedState) {
  const Serving serving = serve_model(path_);
  expect_to_go_on_from_a_saved_state(serving, some_prompt(100));
}

// One successor adopts pages and states from the vault, and another one computes everything anew.
TEST_F(ConvolutionModel, AStreamSurvivesItsWorkersDeath) {
  for (const char* vault : {"isolation.vault=true", "isolation.vault=false"}) {
    SCOPED_TRACE(vault);
    const Serving serving = serve_model(path_, {vault, "engine.speculation=always"});
    json asked = greedy_request(some_prompt(70), 90);
    asked["stream"] = true;
    asked["temperature"] = 0.9;
    asked["seed"] = 5;
    const Answer undisturbed = complete(serving, asked);
    ASSERT_EQ(undisturbed.ids.size(), 90U);
    const Answer carried_over = complete_over_a_kill(serving, asked, 40);
    EXPECT_EQ(carried_over.ids, undisturbed.ids);
    EXPECT_EQ(carried_over.logprobs, undisturbed.logprobs);
    EXPECT_EQ(serving.worker().at("restarts"), 1);
  }
}

// Computes the answer in chunks that are narrower than a page, with guesses and without, with and without the
// optimisations of steps.
TEST_F(ConvolutionModel, SettingsChangeNoToken) {
  const json asked = greedy_request(some_prompt(150), 30);
  std::vector<Answer> answers;
  for (const std::vector<std::string>& settings : std::vector<std::vector<std::string>>{
           {},
           {"engine.speculation=always"},
           {"engine.prefill_chunk=16", "engine.prefix_cache=false"},
           {"gpu_optimizations.enabled=false", "engine.speculation=off"}})
    answers.push_back(complete(serve_model(path_, settings), asked));
  for (const Answer& each : answers) {
    EXPECT_EQ(each.ids, answers.front().ids);
    EXPECT_EQ(each.logprobs, answers.front().logprobs);
  }
}

}  // namespace
}  // namespace bulkhead::test

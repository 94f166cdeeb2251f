// The daemon with a model whose own block drafts tokens: no client must notice, even if the worker is killed.
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/drafting_model.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

// Greedy, drawn, and drawn with penalties.
std::vector<json> requests_of_all_kinds() {
  std::vector<json> requests;
  for (int i = 0; i < 3; ++i) {
    json request = {{"prompt", "Bababe babibo du"}, {"max_tokens", 40}, {"stream", true},
                    {"ignore_eos", true},           {"seed", 40 + i},   {"temperature", i > 0 ? 1 : 0}};
    if (i == 2) request.update({{"frequency_penalty", 0.4}, {"repetition_penalty", 1.1}});
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(DraftingBlockOfAModel, ChangesNoStream) {
  const TemporaryFolder folder("block");
  const std::string path = folder.path() / "model.gguf";
  ASSERT_NO_FATAL_FAILURE(make_drafting_model("tiny-glm", path));
  const std::vector<json> requests = requests_of_all_kinds();
  std::vector<Answer> plain;
  {
    const Serving serving = serve_model(path, {"engine.speculation=off"});
    for (const json& request : requests)
      plain.push_back(complete(serving, request));
  }
  const Serving serving = serve_model(path, {"engine.speculation=always", "models.0.draft=mtp"});
  std::vector<std::future<Answer>> together;
  for (const json& request : requests)
    together.push_back(std::async(std::launch::async, complete, std::cref(serving), request));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(plain[i].ids.size(), 40U);
    EXPECT_EQ(together[i].get(), plain[i]) << "together";
  }
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.metric("bulkhead_worker_draft_model_accepted_tokens_total") > 0; }));
  EXPECT_GT(serving.metric("bulkhead_worker_draft_model_bytes"), 0);
  json whole = requests[0];
  whole["stream"] = false;
  const json usage = json::parse(serving.complete(whole).body)["usage"];
  EXPECT_GT(usage["completion_tokens_details"]["accepted_prediction_tokens"], 0) << usage;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(complete_over_a_kill(serving, requests[i], 6), plain[i]) << "killed";
  }
}

}  // namespace
}  // namespace bulkhead::test

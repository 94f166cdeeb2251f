// Ranking: what clients send, and the forms in which they get scores. The scripted worker's score is how often the
// query's first letter is in the document, divided by four.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

using testing::ElementsAre;

json rank(const Serving& serving, const json& body, int status = 200,
          const char* path = "/v1/rerank") {
  const HttpReply reply = serving.post(path, body.dump());
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body);
}

std::vector<int> order_of(const json& results) {
  std::vector<int> order;
  for (const json& result : results)
    order.push_back(result.at("index").get<int>());
  return order;
}

TEST(Rerank, PutsTheBestDocumentFirst) {
  const Serving serving = serve();
  const json documents = {"a b", "aaa", "b", "aa", "ab a"};
  const json all = rank(serving, {{"model", "any"}, {"query", "a?"}, {"documents", documents}});
  EXPECT_EQ(all["object"], "list");
  EXPECT_EQ(all["model"], "fake-model");
  EXPECT_THAT(order_of(all["results"]), ElementsAre(1, 3, 4, 0, 2));  // equal ones as they came
  EXPECT_EQ(all["results"][0], (json{{"index", 1}, {"relevance_score", 0.75}}));
  EXPECT_EQ(all["usage"], (json{{"prompt_tokens", 23}, {"total_tokens", 23}}));
  const json best = rank(serving, {{"query", "a?"},
                                   {"documents", {"a", {{"text", "aa"}}, "b"}},
                                   {"top_n", 2},
                                   {"return_documents", true}});
  EXPECT_THAT(order_of(best["results"]), ElementsAre(1, 0));
  EXPECT_EQ(best["results"][0]["document"], (json{{"text", "aa"}}));
  EXPECT_EQ(
      rank(serving, {{"query", "a"}, {"documents", {"a", "b"}}, {"top_k", 1}})["results"].size(),
      1U);
  EXPECT_EQ(rank(serving, {{"query", "a"}, {"documents", {"a"}}, {"top_n", 9}})["results"].size(),
            1U);
}

TEST(Rerank, TakesMoreDocumentsThanAWorkerHasAtOnce) {
  const Serving serving = serve();
  json documents = json::array();
  for (std::size_t i = 0; i < 50; ++i)
    documents.push_back(std::string(i, 'a'));
  const json all = rank(serving, {{"query", "a"}, {"documents", documents}});
  ASSERT_EQ(all["results"].size(), 50U);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(all["results"][i]["index"], 49 - i);
}

TEST(Rerank, HasTheNamesAndFormsOfOtherServers) {
  const Serving serving = serve();
  const json body = {{"query", "a"}, {"documents", {"b", "a"}}};
  for (const char* path : {"/rerank", "/v1/reranking", "/reranking", "/v2/rerank"})
    EXPECT_THAT(order_of(rank(serving, body, 200, path)["results"]), ElementsAre(1, 0)) << path;
  EXPECT_EQ(
      rank(serving, {{"query", "a"}, {"texts", {"b", "a"}}, {"return_text", true}}, 200, "/rerank"),
      (json{{{"index", 1}, {"score", 0.25}, {"text", "a"}},
            {{"index", 0}, {"score", 0.0}, {"text", "b"}}}));
  EXPECT_EQ(serving.metric("bulkhead_requests_total{endpoint=\"/v1/rerank\",status=\"200\"}"), 5);
}

TEST(Rerank, ErrorsNameTheField) {
  const Serving serving = serve();
  const std::pair<json, const char*> cases[] = {
      {{{"documents", {"a"}}}, "query"},
      {{{"query", ""}, {"documents", {"a"}}}, "query"},
      {{{"query", {"a"}}, {"documents", {"a"}}}, "query"},
      {{{"query", "a"}}, "documents"},
      {{{"query", "a"}, {"documents", "a"}}, "documents"},
      {{{"query", "a"}, {"documents", json::array()}}, "documents"},
      {{{"query", "a"}, {"documents", {"a", 5}}}, "documents"},
      {{{"query", "a"}, {"documents", {{{"title", "a"}}}}}, "documents"},
      {{{"query", "a"}, {"documents", json(2049, "a")}}, "documents"},
      {{{"query", "a"}, {"documents", {"a"}}, {"top_n", 0}}, "top_n"},
      {{{"query", "a"}, {"documents", {"a"}}, {"max_tokens_per_doc", 100}}, "max_tokens_per_doc"},
      {{{"query", "a"}, {"documents", {"a"}}, {"top_k", 0}}, "top_k"},
      {{{"query", "a"}, {"texts", {"a"}}, {"raw_scores", true}}, "raw_scores"},
      {{{"query", "a"}, {"documents", {"a"}}, {"use_activation", false}}, "use_activation"},
      {{{"query", "a"}, {"documents", {"a"}}, {"activation", false}}, "activation"},
      {{{"query", "a"}, {"documents", {"a", "b", "refused"}}}, "documents[2]"},
      {{{"query", "a"}, {"texts", {"a", "refused"}}}, "texts[1]"},
  };
  for (const auto& [body, parameter] : cases)
    EXPECT_EQ(rank(serving, body, 400)["error"]["param"], parameter) << body;
  // These ask for nothing.
  rank(serving, {{"query", "a"}, {"documents", {"a"}}, {"truncate", false}, {"instruction", ""}});
}

}  // namespace
}  // namespace bulkhead::test

// Embeddings: what clients send, and the forms in which they get them.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

json embed(const Serving& serving, const json& body, int status = 200) {
  const HttpReply reply = serving.post("/v1/embeddings", body.dump());
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body);
}

// Returns the scripted worker's embedding: {3, 4, tokens of the input}, divided by its norm.
std::vector<double> expected(double tokens) {
  const double length = std::sqrt(25 + tokens * tokens);
  return {3 / length, 4 / length, tokens / length};
}

void expect_near(const json& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size()) << got;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(got[i].get<double>(), wanted[i], 1e-6);
}

TEST(Embeddings, HaveTheirInputsOrderAndLengthOne) {
  const Serving serving = serve();
  const json one = embed(serving, {{"model", "any"}, {"input", "four"}});
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["data"][0]["object"], "embedding");
  expect_near(one["data"][0]["embedding"], expected(4));
  EXPECT_EQ(one["usage"], (json{{"prompt_tokens", 4}, {"total_tokens", 4}}));
  json inputs = json::array();
  for (int i = 1; i <= 40; ++i)
    inputs.push_back(std::string(static_cast<std::size_t>(i), 'x'));
  const json many = embed(serving, {{"input", inputs}});
  ASSERT_EQ(many["data"].size(), 40U);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(many["data"][i]["index"], i);
    expect_near(many["data"][i]["embedding"], expected(i + 1));
  }
  expect_near(embed(serving, {{"input", {7, 8, 9}}})["data"][0]["embedding"], expected(3));
  EXPECT_EQ(embed(serving, {{"input", {{7}, {8, 9}}}})["data"].size(), 2U);
}

TEST(Embeddings, MayBeShortAndInBase64) {
  const Serving serving = serve();
  const json two = embed(serving, {{"input", "four"}, {"dimensions", 2}});
  expect_near(two["data"][0]["embedding"], {0.6, 0.8});
  const json text =
      embed(serving, {{"input", "four"}, {"dimensions", 2}, {"encoding_format", "base64"}});
  EXPECT_EQ(text["data"][0]["embedding"], "mpkZP83MTD8=");  // 0.6 and 0.8, little-endian
  EXPECT_EQ(embed(serving, {{"input", "four"}, {"output_dimension", 2}})["data"], two["data"]);
}

TEST(Embeddings, ErrorsNameTheField) {
  const Serving serving = serve();
  const std::pair<json, const char*> cases[] = {
      {json::object(), "input"},
      {{{"input", ""}}, "input"},
      {{{"input", json::array()}}, "input"},
      {{{"input", {"a", 5}}}, "input"},
      {{{"input", "refused"}}, "input"},
      {{{"input", {"a", "refused", "b"}}}, "input"},
      {{{"input", "a"}, {"dimensions", 4}}, "dimensions"},
      {{{"input", "a"}, {"dimensions", 0}}, "dimensions"},
      {{{"input", "a"}, {"encoding_format", "hex"}}, "encoding_format"},
      {{{"input", "a"}, {"normalize", false}}, "normalize"},
      {{{"input", "a"}, {"add_special_tokens", false}}, "add_special_tokens"},
      {{{"input", "a"}, {"truncate_prompt_tokens", 2}}, "truncate_prompt_tokens"},
      {{{"input", "a"}, {"normalized", false}}, "normalized"},
      {{{"input", "a"}, {"output_dimension", 4}}, "dimensions"},
      {{{"input", "a"}, {"output_dimension", 0}}, "output_dimension"},
      {{{"input", "a"}, {"input_type", "query"}}, "input_type"},
      {{{"input", "a"}, {"prompt_name", "query"}}, "prompt_name"},
      {{{"input", "a"}, {"task", "retrieval.query"}}, "task"},
      {{{"input", "a"}, {"late_chunking", true}}, "late_chunking"},
      {{{"input", "a"}, {"output_dtype", "int8"}}, "output_dtype"},
      {{{"input", "a"}, {"embedding_type", "binary"}}, "embedding_type"},
  };
  for (const auto& [body, parameter] : cases)
    EXPECT_EQ(embed(serving, body, 400)["error"]["param"], parameter) << body;
  // These ask for what every embedding is.
  embed(serving, {{"input", "a"},
                  {"late_chunking", false},
                  {"input_type", nullptr},
                  {"output_dtype", "float"},
                  {"embedding_type", "float"},
                  {"normalized", true}});
}

TEST(Embeddings, InOllamasForms) {
  const Serving serving = serve();
  const json many =
      json::parse(serving.post("/api/embed", R"({"model":"m","input":["a","four"]})").body);
  ASSERT_EQ(many["embeddings"].size(), 2U);
  expect_near(many["embeddings"][1], expected(4));
  EXPECT_EQ(many["prompt_eval_count"], 5);
  const json one =
      json::parse(serving.post("/api/embeddings", R"({"model":"m","prompt":"four"})").body);
  expect_near(one["embedding"], expected(4));
  const HttpReply refused = serving.post("/api/embed", R"({"model":"m","input":"refused"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(json::parse(refused.body)["error"].is_string());
  // The older endpoint's answer has room for one embedding.
  const HttpReply several =
      serving.post("/api/embeddings", R"({"model":"m","prompt":["a","four"]})");
  EXPECT_EQ(several.status, 400) << several.body;
  EXPECT_NE(several.body.find("/api/embed takes several"), std::string::npos) << several.body;
  EXPECT_EQ(serving.post("/api/embeddings", R"({"model":"m","prompt":["four"]})").status, 200);
}

}  // namespace
}  // namespace bulkhead::test

// Endpoints that one message of a worker answers, in front of the scripted worker.
#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(Tokenize, ThereAndBack) {
  Serving serving = serve();
  EXPECT_EQ(json::parse(serving.post("/tokenize", R"({"content":"abc"})").body)["tokens"],
            json({97, 98, 99}));
  EXPECT_EQ(
      json::parse(
          serving.post("/tokenize", R"({"prompt":"abc","add_special":false})").body)["tokens"],
      json({97, 98, 99}));
  // Tests the field that a request to /tokenize has, too, so that an answer can be sent back as it
  // is, and llama.cpp's name for it.
  const json text = json::parse(serving.post("/detokenize", R"({"tokens":[97,98]})").body);
  EXPECT_EQ(text, (json{{"prompt", "ab"}, {"content", "ab"}}));
  EXPECT_EQ(json::parse(serving.post("/detokenize", R"({"tokens":[200]})").body)["content"],
            "\xef\xbf\xbd");
  EXPECT_EQ(serving.post("/tokenize", "{}").status, 400);
}

// In llama.cpp's form. The scripted worker's tokens are bytes, so each of the two of an "é" is no text.
TEST(Tokenize, GivesPieces) {
  Serving serving = serve();
  const auto tokenized = [&serving](const char* body) {
    return json::parse(serving.post("/tokenize", body).body);
  };
  EXPECT_EQ(tokenized(R"({"content":"a\u00e9\"","with_pieces":true})"),
            json::parse(R"({"tokens":[{"id":97,"piece":"a"},{"id":195,"piece":[195]},
                {"id":169,"piece":[169]},{"id":34,"piece":"\""}],"count":4})"));
  EXPECT_EQ(tokenized(R"({"content":"","with_pieces":true})")["tokens"], json::array());
  EXPECT_EQ(tokenized(R"({"content":"a","with_pieces":false})")["tokens"], json({97}));
}

// In vLLM's form, which has tokens as the vocabulary writes them.
TEST(Tokenize, GivesTheVocabularysTexts) {
  Serving serving = serve();
  const auto tokenized = [&serving](const char* body) {
    return json::parse(serving.post("/tokenize", body).body);
  };
  EXPECT_EQ(tokenized(R"({"prompt":"a b","return_token_strs":true})"),
            json::parse(R"({"tokens":[97,32,98],"count":3,"token_strs":["<a>","< >","<b>"]})"));
  EXPECT_FALSE(tokenized(R"({"prompt":"a"})").contains("token_strs"));
  const HttpReply both =
      serving.post("/tokenize", R"({"prompt":"a","return_token_strs":true,"with_pieces":true})");
  EXPECT_EQ(both.status, 400);
  EXPECT_EQ(json::parse(both.body)["error"]["param"], "return_token_strs") << both.body;
}

TEST(CheckConstraint, TakesTheFormsOfCompletionsAndNeedsOne) {
  Serving serving = serve();
  for (const char* body : {R"({"regex":"[ab]+"})", R"({"grammar":"root ::= \"a\""})",
                           R"({"response_format":{"type":"json_object"}})"}) {
    const HttpReply reply = serving.post("/check-constraint", body);
    EXPECT_EQ(reply.status, 200) << body << reply.body;
    EXPECT_EQ(json::parse(reply.body), json({{"valid", true}}));
  }
  const HttpReply reply = serving.post("/check-constraint", R"({"model":""})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body)["error"]["param"], "response_format") << reply.body;
}

}  // namespace
}  // namespace bulkhead::test

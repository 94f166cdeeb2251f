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

// OpenAI's wire format: answers.
#include <array>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

TEST(JsonString, EscapesAndRepairs) {
  auto escaped = [](std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
  };
  EXPECT_EQ(escaped("plain"), "\"plain\"");
  EXPECT_EQ(escaped("a\"b\\c\n\r\t\x01\x7f"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
  EXPECT_EQ(escaped("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
  EXPECT_EQ(escaped("a\xff"
                    "b\xe2\x82"),
            "\"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\"\\u0000\"");
  for (int c = 0; c < 256; ++c) {
    std::string text = "<" + std::string(1, static_cast<char>(c)) + ">";
    EXPECT_FALSE(json::parse(escaped(text), nullptr, false).is_discarded()) << c;
  }
}

TEST(Sse, ChunkIsOneEvent) {
  AnswerHead head{false, "cmpl-1", 5, "m"};
  ChoicePart part;
  part.text = "line\nbreak";
  std::string event = sse_chunk(head, part, true);
  EXPECT_TRUE(event.starts_with("data: {"));
  EXPECT_TRUE(event.ends_with("}\n\n"));
  EXPECT_EQ(event.find('\n'), event.size() - 2);
  json body = json::parse(event.substr(6));
  EXPECT_EQ(body["choices"][0]["text"], "line\nbreak");
  EXPECT_TRUE(body["usage"].is_null());
  const json usage = json::parse(sse_usage(head, {9, 2, 8}).substr(6))["usage"];
  EXPECT_EQ(usage, (json{{"prompt_tokens", 9},
                         {"completion_tokens", 2},
                         {"total_tokens", 11},
                         {"prompt_tokens_details", {{"cached_tokens", 8}}}}));
  EXPECT_EQ(json::parse(sse_error(ApiError{504, "late", "server_error", "", "timeout"})
                            .substr(6))["error"]["code"],
            "timeout");
}

TEST(Sse, TokensWithoutTextStillHaveIds) {
  AnswerHead head{true, "chatcmpl-1", 5, "m"};
  std::vector<ipc::TokenId> ids = {3, 4};
  ChoicePart part;
  part.token_ids = ids;
  json body = json::parse(sse_chunk(head, part, false).substr(6));
  EXPECT_EQ(body["choices"][0]["token_ids"], json({3, 4}));
  EXPECT_EQ(body["token_ids"], json({3, 4}));
  EXPECT_EQ(body["choices"][0]["delta"]["content"], "");
}

TEST(Logprobs, TheOldShapesTopHasTheTokenItself) {
  const ipc::TokenLogprob of_the_top{-0.25F, "a", {{1, -0.25F, "a"}, {2, -2.0F, "b"}}};
  const ipc::TokenLogprob unlikely{-7.5F, "z", {{1, -0.25F, "a"}}};
  LogprobsJson one(false, 1);
  one.add(std::array{of_the_top, unlikely});
  EXPECT_EQ(json::parse(one.take())["top_logprobs"],
            (json{{{"a", -0.25}}, {{"a", -0.25}, {"z", -7.5}}}));
  LogprobsJson none(false, 0);
  none.add(std::array{unlikely});
  EXPECT_EQ(json::parse(none.take())["top_logprobs"], (json{{{"z", -7.5}}}));
}

TEST(Logprobs, InfinityIsANumberInJson) {
  LogprobsJson logprobs(true, 1);
  ipc::TokenLogprob one{-std::numeric_limits<float>::infinity(), "a", {{1, -0.25F, "b"}}};
  logprobs.add(std::span(&one, 1));
  json body = json::parse(logprobs.take());
  EXPECT_EQ(body["content"][0]["logprob"], -9999.0);
  EXPECT_EQ(body["content"][0]["top_logprobs"][0]["logprob"], -0.25);
  EXPECT_TRUE(json::parse(logprobs.take())["content"].empty());
}

}  // namespace
}  // namespace bulkhead::orchestrator

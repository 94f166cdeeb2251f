// Malformed completions and chats: each error names the field that is wrong.
#include <string>
#include <variant>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;

struct Malformed {
  const char* body;
  const char* parameter;  // "" if the error is about no field
};

void expect_refused(const Parsed<GenerationRequest>& parsed, const Malformed& each) {
  const auto* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr) << each.body;
  EXPECT_EQ(error->status, 400) << each.body;
  EXPECT_EQ(error->parameter, each.parameter) << each.body << ": " << error->message;
  json body = json::parse(error_body(*error));
  EXPECT_FALSE(body["error"]["message"].get<std::string>().empty());
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  if (*each.parameter != '\0') {
    EXPECT_NE(error->message.find(each.parameter), std::string::npos) << error->message;
    EXPECT_EQ(body["error"]["param"], each.parameter);
  } else {
    EXPECT_TRUE(body["error"]["param"].is_null());
  }
}

TEST(ParseCompletion, MalformedBodiesAndPromptsNameTheirField) {
  const Malformed cases[] = {
      {"", ""},
      {" ", ""},
      {"null", ""},
      {"7", ""},
      {"\"prompt\"", ""},
      {"[1]", ""},
      {"{\"prompt\":\"x\"", ""},
      {"{\"prompt\":\"x\",}", ""},
      {"{\"prompt\":'x'}", ""},
      {"{prompt:\"x\"}", ""},
      {"{\"prompt\":\"x\"}{}", ""},
      {"{\"prompt\":\"\\ud800\"}", ""},
      {"{\"prompt\":\"\xc3\x28\"}", ""},
      {"{\"prompt\":\"\xed\xa0\x80\"}", ""},
      {"{\"prompt\":\"x\",\"seed\":1e400}", ""},
      {"{\"prompt\":\"x\",\"temperature\":NaN}", ""},
      {"{\"prompt\":\"x\ny\"}", ""},
      {"{}", "prompt"},
      {"{\"prompt\":null}", "prompt"},
      {"{\"prompt\":true}", "prompt"},
      {"{\"prompt\":{}}", "prompt"},
      {"{\"prompt\":[]}", "prompt"},
      {"{\"prompt\":[[]]}", "prompt"},
      {"{\"prompt\":[1.5]}", "prompt"},
      {"{\"prompt\":[-1]}", "prompt"},
      {"{\"prompt\":[99999999999]}", "prompt"},
      {"{\"prompt\":[1,\"a\"]}", "prompt"},
      {"{\"prompt\":[\"a\",1]}", "prompt"},
      {"{\"prompt\":[\"a\",{}]}", "prompt"},
      {"{\"prompt\":[null]}", "prompt"},
  };
  static_assert(std::size(cases) >= 30);
  for (const Malformed& each : cases)
    expect_refused(parse_completion(each.body), each);
}

TEST(ParseCompletion, MalformedFieldsAreNamed) {
  const Malformed cases[] = {
      {"{\"prompt\":\"x\",\"model\":5}", "model"},
      {"{\"prompt\":\"x\",\"stream\":1}", "stream"},
      {"{\"prompt\":\"x\",\"stream_options\":true}", "stream_options"},
      {"{\"prompt\":\"x\",\"stream_options\":{\"include_usage\":1}}", "stream_options"},
      {"{\"prompt\":\"x\",\"n\":0}", "n"},
      {"{\"prompt\":\"x\",\"n\":129}", "n"},
      {"{\"prompt\":\"x\",\"n\":1.5}", "n"},
      {"{\"prompt\":\"x\",\"best_of\":3}", "best_of"},
      {"{\"prompt\":\"x\",\"temperature\":2.1}", "temperature"},
      {"{\"prompt\":\"x\",\"temperature\":\"hot\"}", "temperature"},
      {"{\"prompt\":\"x\",\"top_p\":-0.1}", "top_p"},
      {"{\"prompt\":\"x\",\"top_k\":-2}", "top_k"},
      {"{\"prompt\":\"x\",\"top_k\":[]}", "top_k"},
      {"{\"prompt\":\"x\",\"min_p\":1.1}", "min_p"},
      {"{\"prompt\":\"x\",\"repetition_penalty\":0}", "repetition_penalty"},
      {"{\"prompt\":\"x\",\"frequency_penalty\":3}", "frequency_penalty"},
      {"{\"prompt\":\"x\",\"presence_penalty\":-3}", "presence_penalty"},
      {"{\"prompt\":\"x\",\"seed\":\"lucky\"}", "seed"},
      {"{\"prompt\":\"x\",\"seed\":0.5}", "seed"},
      {"{\"prompt\":\"x\",\"seed\":18446744073709551616}", "seed"},
      {"{\"prompt\":\"x\",\"min_tokens\":2}", "min_tokens"},
      {"{\"prompt\":\"x\",\"min_tokens\":\"2\"}", "min_tokens"},
      {"{\"prompt\":\"x\",\"guided_regex\":5}", "guided_regex"},
      {"{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens"},
      {"{\"prompt\":\"x\",\"max_tokens\":-5}", "max_tokens"},
      {"{\"prompt\":\"x\",\"max_tokens\":1e12}", "max_tokens"},
      {"{\"prompt\":\"x\",\"max_tokens\":99999999999999999999}", "max_tokens"},
      {"{\"prompt\":\"x\",\"stop\":5.5}", "stop"},
      {"{\"prompt\":\"x\",\"stop\":[-1]}", "stop"},
      {"{\"prompt\":\"x\",\"stop\":\"\"}", "stop"},
      {"{\"prompt\":\"x\",\"logprobs\":21}", "logprobs"},
      {"{\"prompt\":\"x\",\"logprobs\":true}", "logprobs"},
      {"{\"prompt\":\"x\",\"ignore_eos\":\"no\"}", "ignore_eos"},
      {"{\"prompt\":\"x\",\"return_token_ids\":1}", "return_token_ids"},
      {"{\"prompt\":\"x\",\"echo\":1}", "echo"},
      {"{\"prompt\":[1],\"suffix\":\"end\"}", "suffix"},
      {"{\"prompt\":\"x\",\"suffix\":\"end\",\"echo\":true}", "suffix"},
      {R"({"prompt":"x","logit_bias":{"1":101}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":{"a":1}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":{"-1":1}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":{"1":true}})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":[[1]]})", "logit_bias"},
      {R"({"prompt":"x","logit_bias":5})", "logit_bias"},
      {R"({"prompt":"x","stop_token_ids":["a"]})", "stop_token_ids"},
      {R"({"prompt":"x","response_format":{"type":"xml"}})", "response_format.type"},
      {R"({"prompt":"x","response_format":{}})", "response_format.type"},
      {R"({"prompt":"x","response_format":{"type":"json_schema"}})", "response_format.json_schema"},
      {R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"name":"a"}}})",
       "response_format.json_schema.schema"},
      {R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":"{}"}}})",
       "response_format.json_schema.schema"},
      {R"({"prompt":"x","grammar":5})", "grammar"},
      {R"({"prompt":"x","regex":["a"]})", "regex"},
      {R"({"prompt":"x","regex":"a","grammar":"root ::= \"a\""})", "regex"},
      {R"({"prompt":"x","regex":"a","ignore_eos":true})", "ignore_eos"},
      {R"({"prompt":"x","guided_choice":"a"})", "guided_choice"},
      {"{\"prompt\":\"x\",\"response_format\":\"json\"}", "response_format"},
  };
  static_assert(std::size(cases) >= 50);
  for (const Malformed& each : cases)
    expect_refused(parse_completion(each.body), each);
}

// Continue sends over twenty for some languages.
TEST(ParseCompletion, StopsMayBeManyButNotLong) {
  const auto refused = [](std::size_t count, std::size_t size) {
    const nlohmann::json stops(std::vector<std::string>(count, std::string(size, 'a')));
    const auto parsed = parse_completion(R"({"prompt":"x","stop":)" + stops.dump() + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? "" : error->message;
  };
  EXPECT_EQ(refused(128, 128), "");
  EXPECT_EQ(refused(16, 1024), "");
  EXPECT_EQ(refused(129, 1), "'stop' has more than 128 elements.");
  EXPECT_EQ(refused(1, 1025), "'stop' has a string of more than 1024 bytes.");
  EXPECT_EQ(refused(17, 1024), "'stop' has strings of more than 16384 bytes.");
}

TEST(ParseChat, MalformedRequestsNameTheirField) {
  const Malformed cases[] = {
      {"{}", "messages"},
      {"{\"messages\":\"hi\"}", "messages"},
      {"{\"messages\":[]}", "messages"},
      {"{\"messages\":[\"hi\"]}", "messages[0]"},
      {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role"},
      {"{\"messages\":[{\"role\":1,\"content\":\"x\"}]}", "messages[0].role"},
      {"{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role"},
      {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages[0].content[0]"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
       "messages[0].content[0]"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
       "messages[0].content[0]"},
      {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{}]}]}",
       "messages[0].tool_calls[0]"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages":[{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls"},
      {R"({"messages":[{"role":"assistant","content":"x","reasoning_content":1}]})",
       "messages[0].reasoning_content"},
      {R"({"messages":[{"role":"user","content":"x"}],"enable_thinking":1})", "enable_thinking"},
      {R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":[]})",
       "chat_template_kwargs"},
      {R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"tools":1}})",
       "chat_template_kwargs.tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"continue_final_message":true,"add_generation_prompt":true})",
       "continue_final_message"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":""}}]})",
       "tools[0].function.name"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":3}}]})",
       "tools[0].function.parameters"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"array"}}}]})",
       "tools[0].function.parameters.type"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","strict":"yes"}}]})",
       "tools[0].function.strict"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":3}", "top_logprobs"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":3}", "logprobs"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{}]}", "tools[0].type"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\"}",
       "tool_choice"},
  };
  for (const Malformed& each : cases)
    expect_refused(parse_chat(each.body), each);
}

}  // namespace
}  // namespace bulkhead::orchestrator

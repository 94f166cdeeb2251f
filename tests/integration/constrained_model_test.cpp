// A real model's answers that must follow schemas, grammars and expressions: over each transport, and when their
// worker dies. tests/integration/structured_output tries all schemas of the fixtures.
#include <chrono>
#include <regex>

#include "tests/integration/model_serving.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

const json kSchema = json::parse(R"({
  "type": "object", "additionalProperties": false, "required": ["name", "tags", "age"],
  "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                 "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4}}})");

json schema_format() {
  return {{"type", "json_schema"},
          {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", kSchema}}}};
}

json held(int seed) {
  return {{"prompt", "Once upon a time"},
          {"temperature", 1.5},
          {"seed", seed},
          {"max_tokens", 160},
          {"stream", true},
          {"response_format", schema_format()}};
}

void expect_person(const Answer& answer) {
  if (answer.finish_reason == "length") return;
  EXPECT_EQ(answer.finish_reason, "stop");
  const json person = json::parse(answer.text, nullptr, false);
  ASSERT_TRUE(person.is_object()) << answer.text;
  EXPECT_EQ(person.size(), 3U) << answer.text;
  EXPECT_GE(person.at("name").get<std::string>().size(), 3U);
  EXPECT_LE(person.at("age").get<int>(), 150);
  EXPECT_GE(person.at("tags").size(), 2U);
}

TEST(ConstrainedModel, AnswersAreTheSameOverEachTransportAndFollowTheSchema) {
  std::vector<std::vector<Answer>> answers;
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    const Serving serving = serve_model("", {transport});
    answers.emplace_back();
    for (int seed = 0; seed < 6; ++seed) {
      answers.back().push_back(complete(serving, held(seed)));
      expect_person(answers.back().back());
    }
    json greedy = held(0);
    greedy["temperature"] = 0;
    greedy["logprobs"] = 2;
    greedy["presence_penalty"] = 0.5;
    answers.back().push_back(complete(serving, greedy));
    expect_person(answers.back().back());
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(ConstrainedModel, FormsAreCheckedWithoutAnAnswer) {
  const Serving serving = serve_model("");
  EXPECT_EQ(
      serving.post("/check-constraint", json{{"response_format", schema_format()}}.dump()).status,
      200);
  // The second one is too complex, which is a permanent error like a mistake.
  for (const char* wrong : {R"({"regex":"(ab"})", R"({"regex":"(a|b)*a(a|b){40}"})"}) {
    const HttpReply reply = serving.post("/check-constraint", wrong);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "regex") << reply.body;
  }
}

TEST(ConstrainedModel, AnswersSurviveTheirWorker) {
  const Serving serving = serve_model("");
  for (const char* kind : {"schema", "regex", "penalties"}) {
    json request = held(11);
    if (std::string(kind) == "penalties") {
      request["logprobs"] = 2;
      request["repetition_penalty"] = 1.05;
      request["logit_bias"] = {{"40", 3}, {"50", -3}};
    }
    if (std::string(kind) == "regex") {
      request.erase("response_format");
      request["regex"] = "[a-z ]{100,120}[.]";
    }
    const Answer undisturbed = complete(serving, request);
    request["return_token_ids"] = true;
    request["stream_options"] = {{"include_usage", true}};
    HttpClient client(serving.port);
    ASSERT_TRUE(client.send("POST", "/v1/completions", request.dump()));
    HttpReply reply = client.receive_head();
    ASSERT_EQ(reply.status, 200);
    for (int i = 0; i < 8; ++i)
      reply.body += client.receive_chunk().value_or("");
    ASSERT_EQ(send_signal(serving.worker().at("pid").get<pid_t>(), SIGKILL), 0);
    while (auto chunk = client.receive_chunk()) {
      if (chunk->empty()) break;
      reply.body += *chunk;
    }
    EXPECT_EQ(answer_of(reply), undisturbed) << kind;
  }
}

TEST(ConstrainedModel, GrammarsAndExpressionsHoldChatsToo) {
  const Serving serving = serve_model("");
  json request = {{"messages", {{{"role", "user"}, {"content", "What is your name?"}}}},
                  {"temperature", 1.5},
                  {"max_tokens", 60}};
  const auto say = [&] {
    const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body)
        .at("choices")
        .at(0)
        .at("message")
        .at("content")
        .get<std::string>();
  };
  request["grammar"] = "root ::= (\"yes\" | \"no\") \", \" [a-z]{4} \"!\"";
  EXPECT_TRUE(std::regex_match(say(), std::regex("(yes|no), [a-z]{4}!")));
  request.erase("grammar");
  request["regex"] = R"(\d{4}-\d{2}-\d{2})";
  EXPECT_TRUE(std::regex_match(say(), std::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")));
  request.erase("regex");
  request["response_format"] = {{"type", "json_object"}};
  request["max_tokens"] = 400;
  const HttpReply reply = serving.post("/v1/chat/completions", request.dump());
  const json choice = json::parse(reply.body).at("choices").at(0);
  if (choice.at("finish_reason") == "stop") {
    EXPECT_TRUE(json::parse(choice.at("message").at("content").get<std::string>()).is_object());
  }
}

// Each is refused within the time that a request may take, and the worker is alive afterwards.
TEST(ConstrainedModel, HostileConstraintsAreRefused) {
  const Serving serving = serve_model("");
  const pid_t worker = serving.worker().at("pid");
  std::string nested = "{}";
  for (int i = 0; i < 25; ++i)
    nested = R"({"type":"array","items":)" + nested + "}";
  std::string alternatives = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i)
    alternatives += std::string(i == 0 ? "" : ",") + R"({"anyOf":[{"minLength":)" +
                    std::to_string(i) + R"(},{"maximum":)" + std::to_string(i) +
                    R"(},{"minItems":)" + std::to_string(i) + "}]}";
  alternatives += "]}";
  const auto format = [](const std::string& schema) {
    return json{{"type", "json_schema"},
                {"json_schema", {{"name", "x"}, {"schema", json::parse(schema)}}}};
  };
  const struct {
    const char* field;
    json value;
    const char* word;  // a word of the message; "": the request may succeed
  } cases[] = {
      {"regex", "(", "regex"},
      {"regex", "(a*)*(b|b*)*((c{1,900}){1,900}){1,900}", ""},
      {"regex", "(.{1,200}x){1,200}(.{0,200}y){0,200}", ""},
      {"regex", "(a|aa|aaa|aaaa|aaaaa)*b(?=c)", ""},
      {"regex", ".*a.{30}", "complex"},
      {"regex", std::string(20000, '(') + std::string(20000, ')'), ""},
      {"grammar", "root ::= root", ""},
      {"grammar", "root ::= a\na ::= b a | b\nb ::= \"\"", ""},
      {"grammar", "nothing", ""},
      {"response_format", format(R"({"type":"array","uniqueItems":true})"), "uniqueItems"},
      {"response_format", format(R"({"type":"string","pattern":"(a)\\1"})"), "pattern"},
      {"response_format", format(R"({"enum":[]})"), ""},
      {"response_format", format(R"({"$ref":"#/nowhere"})"), "$ref"},
      {"response_format", format(R"({"$ref":"#"})"), ""},
      {"response_format", format(nested), ""},
      {"response_format", format(alternatives), ""},
  };
  for (const auto& each : cases) {
    const auto begin = std::chrono::steady_clock::now();
    const HttpReply reply = serving.complete(
        {{"prompt", "x"}, {"max_tokens", 3}, {"temperature", 1.5}, {each.field, each.value}});
    const std::string what = each.value.dump().substr(0, 80);
    EXPECT_TRUE(reply.status == 200 || reply.status == 400) << what << reply.status << reply.body;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << what;
    if (reply.status == 400) {
      const json error = json::parse(reply.body).at("error");
      EXPECT_EQ(error.at("param"), each.field) << error;
      EXPECT_NE(error.at("message").get<std::string>().find(each.word), std::string::npos) << error;
    } else {
      EXPECT_STREQ(each.word, "") << what << " was let through";
    }
  }
  EXPECT_EQ(serving.worker().at("pid"), worker) << "the worker is another one";
}

}  // namespace
}  // namespace bulkhead::test

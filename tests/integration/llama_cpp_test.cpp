// llama.cpp's own endpoints over real sockets, in front of the scripted worker.
#include <string>
#include <vector>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

TEST(LlamaCpp, ReportsProbabilitiesAndTokens) {
  const Serving serving = serve();
  json body = {
      {"prompt", "hi"}, {"n_predict", 3}, {"seed", 4}, {"n_probs", 2}, {"return_tokens", true}};
  const json whole = json::parse(serving.post("/completion", body.dump()).body);
  const json probabilities = whole["completion_probabilities"];
  ASSERT_EQ(probabilities.size(), 3U) << whole;
  ASSERT_EQ(whole["tokens"].size(), 3U);
  std::string text;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(probabilities[i]["id"], whole["tokens"][i]);
    EXPECT_EQ(probabilities[i]["logprob"], -0.5);
    EXPECT_EQ(probabilities[i]["top_logprobs"].size(), 2U);
    EXPECT_TRUE(probabilities[i]["top_logprobs"][0]["id"].is_number());
    for (const json& byte : probabilities[i]["bytes"])
      text += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(text + "!", whole["content"]);  // the scripted worker ends each answer so
  body["stream"] = true;
  json streamed = json::array(), tokens = json::array();
  for (const json& chunk : events_of(serving.post("/completion", body.dump()).body).chunks) {
    for (const json& each : chunk.value("completion_probabilities", json::array()))
      streamed.push_back(each);
    for (const json& each : chunk["tokens"])
      tokens.push_back(each);
  }
  EXPECT_EQ(streamed, probabilities);
  EXPECT_EQ(tokens, whole["tokens"]);
}

// llama.vim asks for what it shows.
TEST(LlamaCpp, GivesTheFieldsThatAreAskedFor) {
  const Serving serving = serve();
  json body = {
      {"prompt", "hi"},
      {"n_predict", 3},
      {"seed", 4},
      {"response_fields", {"content", "timings/predicted_n", "timings/none", "none", "stop/a"}}};
  const json wanted = {{"content", expected_text(4, 3)}, {"timings/predicted_n", 3}};
  EXPECT_EQ(json::parse(serving.post("/completion", body.dump()).body), wanted);
  body["stream"] = true;
  const std::vector<json> chunks = events_of(serving.post("/completion", body.dump()).body).chunks;
  EXPECT_EQ(chunks.front()["index"], 0);
  EXPECT_EQ(chunks.back(), (json{{"content", ""}, {"timings/predicted_n", 3}}));
  for (const char* wrong : {"5", "\"content\"", "[5]"})
    EXPECT_EQ(
        serving
            .post("/completion", R"({"prompt":"a","response_fields":)" + std::string(wrong) + "}")
            .status,
        400);
}

// One answer comes as an object, several as a list; a stream's events say by their index to which answer they belong.
TEST(LlamaCpp, AnswersSeveralPrompts) {
  const Serving serving = serve();
  json body = {{"prompt", {"hi", "echo bye", {104, 105}}}, {"n_predict", 3}, {"seed", 4}};
  const json all = json::parse(serving.post("/completion", body.dump()).body);
  ASSERT_TRUE(all.is_array()) << all;
  ASSERT_EQ(all.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i]["index"], i);
    EXPECT_EQ(all[i]["tokens_evaluated"], i == 1 ? 8 : 2);
  }
  EXPECT_EQ(all[0]["content"], expected_text(4, 3));
  EXPECT_EQ(all[2]["content"], all[0]["content"]);
  body["stream"] = true;
  std::vector<std::string> texts(3);
  std::vector<int> ends(3);
  for (const json& chunk : events_of(serving.post("/completion", body.dump()).body).chunks) {
    texts.at(chunk["index"].get<std::size_t>()) += chunk["content"].get<std::string>();
    ends.at(chunk["index"].get<std::size_t>()) += chunk["stop"] == true ? 1 : 0;
  }
  EXPECT_EQ(ends, (std::vector{1, 1, 1}));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(texts[i], all[i]["content"]);
  body = {{"prompt", {"hi"}}, {"n_predict", 3}, {"seed", 4}, {"n_cmpl", 2}};
  const double before = serving.metric("bulkhead_tokens_total{kind=\"prompt\"}");
  const json twice = json::parse(serving.post("/completion", body.dump()).body);
  EXPECT_EQ(serving.metric("bulkhead_tokens_total{kind=\"prompt\"}"), before + 2)
      << "a prompt counts once, however many answers it has";
  ASSERT_EQ(twice.size(), 2U) << twice;
  EXPECT_EQ(twice[0]["content"], expected_text(4, 3));
  EXPECT_EQ(twice[1]["content"], expected_text(5, 3));
  body.erase("n_cmpl");
  EXPECT_TRUE(json::parse(serving.post("/completion", body.dump()).body).is_object());
}

TEST(LlamaCpp, CompletesWithItsOwnNames) {
  const Serving serving = serve();
  json body = {{"prompt", "hi"}, {"n_predict", 3}, {"seed", 4}, {"cache_prompt", true}};
  const json whole = json::parse(serving.post("/completion", body.dump()).body);
  EXPECT_EQ(whole["content"], expected_text(4, 3));
  EXPECT_EQ(whole["stop"], true);
  EXPECT_EQ(whole["stop_type"], "limit");
  EXPECT_EQ(whole["tokens_evaluated"], 2);
  EXPECT_EQ(whole["timings"]["predicted_n"], 3);
  body["stream"] = true;
  body["prompt"] = "hi kill@2";
  std::string text;
  HttpReply reply = serving.post("/completion", body.dump());
  // This protocol's streams end without [DONE].
  for (const json& chunk : events_of(reply.body).chunks) {
    text += chunk["content"].get<std::string>();
    if (chunk["stop"] == true) {
      EXPECT_EQ(chunk["tokens_predicted"], 3);
    }
  }
  EXPECT_EQ(text, expected_text(4, 3));
  for (const char* refused :
       {R"({"prompt":"a","logprobs":2})", R"({"prompt":"a","n_probs":21})",
        R"({"prompt":"a","dry_multiplier":1})", R"({"prompt":"a","return_tokens":7})",
        R"({"prompt":"a","n_probs":1,"post_sampling_probs":true})",
        R"({"prompt":"a","n_cmpl":0})"}) {
    EXPECT_EQ(serving.post("/completion", refused).status, 400) << refused;
  }
  for (const char* refused :
       {R"({"input_prefix":"a"})", R"({"input_suffix":"a"})",
        R"({"input_prefix":"a","input_suffix":"b","input_extra":[{}]})",
        R"({"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":5,"text":"c"}]})",
        R"({"input_prefix":5,"input_suffix":"b"})"})
    EXPECT_EQ(serving.post("/infill", refused).status, 400) << refused;
  const HttpReply filled = serving.post(
      "/infill",
      R"({"input_prefix":"a","prompt":"b","input_suffix":"c","input_extra":[{"filename":"n","text":"x"}],"n_predict":2})");
  ASSERT_EQ(filled.status, 200) << filled.body;
  // The scripted worker's prompt is "n:x\nab[]c"; each byte is a token.
  EXPECT_EQ(json::parse(filled.body)["tokens_evaluated"], 9);
  const HttpReply read = serving.post(
      "/infill",
      R"({"input_prefix":"a","input_suffix":"c","n_predict":0,"samplers":["top_k","infill"]})");
  ASSERT_EQ(read.status, 200) << read.body;
  EXPECT_EQ(json::parse(read.body)["content"], "");
  EXPECT_EQ(json::parse(read.body)["tokens_predicted"], 0);
  EXPECT_EQ(read.headers.at("x-bulkhead-warning"), "the sampler infill is left out");
  const json settings = json::parse(serving.get("/props").body)["default_generation_settings"];
  EXPECT_EQ(settings["n_ctx"], 100000);
  EXPECT_TRUE(settings["params"]["top_k"].is_number_integer()) << settings;
  EXPECT_EQ(settings["params"]["temperature"], 0.8);
}

TEST(LlamaCpp, ReportsTheTemplateAndTheSlots) {
  const Serving serving = serve({"engine.max_batch=3"});
  const json props = json::parse(serving.get("/props").body);
  EXPECT_EQ(props["total_slots"], 3) << props;
  EXPECT_EQ(props["chat_template"], "{{ messages }} \u00e9\n") << props;
  EXPECT_EQ(props["bos_token"], "<s>");
  EXPECT_EQ(props["eos_token"], "</s>");
  const json params = props["default_generation_settings"]["params"];
  EXPECT_EQ(params["temperature"], 0.8);
  EXPECT_EQ(params["top_k"], 40);
}

}  // namespace
}  // namespace bulkhead::test

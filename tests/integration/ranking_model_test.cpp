// Models that rank, behind the daemon. The files are made of models that generate: two rows of the output matrix become
// the head, as converters make it of the rows of "yes" and "no". So a score follows from the log-probabilities of these
// two tokens, which a program of its own has computed in float64 (*.expected.json).
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/model_serving.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/ranker_file.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

// A model of the fixtures, or the built-in one, in the form of one that ranks.
class RankingModel : public testing::Test {
 protected:
  ~RankingModel() override { std::filesystem::remove(path_); }

  // Rows `yes` and `no` of the embeddings, which are the output matrix, too, become the head.
  static GgufAdditions ranker(const std::filesystem::path& model, std::uint32_t yes,
                              std::uint32_t no) {
    GgufAdditions made(model);
    const std::string architecture(**made.file().get_string("general.architecture"));
    const model::TensorInfo& rows = *made.file().find_tensor("token_embd.weight");
    made.add_uint(architecture + ".pooling_type", 4);
    made.add_texts(architecture + ".classifier.output_labels", {"yes", "no"});
    made.add_text("tokenizer.chat_template.rerank", "{query}{document}");
    made.add_tensor("cls.output.weight", rows.type, {rows.ne[0], 2},
                    made.row("token_embd.weight", yes) + made.row("token_embd.weight", no));
    return made;
  }
  Serving serve_ranker(const GgufAdditions& file, const std::vector<std::string>& settings = {}) {
    file.write(path_);
    return serve_model(path_, settings);
  }

  const std::filesystem::path built_in_ =
      std::filesystem::path(BULKHEAD_SOURCE_DIR) / "worker" / "builtin" / "builtin.gguf";
  const std::string path_ = testing::TempDir() + "ranker_" + std::to_string(::getpid()) + ".gguf";
};

json rank(const Serving& serving, const json& body, int status = 200) {
  const HttpReply reply = serving.post("/v1/rerank", body.dump());
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body);
}

json expected_of(const std::filesystem::path& model) {
  std::filesystem::path path = model;
  return json::parse(std::ifstream(path.replace_extension(".expected.json")));
}

TEST_F(RankingModel, ScoresAreThoseOfAFloat64Evaluation) {
  for (const std::filesystem::path& model :
       {built_in_, fixtures() / "models" / "tiny-qwen3-Q4_K_M.gguf"}) {
    SCOPED_TRACE(model);
    if (!std::filesystem::exists(model)) continue;  // without fixtures, only the built-in model
    const json each = expected_of(model)["cases"][0];
    const json& top = each["greedy"][0]["top"];
    const std::string prompt = each["prompt"];
    // The second and the third token have about equal probabilities, so the score is far from 0 and 1.
    const auto logprob = [&top](std::size_t place) { return top[place][1].get<double>(); };
    const double want = 1 / (1 + std::exp(logprob(2) - logprob(1)));
    const Serving serving = serve_ranker(ranker(model, top[1][0], top[2][0]));
    for (const std::size_t cut : {prompt.size() / 3, prompt.size() / 2}) {
      const json got =
          rank(serving, {{"query", prompt.substr(0, cut)}, {"documents", {prompt.substr(cut)}}});
      EXPECT_NEAR(got["results"][0]["relevance_score"].get<double>(), want, 5e-3);
      EXPECT_EQ(got["usage"]["prompt_tokens"], each["prompt_tokens"].size());
    }
  }
}

TEST_F(RankingModel, AnswersNothingElseWithoutAnOutputMatrix) {
  const Serving serving = serve_ranker(ranker(built_in_, 100, 200));
  EXPECT_THAT(rank(serving, {{"query", "fox"}, {"documents", {"the fox", "a bird"}}})["results"],
              testing::SizeIs(2));
  for (const auto& [path, body] : std::vector<std::pair<const char*, const char*>>{
           {"/v1/completions", R"({"prompt":"Once"})"},
           {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hello"}]})"},
           {"/v1/embeddings", R"({"input":"Once"})"}}) {
    const HttpReply reply = serving.post(path, body);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_THAT(reply.body, HasSubstr("only ranks documents")) << path;
  }
  EXPECT_EQ(json::parse(serving.post("/api/show", R"({"model":"any"})").body)["capabilities"],
            json({"rerank"}));
  const json long_text = {{"query", "fox"}, {"documents", {"fox", std::string(9000, 'x')}}};
  const json refused = rank(serving, long_text, 400);
  EXPECT_EQ(refused["error"]["param"], "documents[1]");
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
}

TEST_F(RankingModel, AlsoGeneratesWithAnOutputMatrix) {
  GgufAdditions file = ranker(built_in_, 100, 200);
  const model::TensorInfo& rows = *file.file().find_tensor("token_embd.weight");
  file.add_tensor("output.weight", rows.type, {rows.ne[0], rows.ne[1]},
                  std::string(reinterpret_cast<const char*>(rows.data.data()), rows.data.size()));
  const Serving serving = serve_ranker(file);
  rank(serving, {{"query", "fox"}, {"documents", {"the fox"}}});
  EXPECT_EQ(serving.complete({{"prompt", "Once"}, {"max_tokens", 2}}).status, 200);
  EXPECT_EQ(serving.post("/v1/embeddings", R"({"input":"Once"})").status, 200);
}

TEST_F(RankingModel, OtherModelsSayWhatToLoad) {
  const Serving serving = serve_model("");
  const json refused = rank(serving, {{"query", "fox"}, {"documents", {"the fox"}}}, 400);
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), HasSubstr("Qwen3-Reranker"));
  EXPECT_EQ(refused["error"]["code"], "unsupported");
}

TEST_F(RankingModel, KilledInTheMiddleGivesTheSameScores) {
  json documents = json::array();
  for (int i = 0; i < 24; ++i)
    documents.push_back("The fox number " + std::to_string(i) +
                        " ran home. It saw a bird and a tree, and then it saw another fox.");
  const json request = {{"query", "Where is the fox?"}, {"documents", documents}};
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    const Serving serving = serve_ranker(ranker(built_in_, 100, 200), {transport});
    const json alone =
        rank(serving, {{"query", "Where is the fox?"}, {"documents", {documents[7]}}});
    const pid_t worker = serving.worker().at("pid");
    HttpClient client(serving.port);
    ASSERT_TRUE(client.send("POST", "/v1/rerank", request.dump()));
    // The figures of the worker's steps may come when it has computed them all.
    ASSERT_TRUE(Serving::eventually(
        [&] { return serving.worker().at("outstanding_requests").get<int>() > 0; }));
    ASSERT_EQ(send_signal(worker, SIGKILL), 0);
    const HttpReply disturbed = client.receive();
    EXPECT_EQ(disturbed.status, 200) << disturbed.body;
    EXPECT_EQ(serving.worker().at("restarts"), 1) << transport;
    EXPECT_GE(serving.metric("bulkhead_worker_recovered_requests_total"), 1) << transport;
    const json whole = rank(serving, request);
    EXPECT_EQ(json::parse(disturbed.body)["results"], whole["results"]) << transport;
    for (const json& result : whole["results"]) {
      if (result["index"] != 7) continue;
      EXPECT_EQ(result["relevance_score"], alone["results"][0]["relevance_score"]);
    }
  }
}

}  // namespace
}  // namespace bulkhead::test

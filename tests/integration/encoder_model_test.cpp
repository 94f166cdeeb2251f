// Encoders behind the daemon. The files are made with random weights; tests/unit/forward/encoders_test.cpp compares
// what such models compute with an evaluation in double.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/made_model.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/support/ranker_file.hpp"

namespace bulkhead::test {
namespace {

using testing::HasSubstr;

class EncoderModel : public MadeModel {
 protected:
  // Makes a model that ranks, whose tokens have one type.
  void make_ranker() {
    make("tiny-bert");
    std::stringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    std::string file = bytes.str();
    const std::string key = "tokenizer.ggml.token_type_count";
    const std::size_t at = file.find(key);
    ASSERT_NE(at, std::string::npos);
    file[at + key.size() + 4] = 1;  // after the value's type
    std::ofstream(path_, std::ios::binary) << file;
    GgufAdditions made(path_);
    const model::TensorInfo& norm = *made.file().find_tensor("blk.0.layer_output_norm.weight");
    const auto* const values = reinterpret_cast<const char*>(norm.data.data());
    made.add_tensor("cls.output.weight", norm.type, {norm.ne[0], 1},
                    std::string(values, norm.data.size()));
    const std::string ranker = path_ + ".ranks";
    made.write(ranker);
    std::filesystem::rename(ranker, path_);
  }
};

json post(const Serving& serving, const char* path, const json& body, int status = 200) {
  const HttpReply reply = serving.post(path, body.dump());
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body);
}
json embed(const Serving& serving, const json& input) {
  return post(serving, "/v1/embeddings", {{"input", input}})["data"];
}
std::string long_text(std::size_t words) {
  std::string text;
  for (std::size_t i = 0; i < words; ++i)
    text += i % 3 == 0 ? "baba " : i % 3 == 1 ? "dede " : "lu ";
  return text;
}

TEST_F(EncoderModel, EmbedsTheSameInAnyCompanyAndOverAnyTransport) {
  for (const std::string preset : {"tiny-bert", "tiny-nomic-bert", "tiny-gemma-embedding",
                                   "tiny-modern-bert", "tiny-eurobert", "tiny-nomic-bert-moe"}) {
    SCOPED_TRACE(preset);
    make(preset);
    const bool folds = preset.ends_with("bert");
    json wanted;
    for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
      // To a transport the embeddings of one architecture are like those of another.
      if (!wanted.is_null() && preset != "tiny-bert") continue;
      const Serving serving = serve_model(path_, {transport});
      const json alone = embed(serving, "Baba, dede!");
      ASSERT_EQ(alone[0]["embedding"].size(), 256U);
      json inputs;
      for (std::size_t i = 0; i < 24; ++i)
        inputs.push_back(i == 7 ? folds ? "baba, dédé!" : "Baba, dede!" : long_text(i * 2 + 1));
      const json together = embed(serving, inputs);
      ASSERT_EQ(together.size(), 24U);
      EXPECT_EQ(together[7]["embedding"], alone[0]["embedding"])
          << "capitals and accents make no difference";
      EXPECT_NE(together[8]["embedding"], together[9]["embedding"]);
      if (wanted.is_null()) wanted = together;
      EXPECT_EQ(together, wanted) << transport;
    }
  }
}

TEST_F(EncoderModel, EmbeddingsSurviveTheirWorkersDeath) {
  make("tiny-bert");
  const Serving serving = serve_model(path_);
  json inputs;
  for (std::size_t i = 0; i < 40; ++i)
    inputs.push_back(long_text(20 + i));
  const json undisturbed = embed(serving, inputs);
  const pid_t worker = serving.worker().at("pid");
  json disturbed;
  std::thread client([&] { disturbed = embed(serving, inputs); });
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.worker().at("outstanding_requests").get<int>() > 0; }));
  EXPECT_EQ(send_signal(worker, SIGKILL), 0);
  client.join();
  EXPECT_EQ(disturbed, undisturbed);
  EXPECT_EQ(serving.worker().at("restarts"), 1);
}

TEST_F(EncoderModel, RefusesWhatItCantDoAndSaysWhatItCan) {
  make("tiny-bert");
  const Serving serving = serve_model(path_);
  const char* const can = "it makes embeddings (/v1/embeddings, /api/embed)";
  for (const auto& [path, body] : std::vector<std::pair<const char*, json>>{
           {"/v1/completions", {{"prompt", "baba"}}},
           {"/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "baba"}}}}}},
           {"/api/generate", {{"prompt", "baba"}}}})
    EXPECT_THAT(post(serving, path, body, 400).dump(), HasSubstr(can)) << path;
  EXPECT_EQ(post(serving, "/api/show", {{"model", ""}})["capabilities"], json{"embedding"});
  // Ollama's clients rely on a cut; other clients get an error.
  const std::string text = long_text(2000);
  EXPECT_THAT(post(serving, "/v1/embeddings", {{"input", text}}, 400).dump(),
              HasSubstr("context length is 512 tokens"));
  EXPECT_THAT(post(serving, "/api/embed", {{"input", text}, {"truncate", false}}, 400).dump(),
              HasSubstr("context length is 512 tokens"));
  const json cut = post(serving, "/api/embed", {{"input", text}});
  EXPECT_EQ(cut["prompt_eval_count"], 512);
  json ids = post(serving, "/tokenize", {{"content", text}, {"add_special", true}})["tokens"];
  const json last = ids.back();
  ids.erase(ids.begin() + 511, ids.end());
  ids.push_back(last);
  EXPECT_EQ(post(serving, "/api/embed", {{"input", ids}})["embeddings"], cut["embeddings"]);
}

TEST_F(EncoderModel, RanksByItsHead) {
  make_ranker();
  Serving serving = serve_model(path_);
  const auto score = [&](const json& documents, std::size_t index) {
    const json got =
        post(serving, "/v1/rerank", {{"query", "baba"}, {"documents", documents}})["results"];
    for (const json& each : got) {
      if (each["index"] == index) return each["relevance_score"].get<double>();
    }
    ADD_FAILURE() << got;
    return 0.0;
  };
  const double alone = score({"dede lulu"}, 0);
  EXPECT_EQ(score({"fifo", "dede lulu", long_text(200)}, 1), alone);
  EXPECT_NE(score({"lulu dede"}, 0), alone);
  EXPECT_THAT(post(serving, "/v1/completions", {{"prompt", "a"}}, 400).dump(),
              HasSubstr("writes none"));
  serving = serve_model(path_, {"engine.pooling=last"});
  EXPECT_EQ(score({"dede lulu"}, 0), alone) << "the setting is about embeddings";
}

}  // namespace
}  // namespace bulkhead::test

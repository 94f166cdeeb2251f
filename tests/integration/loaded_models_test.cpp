// Real models that are loaded and unloaded under a real stream, on the CPU's Vulkan device.
#include <fstream>

#include "tests/integration/crash/streams.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/integration/watching.hpp"
#include "tests/support/fixtures.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

bool comes_to(const Serving& serving, const std::string& model, const std::string& wanted) {
  return Serving::eventually([&] {
    return json::parse(serving.get("/v1/models/" + model).body).value("state", "") == wanted;
  });
}

int act(const Serving& serving, const std::string& action, const std::string& model) {
  return serving.post("/v1/models/" + action, json{{"model", model}}.dump()).status;
}

TEST(LoadedModels, AreLoadedWhileAnotherStreamsAndComeBackFromTheVault) {
  const auto file = fixtures() / "models" / "tiny-qwen2-Q8_0.gguf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no fixtures";
  const Serving serving = serve_model(
      "",
      {"models.0.path=builtin", "models.0.name=builtin", "models.1.name=tiny",
       "models.1.path=" + file.string(), "models.1.load=first_use", "engine.kv_cache_mb=32"},
      {}, {}, {"tiny-0"});
  const json request = {{"model", "builtin"}, {"prompt", "Once upon a time"}, {"max_tokens", 60},
                        {"seed", 7},          {"temperature", 0.8},           {"stream", true}};
  const Answer alone = complete(serving, request);
  const json of_tiny = {
      {"model", "tiny"}, {"prompt", "Hello"}, {"max_tokens", 8}, {"temperature", 0}};

  HttpClient streaming(serving.port);
  json same = request;
  same["return_token_ids"] = true;
  same["stream_options"] = {{"include_usage", true}};
  streaming.send("POST", "/v1/completions", same.dump());
  const Answer first = complete(serving, of_tiny);
  EXPECT_EQ(act(serving, "unload", "tiny"), 202);
  const Answer beside = answer_of(streaming.receive());
  EXPECT_EQ(beside.ids, alone.ids);
  EXPECT_EQ(beside.text, alone.text);

  ASSERT_TRUE(comes_to(serving, "tiny", "unloaded"));
  EXPECT_TRUE(find(serving, "tiny-0")["vault"]["held"].get<bool>()) << find(serving, "tiny-0");
  EXPECT_EQ(complete(serving, of_tiny).ids, first.ids);
  const json back = find(serving, "tiny-0");
  EXPECT_EQ(back["vault"]["state"], "imported") << back["vault"];
}

// Ollama's clients choose models by these facts, before any of them is loaded.
TEST(LoadedModels, AreDescribedByTheirFilesBeforeTheyAreLoaded) {
  const TemporaryFolder folder("described");
  const auto broken = folder.path() / "broken.gguf";
  std::ofstream(broken) << "GGUF, but not for long";
  const Serving serving =
      serve_model("", {"models.0.path=builtin", "models.0.name=tales", "models.0.load=first_use",
                       "models.0.context=200", "models.1.name=broken",
                       "models.1.path=" + broken.string(), "models.1.load=first_use"});
  const auto listed = [&serving](std::size_t i) {
    return json::parse(serving.get("/api/tags").body)["models"][i];
  };
  ASSERT_TRUE(Serving::eventually([&] { return listed(0)["details"]["family"] != ""; }));
  const json before = listed(0)["details"];
  EXPECT_EQ(before["families"], json{before["family"]});
  EXPECT_NE(before["parameter_size"], "");
  EXPECT_EQ(before["quantization_level"], "Q8_0");
  const auto show = [&serving] {
    return json::parse(serving.post("/api/show", R"({"model":"tales"})").body);
  };
  const json shown = show();
  EXPECT_EQ(shown["details"], before);
  EXPECT_EQ(shown["model_info"][before["family"].get<std::string>() + ".context_length"], 200);
  const json model = json::parse(serving.get("/v1/models/tales").body);
  EXPECT_EQ(model["state"], "unloaded");
  EXPECT_EQ(model["architecture"], before["family"]);
  EXPECT_EQ(model["context"], 200);

  ASSERT_TRUE(Serving::eventually([&] {
    return serving.daemon->log().find("model broken: can't be served: " + broken.string()) !=
           std::string::npos;
  })) << serving.daemon->log();
  EXPECT_EQ(listed(1)["details"]["parameter_size"], "");

  const Answer answer =
      complete(serving, {{"model", "tales"}, {"prompt", "One"}, {"max_tokens", 1}});
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(listed(0)["details"], before);
  EXPECT_EQ(show()["capabilities"], shown["capabilities"]);
}

}  // namespace
}  // namespace bulkhead::test

// Real models that are loaded and unloaded under a real stream, on the CPU's Vulkan device.
#include "tests/integration/crash/streams.hpp"
#include "tests/integration/model_serving.hpp"
#include "tests/integration/watching.hpp"
#include "tests/support/fixtures.hpp"

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

}  // namespace
}  // namespace bulkhead::test

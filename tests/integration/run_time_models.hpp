// A folder with three files of models, for tests of models that are loaded and unloaded while the daemon runs. The
// scripted worker takes as much memory as its model's file is long.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/watching.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {

class RunTimeModels : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* model : {"one.gguf", "two.gguf", "three.gguf"})
      make(model);
  }

  // A sparse file of 40 MiB.
  void make(const std::string& file) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << "the scripted worker does not read it";
    std::filesystem::resize_file(folder_ / file, std::uintmax_t{40} << 20);
  }
  // Settings for `names`, each loaded at its first use.
  std::vector<std::string> models(const std::vector<std::string>& names,
                                  std::vector<std::string> more = {}) const {
    std::vector<std::string> settings;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string entry = "models." + std::to_string(i);
      settings.push_back(entry + ".name=" + names[i]);
      settings.push_back(entry + ".path=" + (folder_ / (names[i] + ".gguf")).string());
      settings.push_back(entry + ".load=first_use");
    }
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  static json ask(const std::string& model, const std::string& prompt = "x", int tokens = 3) {
    return {{"model", model}, {"prompt", prompt}, {"max_tokens", tokens}, {"seed", 9}};
  }
  static std::string state(const Serving& serving, const std::string& model) {
    return json::parse(serving.get("/v1/models/" + model).body).value("state", "unknown");
  }
  static bool comes_to(const Serving& serving, const std::string& model,
                       const std::string& wanted) {
    return Serving::eventually([&] { return state(serving, model) == wanted; });
  }
  static HttpReply act(const Serving& serving, const std::string& action,
                       const std::string& model) {
    return serving.post("/v1/models/" + action, json{{"model", model}}.dump());
  }
  static std::unique_ptr<HttpClient> stream(const Serving& serving, const std::string& model,
                                            int tokens) {
    auto client = std::make_unique<HttpClient>(serving.port);
    json request = stream_of("slow", tokens);
    request["model"] = model;
    client->send("POST", "/v1/completions", request.dump());
    return client;
  }

  // Starts a request that the model's worker has until its client leaves.
  static std::unique_ptr<HttpClient> never_ending(const Serving& serving,
                                                  const std::string& model) {
    auto client = std::make_unique<HttpClient>(serving.port);
    json request = stream_of("never", 3);
    request["model"] = model;
    client->send("POST", "/v1/completions", request.dump());
    EXPECT_EQ(client->receive_head().status, 200);  // the worker has accepted it
    return client;
  }

  const TemporaryFolder temporary_{"loading"};
  const std::filesystem::path& folder_ = temporary_.path();
};

}  // namespace bulkhead::test

// The tokens that any correct build must generate: they are stored beside a model file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace bulkhead::test {

struct ExpectedStep {
  std::uint32_t token = 0;
  double logprob = 0;
  bool tie = false;  // implementations may differ here, so the comparison ends
};

struct ExpectedCase {
  std::string prompt;
  std::vector<std::uint32_t> prompt_tokens;
  std::string continuation;
  std::vector<ExpectedStep> steps;
};

inline std::vector<ExpectedCase> read_expectation(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const auto document = nlohmann::json::parse(stream);
  std::vector<ExpectedCase> cases;
  for (const auto& item : document.at("cases")) {
    ExpectedCase expected;
    expected.prompt = item.at("prompt").get<std::string>();
    expected.prompt_tokens = item.at("prompt_tokens").get<std::vector<std::uint32_t>>();
    expected.continuation = item.value("continuation", "");
    for (const auto& step : item.at("greedy")) {
      expected.steps.push_back({step.at("token").get<std::uint32_t>(),
                                step.at("logprob").get<double>(), step.value("tie", false)});
    }
    cases.push_back(std::move(expected));
  }
  return cases;
}

inline std::vector<ExpectedCase> expectation_of(std::filesystem::path model) {
  return read_expectation(model.replace_extension(".expected.json"));
}

}  // namespace bulkhead::test

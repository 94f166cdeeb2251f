#include "tools/cli/load_request.hpp"

#include <cstdint>
#include <iterator>
#include <random>

#include <nlohmann/json.hpp>

namespace bulkhead::cli {

using nlohmann::json;

namespace {

// Makes a prompt of everyday words, so that a word is one or two tokens. The first words have the
// request's number, so that no two prompts begin alike and no server can answer from a cache.
std::string prompt_of(std::uint64_t seed, std::size_t words) {
  static constexpr const char* kWords[] = {"river", "stone", "light",  "winter", "garden",  "story",
                                           "quiet", "paper", "window", "silver", "morning", "road"};
  std::mt19937_64 random(seed);
  std::string text = "Request " + std::to_string(seed) + ":";
  for (std::size_t i = 2; i < words; ++i)
    text += std::string(" ") + kWords[random() % std::size(kWords)];
  return text;
}

}  // namespace

json load_request(const LoadTestOptions& options, const std::string& model, std::size_t number) {
  const std::string prompt = prompt_of(options.seed * 1000003 + number, options.prompt_words);
  json body = {{"model", model},
               {"max_tokens", options.max_tokens},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (options.greedy) body["temperature"] = 0;
  if (options.completions) {
    body["prompt"] = prompt;
  } else {
    body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  }
  return body;
}

}  // namespace bulkhead::cli

// `bulkhead perplexity` against the real worker: its figure matches the exactly computed probabilities.
#include <cmath>
#include <fstream>

#include "tests/integration/model_serving.hpp"
#include "tests/integration/tool.hpp"
#include "tests/support/expected.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {
namespace {

// The fixture contains the probabilities of the answer's tokens after the prompt. So the prompt and the answer
// make one chunk; the answer is longer, and all tokens that count lie in it. The text is this chunk twice.
TEST(Perplexity, IsThatOfTheFixturesProbabilities) {
  const auto model = fixtures() / "models" / "tiny-llama-Q8_0.gguf";
  if (!std::filesystem::exists(model))
    GTEST_SKIP() << model << " is not here; set BULKHEAD_FIXTURES to its folder";
  const ExpectedCase expected = expectation_of(model).front();
  const std::size_t prompt = expected.prompt_tokens.size();
  std::vector<std::uint32_t> chunk = expected.prompt_tokens;
  for (const ExpectedStep& step : expected.steps)
    chunk.push_back(step.token);
  const std::size_t first = chunk.size() / 2 + 1;
  ASSERT_GT(first, prompt);
  double sum = 0, squares = 0;
  for (std::size_t i = first; i < chunk.size(); ++i) {
    const double negative = -expected.steps[i - prompt].logprob;
    sum += negative;
    squares += negative * negative;
  }
  const auto once = static_cast<double>(chunk.size() - first);
  const double mean = sum / once;
  // The same tokens twice have the same mean and variance, and there are twice as many of them.
  const double error = std::sqrt((squares / once - mean * mean) / (2 * once - 1)) * std::exp(mean);

  const std::string file = testing::TempDir() + "ids-" + std::to_string(::getpid());
  {
    std::ofstream ids(file);
    for (int i = 0; i < 2; ++i) {
      for (const std::uint32_t token : chunk)
        ids << token << ' ';
    }
    ids << "5 6 7\n";  // less than a chunk
  }
  const Serving serving = serve_model(model);
  const Outcome measured = tool(serving, "perplexity tiny-llama-Q8_0 --json --token-ids --file " +
                                             file + " --context " + std::to_string(chunk.size()));
  ::unlink(file.c_str());
  ASSERT_EQ(measured.code, 0) << measured.out;
  const json figures = json::parse(measured.out);
  EXPECT_EQ(figures["tokens"], 2 * (chunk.size() - first));
  EXPECT_NEAR(figures["mean_negative_log_likelihood"], mean, 0.01);
  EXPECT_NEAR(figures["perplexity"], std::exp(mean), 0.01 * std::exp(mean));
  EXPECT_NEAR(figures["standard_error"], error, 0.02 * error);
}

}  // namespace
}  // namespace bulkhead::test

// What a load test requests, and how it computes its figures.
#include "tools/cli/load_figures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tools/cli/load_request.hpp"

namespace bulkhead::cli {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

TEST(LoadRequest, AsksForWhatTheOptionsSay) {
  LoadTestOptions options;
  const nlohmann::json plain = load_request(options, "m", 3);
  EXPECT_EQ(plain["model"], "m");
  EXPECT_EQ(plain["max_tokens"], 64);
  EXPECT_FALSE(plain.contains("ignore_eos") || plain.contains("temperature")) << plain;
  EXPECT_EQ(load_request(options, "m", 3), plain);
  EXPECT_NE(load_request(options, "m", 4), plain);
  options.ignore_eos = options.greedy = options.completions = true;
  const nlohmann::json exact = load_request(options, "m", 3);
  EXPECT_EQ(exact["ignore_eos"], true);
  EXPECT_EQ(exact["temperature"], 0);
  EXPECT_EQ(exact["prompt"], plain["messages"][0]["content"]);
}

TEST(Percentiles, AreTheNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i)
    values.push_back(i);
  const Percentiles of = percentiles(values);
  EXPECT_EQ(of.p50, 50);
  EXPECT_EQ(of.p90, 90);
  EXPECT_EQ(of.p95, 95);
  EXPECT_EQ(of.p99, 99);
  EXPECT_EQ(of.most, 100);
  EXPECT_EQ(of.mean, 50.5);
  EXPECT_EQ(percentiles({7}).p99, 7);
  EXPECT_EQ(percentiles({}).most, 0);
}

TEST(LoadFigures, CountTokensAndTheTimesBetweenThem) {
  const LoadRecord plain{1.0, 1.5, {1.1, 1.2, 1.4}, 0, ""};
  const LoadRecord bundled{1.0, 3.0, {1.3, 1.5}, 4, ""};  // four tokens in two events
  const LoadRecord failed{1.2, 1.3, {}, 0, "the server is busy"};
  const LoadFigures figures = figures_of({plain, bundled, failed});
  EXPECT_EQ(figures.requests, 3U);
  EXPECT_EQ(figures.failed, 1U);
  EXPECT_EQ(figures.tokens, 7U);
  EXPECT_THAT(figures.seconds, DoubleNear(2.0, 1e-9));
  EXPECT_THAT(figures.tokens_per_second, DoubleNear(3.5, 1e-9));
  EXPECT_THAT(figures.requests_per_second, DoubleNear(1.0, 1e-9));
  EXPECT_THAT(figures.first_token_ms.p50, DoubleNear(100, 1e-6));
  EXPECT_THAT(figures.first_token_ms.most, DoubleNear(300, 1e-6));
  EXPECT_THAT(figures.inter_token_ms.p50, DoubleNear(100, 1e-6));  // 100, 200, and 200 for two
  EXPECT_THAT(figures.inter_token_ms.most, DoubleNear(200, 1e-6));
  EXPECT_THAT(figures.total_ms.most, DoubleNear(2000, 1e-6));
  EXPECT_EQ(to_json(figures)["first_error"], "the server is busy");
  EXPECT_THAT(to_text(figures), HasSubstr("3 requests in 2.00 s, 1 failed"));
}

TEST(LoadFigures, OfNothingAreZero) {
  const LoadFigures figures = figures_of({});
  EXPECT_EQ(figures.requests, 0U);
  EXPECT_EQ(figures.tokens_per_second, 0);
  EXPECT_FALSE(to_json(figures).contains("first_error"));
}

}  // namespace
}  // namespace bulkhead::cli

#include "tools/cli/perplexity_sum.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::cli {
namespace {

// Worked by hand: of 8 tokens, those with the numbers 5, 6 and 7 count. Their probabilities are 1/2, 1/4 and 1/8. So
// the mean of the negative logarithms is (1 + 2 + 3) / 3 = 2 times ln 2, and the perplexity is 4. Their variance is
// ((1 + 4 + 9) / 3 - 4) = 2/3 times (ln 2)^2; the error of the mean is the root of half of that.
TEST(PerplexitySum, CountsTheSecondHalfOfAChunk) {
  PerplexitySum sum;
  const double unseen = -1000;
  sum.add_chunk(std::vector<double>{0, unseen, unseen, unseen, unseen, std::log(0.5),
                                    std::log(0.25), std::log(0.125)});
  EXPECT_EQ(sum.count(), 3U);
  EXPECT_NEAR(sum.mean(), 2 * std::log(2), 1e-12);
  EXPECT_NEAR(sum.perplexity(), 4, 1e-12);
  EXPECT_NEAR(sum.error(), 4 * std::log(2) * std::sqrt(1.0 / 3), 1e-12);
}

TEST(PerplexitySum, AddsUpOverChunks) {
  PerplexitySum sum;
  sum.add_chunk(std::vector<double>{0, -9, -9, std::log(0.5)});
  EXPECT_EQ(sum.count(), 1U);
  EXPECT_NEAR(sum.perplexity(), 2, 1e-12);
  EXPECT_EQ(sum.error(), 0);  // one token does not show an error
  sum.add_chunk(std::vector<double>{0, -9, -9, std::log(0.125)});
  EXPECT_EQ(sum.count(), 2U);
  EXPECT_NEAR(sum.perplexity(), 4, 1e-12);
  sum.add_chunk(std::vector<double>{0, -9, -9, std::log(0.25)});
  sum.add_chunk(std::vector<double>{0});  // none of these tokens counts
  EXPECT_EQ(sum.count(), 3U);
}

}  // namespace
}  // namespace bulkhead::cli

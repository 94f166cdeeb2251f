// The statistics of comparisons, tested against textbook tables.
#include "bench/paired.hpp"

#include <numeric>

#include <gtest/gtest.h>

namespace bulkhead::bench {
namespace {

// Returns 1, 2, ..., n, so each value is its own place.
std::vector<double> places(std::size_t n) {
  std::vector<double> values(n);
  std::iota(values.rbegin(), values.rend(), 1.0);
  return values;
}

TEST(MedianInterval, HasTheTablesPlaces) {
  struct Row {
    std::size_t n;
    double low, high;
  };
  for (const Row& row : {Row{6, 1, 6}, Row{8, 1, 8}, Row{9, 2, 8}, Row{12, 3, 10}, Row{15, 4, 12},
                         Row{20, 6, 15}, Row{30, 10, 21}, Row{50, 18, 33}, Row{100, 40, 61}}) {
    const MedianInterval interval = median_interval(places(row.n));
    EXPECT_EQ(interval.low, row.low) << row.n;
    EXPECT_EQ(interval.high, row.high) << row.n;
    EXPECT_TRUE(interval.confident);
    EXPECT_EQ(interval.median, (static_cast<double>(row.n) + 1) / 2);
  }
}

TEST(MedianInterval, OfFewPairsIsNotConfident) {
  EXPECT_FALSE(median_interval({}).confident);
  const MedianInterval interval = median_interval(places(5));
  EXPECT_FALSE(interval.confident);
  EXPECT_EQ(interval.low, 1);
  EXPECT_EQ(interval.high, 5);
  EXPECT_STREQ(verdict(interval, 10), "open");
}

TEST(MedianInterval, IsWithinBeyondOrOpen) {
  const MedianInterval interval = median_interval(places(20));  // from place 6 to place 15
  EXPECT_STREQ(verdict(interval, 15), "within");
  EXPECT_STREQ(verdict(interval, 14), "open");
  EXPECT_STREQ(verdict(interval, 6), "open");
  EXPECT_STREQ(verdict(interval, 5), "beyond");
}

TEST(Quantile, IsOneOfTheValues) {
  EXPECT_EQ(quantile(places(100), 0.5), 51);
  EXPECT_EQ(quantile(places(100), 1), 100);
  EXPECT_EQ(quantile({}, 0.5), 0);
}

}  // namespace
}  // namespace bulkhead::bench

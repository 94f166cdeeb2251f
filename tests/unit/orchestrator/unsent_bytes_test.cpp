// The bytes that a connection has not sent yet.
#include "orchestrator/http/unsent_bytes.hpp"

#include <string>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

TEST(UnsentBytes, ComeOutInTheOrderInWhichTheyCame) {
  std::string all, sent;
  UnsentBytes unsent;
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::string more(i % 37, static_cast<char>('a' + i % 26));
    all += more;
    unsent.append(more);
    const std::string slice(unsent.front(i % 41));
    sent += slice;
    unsent.drop(slice.size());
    ASSERT_EQ(unsent.size(), all.size() - sent.size());
  }
  sent += unsent.front();
  EXPECT_EQ(sent, all);
  unsent.drop(unsent.size());
  EXPECT_TRUE(unsent.empty());
  EXPECT_EQ(unsent.front(), "");
}

TEST(UnsentBytes, ThatAreLeftAreSeldomMoved) {
  constexpr std::size_t kSlices = 1000;
  const std::string slice(100, 'x');
  UnsentBytes unsent;
  for (std::size_t i = 0; i < kSlices; ++i)
    unsent.append(slice);
  std::size_t moves = 0;
  while (!unsent.empty()) {
    const char* const next = unsent.front().data() + slice.size();
    unsent.drop(slice.size());
    moves += unsent.front().data() == next ? 0 : 1;
  }
  EXPECT_LE(moves, 11U);  // each move halves what is left
}

}  // namespace
}  // namespace bulkhead::orchestrator

#include "orchestrator/router/prefix_routes.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

constexpr std::size_t kBlock = PrefixRoutes::kBlockBytes;

std::vector<std::uint64_t> blocks_of(const std::string& text) {
  ipc::Submit submit;
  submit.prompt = text;
  return prefix_blocks(submit);
}

TEST(PrefixRoutes, BlocksAreAlikeAsFarAsPromptsAre) {
  const std::string shared(2 * kBlock, 'a');
  const auto one = blocks_of(shared + std::string(kBlock, 'b') + "end");
  const auto two = blocks_of(shared + std::string(2 * kBlock, 'c'));
  ASSERT_EQ(one.size(), 3U);
  ASSERT_EQ(two.size(), 4U);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_EQ(one[1], two[1]);
  EXPECT_NE(one[2], two[2]);
  EXPECT_NE(one[0], one[1]) << "a hash covers what is before its block";
  EXPECT_TRUE(blocks_of(std::string(kBlock - 1, 'a')).empty());
  EXPECT_EQ(blocks_of(std::string(1000 * kBlock, 'a')).size(), PrefixRoutes::kMostBlocks);
  EXPECT_TRUE(prefix_blocks(ipc::Tokenize{}).empty());
}

TEST(PrefixRoutes, EveryFormOfAPromptHasBlocks) {
  ipc::Submit submit;
  submit.prompt = std::vector<ipc::TokenId>(kBlock / sizeof(ipc::TokenId), 7);
  EXPECT_EQ(prefix_blocks(submit).size(), 1U);
  submit.prompt = std::vector<ipc::ChatMessage>{{"user", std::string(kBlock, 'x')}};
  EXPECT_EQ(prefix_blocks(submit).size(), 1U);
  submit.prompt = ipc::ChatPrompt{std::string(kBlock, 'x'), 0};
  EXPECT_EQ(prefix_blocks(submit).size(), 1U);
}

TEST(PrefixRoutes, FindsWhoHadTheLongestBeginning) {
  PrefixRoutes routes;
  const std::string shared(2 * kBlock, 'a');
  const auto first = blocks_of(shared + std::string(kBlock, 'b'));
  const auto second = blocks_of(shared + std::string(kBlock, 'c'));
  EXPECT_EQ(routes.holder_of(0, first), "");
  routes.note(0, first, "one");
  EXPECT_EQ(routes.holder_of(0, second), "one");
  routes.note(0, second, "two");
  EXPECT_EQ(routes.holder_of(0, first), "one");
  EXPECT_EQ(routes.holder_of(0, second), "two");
  EXPECT_EQ(routes.holder_of(0, blocks_of(shared)), "two");  // both know it, "two" more recently
  EXPECT_EQ(routes.holder_of(1, first), "") << "of another model";
  EXPECT_EQ(routes.holder_of(0, {}), "");
}

TEST(PrefixRoutes, ForgetsWhatWasNotedLongestAgo) {
  PrefixRoutes routes;
  const std::vector<std::uint64_t> old = {1}, kept = {2};
  routes.note(0, old, "one");
  routes.note(0, kept, "one");
  for (std::uint64_t i = 0; i + 1 < PrefixRoutes::kMostKept; ++i) {
    routes.note(0, std::vector{1000 + i}, "two");
    if (i % 1000 == 0) routes.note(0, kept, "one");
  }
  EXPECT_EQ(routes.holder_of(0, old), "");
  EXPECT_EQ(routes.holder_of(0, kept), "one");
}

}  // namespace
}  // namespace bulkhead::orchestrator

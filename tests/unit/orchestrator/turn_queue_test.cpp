#include "orchestrator/router/turn_queue.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

const auto kAny = [](RequestId) { return true; };

std::vector<std::uint64_t> taken(TurnQueue& queue, std::size_t count) {
  std::vector<std::uint64_t> order;
  while (order.size() < count) {
    const auto request = queue.take(kAny);
    if (!request) break;
    order.push_back(request->value);
  }
  return order;
}

using Order = std::vector<std::uint64_t>;

TEST(TurnQueue, TakesOneOfEachKeyInTurns) {
  TurnQueue queue;
  for (const std::uint64_t id : {11, 12, 13, 14, 15})
    queue.push(RequestId{id}, "alice");
  for (const std::uint64_t id : {21, 22})
    queue.push(RequestId{id}, "bob");
  queue.push(RequestId{31}, "carol");
  EXPECT_EQ(queue.size(), 8U);
  EXPECT_EQ(taken(queue, 100), (Order{11, 21, 31, 12, 22, 13, 14, 15}));
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.take(kAny));
}

TEST(TurnQueue, AKeyThatComesBackWaitsOneTurnOfTheOthers) {
  TurnQueue queue;
  for (std::uint64_t id = 100; id < 200; ++id)
    queue.push(RequestId{id}, "many");
  EXPECT_EQ(taken(queue, 3), (Order{100, 101, 102}));
  queue.push(RequestId{1}, "one");
  EXPECT_EQ(taken(queue, 2), (Order{103, 1}));
  queue.push(RequestId{2}, "one");
  EXPECT_EQ(taken(queue, 3), (Order{104, 2, 105}));
}

TEST(TurnQueue, WhatHadBegunIsFirstInItsOldOrder) {
  TurnQueue queue;
  queue.push(RequestId{5}, "alice");
  queue.push_begun(RequestId{3});
  queue.push_begun(RequestId{4});
  queue.put_back(RequestId{2});
  queue.put_back(RequestId{1});
  EXPECT_EQ(taken(queue, 100), (Order{1, 2, 3, 4, 5}));
}

TEST(TurnQueue, TakesOnlyWhatMayBeTaken) {
  TurnQueue queue;
  queue.push(RequestId{1}, "alice");
  queue.push(RequestId{2}, "alice");
  queue.push(RequestId{3}, "bob");
  EXPECT_EQ(queue.take([](RequestId each) { return each.value == 2; }), RequestId{2});
  EXPECT_FALSE(queue.take([](RequestId each) { return each.value > 3; }));
  EXPECT_EQ(taken(queue, 100), (Order{3, 1}));  // alice's turn was first
}

TEST(TurnQueue, ForgetsWhatIsErased) {
  TurnQueue queue;
  queue.push(RequestId{1}, "alice");
  queue.push(RequestId{2}, "bob");
  queue.push_begun(RequestId{3});
  for (const std::uint64_t id : {1, 3, 7})
    queue.erase(RequestId{id});
  EXPECT_EQ(queue.all(), std::vector<RequestId>{RequestId{2}});
  EXPECT_EQ(taken(queue, 100), Order{2});
  queue.push(RequestId{4}, "alice");
  queue.erase(RequestId{4});
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace bulkhead::orchestrator

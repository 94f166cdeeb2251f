#include "tools/cli/sse.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bulkhead::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Cuts the text in two in every possible way; the events must be the same.
std::vector<std::string> events_of(const std::string& text) {
  std::vector<std::string> whole;
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    SseParser parser;
    std::vector<std::string> events;
    const auto keep = [&](std::string_view data) { events.emplace_back(data); };
    EXPECT_TRUE(parser.push(text.substr(0, cut), keep));
    EXPECT_TRUE(parser.push(text.substr(cut), keep));
    if (cut == 0) whole = events;
    EXPECT_EQ(events, whole) << "cut at " << cut;
  }
  return whole;
}

TEST(Sse, EventsWithEachKindOfLineEnd) {
  EXPECT_THAT(events_of("data: a\n\ndata: b\r\n\r\ndata:c\r\r"), ElementsAre("a", "b", "c"));
}

TEST(Sse, DataLinesOfOneEventAreJoined) {
  EXPECT_THAT(events_of("data: a\ndata:  b\n\n"), ElementsAre("a\n b"));
}

TEST(Sse, CommentsAndOtherFieldsArePassedOver) {
  EXPECT_THAT(events_of(": ping\n\nevent: x\nid: 3\ndata: y\n\nretry: 5\n\n"), ElementsAre("y"));
}

TEST(Sse, AnEmptyDataLineIsAnEmptyEvent) {
  EXPECT_THAT(events_of("data:\n\n"), ElementsAre(""));
}

TEST(Sse, AnUnfinishedEventIsNone) {
  EXPECT_THAT(events_of("data: a\n"), IsEmpty());
}

TEST(Sse, AnEventWithoutEndIsGivenUp) {
  SseParser parser;
  const std::string much(1 << 20, 'x');
  bool going = true;
  int pushes = 0;
  while (going && pushes < 100) {
    going = parser.push(much, [](std::string_view) {});
    ++pushes;
  }
  EXPECT_FALSE(going);
  EXPECT_LE(pushes, 18);
}

}  // namespace
}  // namespace bulkhead::cli

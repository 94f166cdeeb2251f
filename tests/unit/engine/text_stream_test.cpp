#include "worker/engine/text_stream.hpp"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::engine {
namespace {

// The text released after each piece, and whether the last piece ended the text.
struct Streamed {
  std::vector<std::string> released;
  bool stopped = false;
  std::string text() const {
    std::string all;
    for (const std::string& part : released)
      all += part;
    return all;
  }
};

Streamed streamed(std::vector<std::string> stop, const std::vector<std::string>& pieces) {
  TextStream stream(std::move(stop));
  Streamed result;
  for (const std::string& piece : pieces) {
    result.stopped = stream.push(piece, result.released.emplace_back());
    if (result.stopped) return result;
  }
  result.stopped = stream.finish(result.released.emplace_back());
  return result;
}

TEST(TextStream, PassesTextThroughAtOnceWithoutStopStrings) {
  EXPECT_EQ(streamed({}, {"one ", "two"}).released, (std::vector<std::string>{"one ", "two", ""}));
}

TEST(TextStream, SaysWhichStopStringEndedIt) {
  const auto stopped_by = [](std::vector<std::string> stop, std::string_view text) {
    TextStream stream(std::move(stop));
    std::string released;
    if (!stream.push(text, released)) stream.finish(released);
    return stream.stopped_by();
  };
  EXPECT_EQ(stopped_by({"END", "STOP"}, "a STOP b END"), "STOP");
  EXPECT_EQ(stopped_by({"", "ab", "abc"}, "xabc"), "ab");
  EXPECT_EQ(stopped_by({"END"}, "a EN"), "");
}

TEST(TextStream, HoldsBackWhatMayBeginAStopString) {
  const Streamed held = streamed({"END"}, {"a E", "N", "x"});
  EXPECT_EQ(held.released, (std::vector<std::string>{"a ", "", "ENx", ""}));
  EXPECT_FALSE(held.stopped);
}

TEST(TextStream, StopStringOverTokenBorders) {
  const Streamed stopped = streamed({"\n\nUser:"}, {"Hi.", "\n", "\nUs", "er: more"});
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.text(), "Hi.");
}

TEST(TextStream, EarliestOfSeveralStopStringsWins) {
  EXPECT_EQ(streamed({"cd", "bc"}, {"abcd"}).text(), "a");
  EXPECT_EQ(streamed({"bc", "cd"}, {"abcd"}).text(), "a");
}

TEST(TextStream, RestartsInsideAFalseBeginning) {
  EXPECT_EQ(streamed({"aab"}, {"a", "a", "a", "b"}).text(), "a");
}

TEST(TextStream, EndReleasesWhatWasHeld) {
  const Streamed ended = streamed({"END"}, {"the EN"});
  EXPECT_EQ(ended.released, (std::vector<std::string>{"the ", "EN"}));
  EXPECT_FALSE(ended.stopped);
}

TEST(TextStream, EmptyStopStringsAreIgnored) {
  EXPECT_EQ(streamed({""}, {"abc"}).text(), "abc");
}

TEST(TextStream, CharactersArriveWhole) {
  const Streamed emoji = streamed({}, {"x\xF0", "\x9F", "\x90", "\x8D!"});
  EXPECT_EQ(emoji.released, (std::vector<std::string>{"x", "", "", "\xF0\x9F\x90\x8D!", ""}));
}

TEST(TextStream, UnfinishedCharacterAtTheEndIsReplaced) {
  EXPECT_EQ(streamed({}, {"x\xF0\x9F"}).text(), "x\xEF\xBF\xBD");
}

TEST(TextStream, StopStringOfSeveralBytesPerCharacter) {
  const Streamed stopped = streamed({"日本"}, {"x日", "\xE6", "\x9C\xAC", "y"});
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.text(), "x");
}

// However the bytes are divided into tokens, the text must be that of a search over the whole text.
TEST(TextStream, CuttingMakesNoDifference) {
  std::mt19937 random(11);
  int stops = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string whole;
    for (int i = 0; i < 24; ++i)
      whole += "abé"[random() % 2];
    if (random() % 2 == 0) whole.insert(random() % whole.size(), "é");
    // Only one stop string: with several, the one that ends first depends on the pieces.
    std::string stop;
    for (std::uint32_t i = 0; i < 3 + random() % 4; ++i)
      stop += "ab"[random() % 2];
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < whole.size();) {
      const std::size_t length = 1 + random() % 5;
      pieces.push_back(whole.substr(at, length));
      at += length;
    }
    const std::size_t found = whole.find(stop);
    const Streamed result = streamed({stop}, pieces);
    ASSERT_EQ(result.stopped, found != std::string::npos) << whole << " / " << stop;
    ASSERT_EQ(result.text(), whole.substr(0, found)) << whole << " / " << stop;
    stops += result.stopped ? 1 : 0;
  }
  EXPECT_GT(stops, 200);
  EXPECT_LT(stops, 1800);
}

}  // namespace
}  // namespace bulkhead::engine

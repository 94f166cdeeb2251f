// Compares merging with its plain definition: look at all neighbours, merge the best pair, and repeat.
#include "worker/model/merge.hpp"

#include <functional>
#include <map>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/tokenizer.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;
using testing::open_bytes;
using Parts = std::vector<std::string>;
// Returns the rank of a pair of texts; lower ranks merge first.
using Rank = std::function<std::optional<std::int64_t>(const std::string&, const std::string&)>;

Parts merge_slowly(Parts parts, const Rank& rank) {
  for (;;) {
    std::optional<std::int64_t> best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = rank(parts[i], parts[i + 1]);
      if (!found || (best && *found >= *best)) continue;
      best = found;
      at = i;
    }
    if (!best) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Returns a short length, for which the heap works, or a long one, for which the buckets work.
std::size_t word_length(std::mt19937& random, int round) {
  return round % 24 == 0 ? 500 + random() % 1200 : 1 + random() % 40;
}

// Returns pairs in random order, made from one another, so that a merge often makes a pair of a lower rank.
std::vector<std::pair<std::string, std::string>> random_pairs(const Parts& letters,
                                                              std::size_t count,
                                                              std::mt19937& random) {
  Parts texts = letters;
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    const auto pick = [&] { return texts[random() % std::min<std::size_t>(texts.size(), 24)]; };
    pairs.emplace_back(pick(), pick());
    const std::string both = pairs.back().first + pairs.back().second;
    if (both.size() < 12 && std::find(texts.begin(), texts.end(), both) == texts.end())
      texts.push_back(both);
  }
  std::shuffle(pairs.begin(), pairs.end(), random);
  return pairs;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string text;
  for (const TokenId id : ids)
    text += std::string(tokenizer.vocabulary_text(id)) + "|";
  return text;
}
std::string text_of(const Parts& parts) {
  std::string text;
  for (const std::string& part : parts)
    text += part + "|";
  return text;
}

TEST(Merge, OfByteLevelVocabulariesIsTheDefinition) {
  std::mt19937 random(11);
  for (int round = 0; round < test::rounds(240); ++round) {
    const std::size_t alphabet = 1 + random() % 4;
    Parts letters;
    for (std::size_t i = 0; i < alphabet; ++i)
      letters.emplace_back(1, static_cast<char>('a' + i));
    const auto pairs = random_pairs(letters, 1 + random() % 60, random);
    std::map<std::pair<std::string, std::string>, std::int64_t> ranks;
    Parts tokens = letters;
    Parts merges;
    for (const auto& pair : pairs) {
      ranks.emplace(pair, static_cast<std::int64_t>(merges.size()));
      merges.push_back(pair.first + " " + pair.second);
      for (const std::string& text : {pair.first, pair.second, pair.first + pair.second})
        if (std::find(tokens.begin(), tokens.end(), text) == tokens.end()) tokens.push_back(text);
    }
    GgufBuilder file;
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
    file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", merges);
    const std::string bytes = file.bytes();
    const auto opened = open_bytes(bytes);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto tokenizer = Tokenizer::from_gguf(**opened);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();

    Parts parts;
    std::string word;
    for (std::size_t left = word_length(random, round); left > 0; --left)
      word += parts.emplace_back(letters[random() % alphabet]);
    const Parts wanted = merge_slowly(
        parts, [&](const std::string& a, const std::string& b) -> std::optional<std::int64_t> {
          const auto found = ranks.find({a, b});
          if (found == ranks.end()) return std::nullopt;
          return found->second;
        });
    ASSERT_EQ(text_of(**tokenizer, (*tokenizer)->encode(word, false, false)), text_of(wanted))
        << "round " << round << ": " << word;
  }
}

TEST(Merge, OfScoredVocabulariesIsTheDefinition) {
  std::mt19937 random(12);
  for (int round = 0; round < test::rounds(240); ++round) {
    // Spaces, a letter of two bytes, and one that is a token only together with others.
    const Parts all{"a", "b", "\xC3\xA9", "\xE2\x96\x81", "x"};
    const std::size_t alphabet = 1 + random() % all.size();
    const Parts letters(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(alphabet));
    Parts tokens{"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types{2, 3, 3};
    std::vector<float> scores{0, 0, 0};
    std::map<std::string, float> known;
    const int distinct = round % 3 == 0 ? 1 : round % 3 == 1 ? 5 : 1'000'000;
    const auto add = [&](const std::string& text) {
      const float score = static_cast<float>(static_cast<int>(random()) % distinct) / 7.0F;
      if (!known.emplace(text, score).second) return;
      tokens.push_back(text);
      types.push_back(1);
      scores.push_back(score);
    };
    for (const std::string& letter : letters)
      if (letter != "x") add(letter);
    for (const auto& [left, right] : random_pairs(letters, 1 + random() % 60, random))
      add(left + right);
    if (!known.contains("x")) {
      tokens.emplace_back("<0x78>");
      types.push_back(6);
      scores.push_back(0);
    }
    GgufBuilder file;
    file.text("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
    file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
    file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, scores);
    file.boolean("tokenizer.ggml.add_space_prefix", false);
    const std::string bytes = file.bytes();
    const auto opened = open_bytes(bytes);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto tokenizer = Tokenizer::from_gguf(**opened);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();

    Parts parts;
    std::string text;
    for (std::size_t left = word_length(random, round); left > 0; --left) {
      const std::string& letter = parts.emplace_back(letters[random() % alphabet]);
      text += letter == "\xE2\x96\x81" && random() % 8 != 0 ? " " : letter;
    }
    // Higher scores merge first, so the order of distinct floats is reversed.
    std::map<float, std::int64_t, std::greater<>> order;
    for (const auto& [token, score] : known)
      order[score] = 0;
    std::int64_t next = 0;
    for (auto& [score, rank] : order)
      rank = next++;
    Parts wanted = merge_slowly(
        parts, [&](const std::string& a, const std::string& b) -> std::optional<std::int64_t> {
          const auto found = known.find(a + b);
          if (found == known.end()) return std::nullopt;
          return order[found->second];
        });
    for (std::string& part : wanted)
      if (!known.contains(part)) part = "<0x78>";
    ASSERT_EQ(text_of(**tokenizer, (*tokenizer)->encode(text, false, false)), text_of(wanted))
        << "round " << round << ": " << text;
  }
}

TEST(Merge, LooksAtEachPairAFewTimesAtMost) {
  for (const std::uint32_t n : {100U, 1'000U, 100'000U}) {
    MergeScratch scratch;
    scratch.chain.clear(n);
    for (std::uint32_t i = 0; i < n; ++i)
      scratch.chain.add(0, 1);
    std::uint64_t looks = 0;
    merge_all(scratch, 6, [&](std::uint32_t left, std::uint32_t right) -> std::optional<MergeRule> {
      ++looks;
      const std::uint32_t id = scratch.chain.id(left);
      if (id != scratch.chain.id(right) || id > 5) return std::nullopt;
      return MergeRule{id, id + 1};
    });
    // At most n at first, two for each merge, and one for each merge that was queued.
    EXPECT_LE(looks, 6ULL * n);
    EXPECT_EQ(scratch.chain.next(0), 64U);
  }
}

TEST(Merge, QueueGivesTheLowestRankThenTheLeftmost) {
  std::mt19937 random(13);
  MergeQueue queue;
  for (const std::size_t count : {10U, 5'000U, 200'000U, 10U}) {
    queue.start(100, count);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted;
    for (std::size_t i = 0; i < count; ++i)
      wanted.emplace_back(random() % 100, random() % 1'000'000);
    for (const auto& [rank, at] : wanted)
      queue.push(rank, at);
    std::sort(wanted.begin(), wanted.end());
    std::vector<std::pair<std::uint32_t, std::uint32_t>> got;
    while (const auto item = queue.pop())
      got.emplace_back(item->rank, item->at);
    EXPECT_EQ(got, wanted) << count;
  }
}

}  // namespace
}  // namespace bulkhead::model

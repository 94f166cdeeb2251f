#include "ipc/messages.hpp"

#include <cstring>
#include <new>
#include <random>

#include <gtest/gtest.h>

#include "ipc/utf8.hpp"
#include "tests/unit/ipc/samples.hpp"

namespace bulkhead::ipc {
namespace {

using test::sample_batch;

template <typename Message>
std::vector<std::uint64_t> encoded(const Message& message) {
  std::vector<std::uint64_t> words(encoded_bound(message) / 8, 0xAAAAAAAAAAAAAAAAU);
  const auto bytes = encode(message, std::as_writable_bytes(std::span(words)));
  EXPECT_TRUE(bytes.ok()) << bytes.error().message();
  words.resize(*bytes / 8);
  return words;
}

std::span<const std::byte> record(const std::vector<std::uint64_t>& words) {
  return std::as_bytes(std::span(words));
}

TEST(Messages, FromWorkerRoundTrip) {
  for (const FromWorker& message : test::samples_from_worker()) {
    const auto words = encoded(message);
    const auto back = decode_from_worker(record(words));
    ASSERT_TRUE(back.ok()) << message.index() << ": " << back.error().message();
    EXPECT_EQ(*back, message) << message.index();
  }
}

TEST(Messages, ToWorkerRoundTrip) {
  for (const ToWorker& message : test::samples_to_worker()) {
    const auto words = encoded(message);
    const auto back = decode_to_worker(record(words));
    ASSERT_TRUE(back.ok()) << message.index() << ": " << back.error().message();
    EXPECT_EQ(*back, message) << message.index();
  }
}

TEST(Messages, BoundIsExactlyEnough) {
  // The bound is the most that encoding takes; these messages leave nothing out, so it is exact.
  for (const FromWorker& message : test::samples_from_worker()) {
    std::vector<std::uint64_t> small(encoded_bound(message) / 8 - 1);
    const auto failed = encode(message, std::as_writable_bytes(std::span(small)));
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code(), ErrorCode::kResourceExhausted);
  }
}

TEST(Messages, WrongDirectionIsCorrupt) {
  for (const ToWorker& message : test::samples_to_worker()) {
    const auto back = decode_from_worker(record(encoded(message)));
    ASSERT_FALSE(back.ok());
    EXPECT_EQ(back.error().code(), ErrorCode::kCorrupt);
  }
  for (const FromWorker& message : test::samples_from_worker()) {
    const auto back = decode_to_worker(record(encoded(message)));
    ASSERT_FALSE(back.ok());
    EXPECT_EQ(back.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(Messages, VisitTokensSeesWhatDecodeSees) {
  const TokenBatch batch = sample_batch(16, 4, true);
  const auto words = encoded(batch);
  std::size_t i = 0;
  const auto visited = visit_tokens(record(words), [&](const SequenceTokensView& view) {
    const SequenceTokens& expected = batch.sequences.at(i++);
    EXPECT_EQ(view.request, expected.request);
    EXPECT_EQ(view.first_index, expected.first_index);
    EXPECT_TRUE(std::ranges::equal(view.tokens, expected.tokens));
    EXPECT_EQ(view.text, expected.text);
    EXPECT_EQ(view.logprobs, expected.logprobs);
  });
  ASSERT_TRUE(visited.ok());
  EXPECT_TRUE(*visited);
  EXPECT_EQ(i, batch.sequences.size());
}

TEST(Messages, AnExceptionOfAVisitIsNoBrokenRule) {
  const auto words = encoded(sample_batch(3, 1, false));
  int visits = 0;
  const auto visit = [&](const SequenceTokensView&) {
    if (++visits == 2) throw std::bad_alloc();
  };
  EXPECT_THROW((void)visit_tokens(record(words), visit), std::bad_alloc);
  EXPECT_EQ(visits, 2);
}

TEST(Messages, VisitTokensLeavesOtherMessagesAlone) {
  const auto visited =
      visit_tokens(record(encoded(FromWorker(Pong{1}))), [](const auto&) { FAIL(); });
  ASSERT_TRUE(visited.ok());
  EXPECT_FALSE(*visited);
}

TEST(Messages, TokensTextMustBeUtf8) {
  TokenBatch batch = sample_batch(1, 1, false);
  for (const char* bad :
       {"\xFF", "\xC3", "\xE4\xB8", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80"}) {
    batch.sequences[0].text = bad;
    const auto words = encoded(batch);
    EXPECT_FALSE(decode_from_worker(record(words)).ok());
    EXPECT_FALSE(visit_tokens(record(words), [](const auto&) {}).ok());
  }
}

TEST(Messages, FinishedTextMustBeUtf8) {
  const auto back = decode_from_worker(
      record(encoded(FromWorker(Finished{{}, FinishReason::kStop, "\xE4\xB8"}))));
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().code(), ErrorCode::kCorrupt);
}

TEST(Messages, WorkersOwnTextIsRepaired) {
  // A model file's metadata may hold any bytes; they must not end the worker.
  const auto back = decode_from_worker(record(encoded(FromWorker(Fatal{"bad \xFF\xE4\xB8 name"}))));
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(std::get<Fatal>(*back).message, "bad ??? name");
}

TEST(Messages, LogprobsMustMatchTokens) {
  TokenBatch batch = sample_batch(1, 3, true);
  batch.sequences[0].logprobs.pop_back();
  const auto words = encoded(batch);
  EXPECT_FALSE(decode_from_worker(record(words)).ok());
  EXPECT_FALSE(visit_tokens(record(words), [](const auto&) {}).ok());
}

TEST(Messages, UnknownEnumeratorIsCorrupt) {
  const auto finished = decode_from_worker(
      record(encoded(FromWorker(Finished{{}, static_cast<FinishReason>(9), ""}))));
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(decode_from_worker(
                   record(encoded(FromWorker(Failed{{}, static_cast<FailureCode>(77), "", ""}))))
                   .ok());
}

// ---- records made by hand: the kind, then structs, each with its length before it ----

class RecordWriter {
 public:
  RecordWriter& number(std::uint32_t value) {
    words_.push_back(value);
    return *this;
  }
  RecordWriter& numbers(std::size_t count, std::uint32_t value) {
    words_.insert(words_.end(), count, value);
    return *this;
  }
  std::vector<std::uint64_t> take() const {
    std::vector<std::uint64_t> record((words_.size() + 1) / 2);
    std::memcpy(record.data(), words_.data(), words_.size() * 4);
    return record;
  }

 private:
  std::vector<std::uint32_t> words_;
};

std::string refusal(const std::vector<std::uint64_t>& words) {
  const auto back = decode_from_worker(record(words));
  if (back.ok()) return "it was read";
  EXPECT_EQ(back.error().code(), ErrorCode::kCorrupt);
  return back.error().message();
}

TEST(Messages, ListThatClaimsMoreThanTheRecordHoldsIsCorrupt) {
  // Makes the part of Stats before its counters: four 32-bit parts of two numbers, two numbers, four of two numbers.
  const auto stats = [](std::uint32_t counters, std::size_t counter_words) {
    const auto bytes = static_cast<std::uint32_t>(4 * (8 + 1 + counter_words));
    return RecordWriter()
        .number(Stats::kKind)
        .number(bytes)
        .numbers(8, 0)
        .number(counters)
        .numbers(counter_words, 0)
        .take();
  };
  EXPECT_NE(refusal(stats(400, 100)).find("stats.counters claims 400"), std::string::npos);
  EXPECT_NE(refusal(stats(0xFFFFFFFF, 100)).find("claims 4294967295"), std::string::npos);
  // Each of these counters is an empty struct: 4 bytes in the record, but ten times that on the heap.
  EXPECT_NE(refusal(stats(400000, 400000)).find("claims 400000 elements"), std::string::npos);
}

TEST(Messages, LengthsMustFitWhatIsAroundThem) {
  EXPECT_NE(refusal(RecordWriter().number(Pong::kKind).number(16).numbers(2, 0).take())
                .find("pong claims 16 bytes"),
            std::string::npos);
  EXPECT_NE(refusal(RecordWriter().number(Fatal::kKind).number(8).number(5).number(0).take())
                .find("fatal.message claims 5 bytes"),
            std::string::npos);
  EXPECT_NE(refusal(RecordWriter().number(Pong::kKind).number(4).numbers(2, 0).take())
                .find("pong.nonce is cut off"),
            std::string::npos);
  EXPECT_NE(refusal(RecordWriter().number(Pong::kKind).number(12).numbers(4, 0).take())
                .find("more fields"),
            std::string::npos);
  EXPECT_NE(refusal(RecordWriter().number(Drained::kKind).number(0).numbers(2, 0).take())
                .find("after its end"),
            std::string::npos);
}

TEST(Messages, NothingIsReadBeyondACut) {
  for (const FromWorker& message : test::samples_from_worker()) {
    auto words = encoded(message);
    if (words.size() < 2) continue;
    words.pop_back();
    EXPECT_FALSE(decode_from_worker(record(words)).ok()) << message.index();
  }
}

TEST(Messages, FieldsThatAnOlderProgramDidNotWriteHaveTheirDefaults) {
  const auto finished = decode_from_worker(record(
      RecordWriter().number(Finished::kKind).number(12).number(7).number(0).number(1).take()));
  ASSERT_TRUE(finished.ok()) << finished.error().message();
  Finished expected;
  expected.request = RequestId{7};
  expected.reason = FinishReason::kLength;
  EXPECT_EQ(*finished, FromWorker(expected));
}

TEST(Messages, BooleansAreNothingElse) {
  auto words = encoded(FromWorker(Ready{}));
  auto* numbers = reinterpret_cast<std::uint32_t*>(words.data());
  // The kind, the length, four empty texts, two numbers, three of two words each; then has_chat_template.
  numbers[2 + 4 + 2 + 6] = 2;
  EXPECT_NE(refusal(words).find("ready.has_chat_template has the unknown value 2"),
            std::string::npos);
}

TEST(Messages, ErrorsNameTheFieldInside) {
  Ready ready;
  ready.vault.state = static_cast<VaultState>(9);
  EXPECT_NE(refusal(encoded(FromWorker(ready))).find("ready.vault.state has the unknown value 9"),
            std::string::npos);
  TokenBatch batch = sample_batch(1, 1, false);
  batch.sequences[0].text = "ab\xFF";
  EXPECT_NE(refusal(encoded(batch)).find("tokens.sequences.text is not UTF-8 at byte 2"),
            std::string::npos);
}

TEST(Messages, MutatedRecordsNeverCrash) {
  std::mt19937_64 random(1);
  std::size_t refused = 0, accepted = 0;
  for (int round = 0; round < 300; ++round) {
    for (const FromWorker& message : test::samples_from_worker()) {
      auto words = encoded(message);
      auto* bytes = reinterpret_cast<unsigned char*>(words.data());
      for (std::uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
        bytes[random() % (words.size() * 8)] = static_cast<unsigned char>(random());
      }
      if (random() % 4 == 0) words.resize(random() % words.size());
      const auto visited = visit_tokens(record(words), [](const auto&) {});
      const auto back = decode_from_worker(record(words));
      (back.ok() ? accepted : refused)++;
      if (!back.ok()) {
        EXPECT_EQ(back.error().code(), ErrorCode::kCorrupt);
      }
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_GT(accepted, 0U);
}

TEST(Messages, UnalignedRecordIsRefusedNotRead) {
  std::vector<std::uint64_t> words(8);
  const auto bytes = std::as_bytes(std::span(words)).subspan(4, 32);
  EXPECT_EQ(decode_from_worker(bytes).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Utf8, AcceptsOnlyWellFormedText) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain ascii, longer than eight bytes"));
  EXPECT_TRUE(is_utf8("\u00e9\u4e2d\U0001F600\U0010FFFF"));
  EXPECT_TRUE(is_utf8(std::string_view("a\0b", 3)));
  EXPECT_EQ(valid_utf8_prefix("abc\xC3"), 3U);
  EXPECT_EQ(valid_utf8_prefix("\xF4\x90\x80\x80"), 0U);
  EXPECT_EQ(valid_utf8_prefix("\xE0\x9F\xBF"), 0U);
  EXPECT_EQ(valid_utf8_prefix("\xF0\x8F\xBF\xBF"), 0U);
  EXPECT_EQ(valid_utf8_prefix("12345678\x80"), 8U);
}

}  // namespace
}  // namespace bulkhead::ipc

#include "ipc/messages.hpp"

#include <cstring>
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
  // The bound is what encoding takes at most; for these messages, which leave nothing out, exactly.
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
    EXPECT_EQ(view.logprob_count, expected.logprobs.size());
  });
  ASSERT_TRUE(visited.ok());
  EXPECT_TRUE(*visited);
  EXPECT_EQ(i, batch.sequences.size());
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

TEST(Messages, ListThatClaimsMoreThanTheRecordHoldsIsCorrupt) {
  // Stats.counters as a list of 400 single bytes: legal Cap'n Proto (a list of structs may have
  // been a list of bytes once), 400 counters of heap for 400 bytes of wire.
  std::vector<std::uint64_t> words = encoded(FromWorker(Stats{1, 2, 3, 4, 5, {{"a", 1.0}}}));
  // The list pointer: low bits 01, element size 7 (composite) in bits 32..34.
  bool found = false;
  for (auto& word : words) {
    if ((word & 3) == 1 && ((word >> 32) & 7) == 7) {
      const auto here = static_cast<std::size_t>(&word - words.data());
      const std::size_t count = 400;
      const std::size_t offset = words.size() - here - 1;
      word = (std::uint64_t{count} << 35) | (std::uint64_t{2} << 32) | (offset << 2) | 1;
      words.resize(words.size() + count / 8);
      found = true;
      break;
    }
  }
  ASSERT_TRUE(found);
  const auto back = decode_from_worker(record(words));
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().message().find("claims 400"), std::string::npos) << back.error().message();
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

TEST(Utf8, KnowsWellFormedText) {
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

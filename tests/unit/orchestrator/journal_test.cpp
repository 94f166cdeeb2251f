#include "orchestrator/journal/journal.hpp"

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

using ipc::TokenId;

JournalEntry& accepted_entry(Journal& journal, std::uint32_t max_tokens) {
  ipc::Submit submit;
  submit.prompt = std::string("hello");
  submit.max_tokens = max_tokens;
  JournalEntry& entry = journal.record(RequestId{7}, std::move(submit));
  EXPECT_TRUE(Journal::accept(entry, std::vector<TokenId>{1, 2}, max_tokens, 100).ok());
  return entry;
}

TEST(Journal, ResubmissionCarriesEveryAcceptedToken) {
  Journal journal;
  JournalEntry& entry = accepted_entry(journal, 10);
  ASSERT_TRUE(Journal::append(entry, 0, std::vector<TokenId>{5, 6}, "ab").ok());
  ASSERT_TRUE(Journal::append(entry, 2, std::vector<TokenId>{7}, "c").ok());
  auto message = std::get<ipc::Submit>(Journal::message(entry));
  EXPECT_EQ(message.request, RequestId{7});
  EXPECT_EQ(message.accepted_tokens, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(entry.text, "abc");
}

TEST(Journal, GapRepeatAndExcessAreRefusedAndChangeNothing) {
  Journal journal;
  JournalEntry& entry = accepted_entry(journal, 3);
  ASSERT_TRUE(Journal::append(entry, 0, std::vector<TokenId>{5, 6}, "ab").ok());
  EXPECT_EQ(Journal::append(entry, 3, std::vector<TokenId>{7}, "x").error().code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(Journal::append(entry, 1, std::vector<TokenId>{6}, "x").error().code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(Journal::append(entry, 2, std::vector<TokenId>{7, 8}, "x").error().code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(
      Journal::append(entry, 2, std::vector<TokenId>{7}, std::string(1 << 20, 'x')).error().code(),
      ErrorCode::kCorrupt);
  EXPECT_EQ(entry.tokens.size(), 2U);
  EXPECT_EQ(entry.text, "ab");
  EXPECT_TRUE(Journal::append(entry, 2, std::vector<TokenId>{7}, "c").ok());
}

TEST(Journal, PartsMustFollowOneAnother) {
  using ipc::PartKind;
  struct Case {
    std::vector<ipc::AnswerPart> parts;
    const char* text;
    bool taken;
  };
  const ipc::AnswerPart content{PartKind::kContent, 0, "x", ""}, call{PartKind::kCall, 0, "f", "a"},
      arguments{PartKind::kArguments, 0, "{}", ""}, second{PartKind::kCall, 1, "f", "b"};
  const Case cases[] = {
      {{content, call, arguments, arguments, second}, "", true},
      {{arguments}, "", false},
      {{second}, "", false},
      {{call, call}, "", false},
      {{call, second, arguments}, "", false},
      {{call, content, arguments}, "", false},  // of a call that is already complete
      {{content}, "text", false},
      {std::vector(100'000, ipc::AnswerPart{}), "", false},
  };
  for (const Case& each : cases) {
    for (const bool at_once : {true, false}) {
      Journal journal;
      ipc::Submit submit;
      submit.prompt = ipc::ChatPrompt{};
      JournalEntry& entry = journal.record(RequestId{7}, std::move(submit));
      ASSERT_TRUE(Journal::accept(entry, std::vector<TokenId>{1}, 50, 100).ok());
      bool taken = true;
      const std::size_t step = at_once ? each.parts.size() : 1;
      for (std::size_t i = 0; i < each.parts.size(); i += step) {
        const auto first = static_cast<std::uint32_t>(entry.tokens.size());
        taken &= Journal::append(entry, first, std::vector<TokenId>{5}, each.text,
                                 std::span(each.parts).subspan(i, step))
                     .ok();
      }
      EXPECT_EQ(taken, each.taken) << &each - cases;
    }
  }
}

TEST(Journal, TokensBeforeAcceptanceAreRefused) {
  Journal journal;
  JournalEntry& entry = journal.record(RequestId{1}, ipc::Submit{});
  EXPECT_FALSE(Journal::append(entry, 0, std::vector<TokenId>{5}, "a").ok());
}

TEST(Journal, AcceptanceMustFitTheRequestAndTheContext) {
  Journal journal;
  ipc::Submit submit;
  submit.max_tokens = 5;
  JournalEntry& entry = journal.record(RequestId{1}, submit);
  EXPECT_FALSE(Journal::accept(entry, std::vector<TokenId>(10), 6, 100).ok());
  EXPECT_FALSE(Journal::accept(entry, std::vector<TokenId>(101), 5, 100).ok());
  EXPECT_TRUE(Journal::accept(entry, std::vector<TokenId>(10), 5, 100).ok());
  // A successor must say the same again.
  EXPECT_TRUE(Journal::accept(entry, std::vector<TokenId>(10), 5, 100).ok());
  EXPECT_FALSE(Journal::accept(entry, std::vector<TokenId>(11), 5, 100).ok());
  JournalEntry& other = journal.record(RequestId{2}, ipc::Tokenize{});
  EXPECT_FALSE(Journal::accept(other, std::vector<TokenId>(1), 1, 100).ok());
}

TEST(Journal, ForgetsWhatIsErased) {
  Journal journal;
  accepted_entry(journal, 1);
  EXPECT_EQ(journal.size(), 1U);
  journal.erase(RequestId{7});
  EXPECT_EQ(journal.find(RequestId{7}), nullptr);
}

}  // namespace
}  // namespace bulkhead::orchestrator

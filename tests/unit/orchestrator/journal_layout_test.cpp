// The journal across builds: a daemon reads what an earlier one wrote with the same version of the format. Records
// contain messages of ipc, so a change of a message's fields is a change of the format.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "config/base/fnv1a.hpp"
#include "ipc/wire.hpp"
#include "orchestrator/journal/disk_requests.hpp"
#include "orchestrator/journal/record.hpp"

namespace bulkhead::orchestrator {
namespace {

// The layouts of the messages in records, for this version. If one of them has changed, there are two cases. If
// fields were only added at the end of a row, and enumerators and alternatives only after the others, and
// StoredJournal below is still read correctly, put the new digest here. Otherwise older records are read wrongly:
// raise kJournalVersion, put it and the new digest here, and make a new StoredJournal.
constexpr std::uint32_t kReviewedVersion = 3;
struct Reviewed {
  std::string_view message;
  std::uint64_t digest;
};
constexpr Reviewed kReviewed[] = {{"submit", 0xdea1f524c66adc21},
                                  {"accepted", 0xff1fbcad16c7253f},
                                  {"token batch", 0x5ea5eaaa795f4ec0},
                                  {"finished", 0x9851ea6f26f34602}};

template <typename Message>
std::string layout_of() {
  return std::to_string(Message::kKind) + ipc::wire::layout<Message>();
}

TEST(JournalLayout, DoesNotChangeWithoutTheVersion) {
  const std::string now[] = {layout_of<ipc::Submit>(), layout_of<ipc::Accepted>(),
                             layout_of<ipc::TokenBatch>(), layout_of<ipc::Finished>()};
  EXPECT_EQ(kJournalVersion, kReviewedVersion);
  for (std::size_t i = 0; i < std::size(now); ++i) {
    EXPECT_EQ(fnv1a(now[i]), kReviewed[i].digest)
        << kReviewed[i].message
        << " is laid out otherwise than the reviewed one; see above. It is now 0x" << std::hex
        << fnv1a(now[i]) << ":\n"
        << now[i];
  }
}

BegunRequest stored_begun() {
  BegunRequest begun{"cmpl-1", "shown", "file", 1700000000, true, true, true, {}, "alice"};
  ipc::Submit& submit = begun.submit;
  submit.request = RequestId{5};
  submit.prompt = ipc::ChatPrompt{R"({"messages":[]})", 1700003600};
  submit.sampling = {0.5F, 0.75F, 40, 0.25F, 1.5F, 0.125F, -0.5F, 0x123456789abcdef0U};
  submit.max_tokens = 17;
  submit.stop = {"x", "yz"};
  submit.logprobs = 2;
  submit.ignore_eos = true;
  submit.constraint = {ipc::ConstraintKind::kRegex, "a+", "regex"};
  submit.logit_bias = {{7, -1.5F}, {8, 2.0F}};
  submit.stop_tokens = {2, 3};
  submit.one_call = true;
  submit.tool_choice = ipc::ToolChoice::kNamed;
  submit.tool_name = "f";
  submit.reasoning_budget = 64;
  submit.allowed_tools = {"f", "g"};
  return begun;
}
ipc::Accepted stored_accepted() {
  return {RequestId{5}, {11, 12, 13}, 17, {"a warning"}};
}
ipc::SequenceTokens stored_tokens() {
  ipc::SequenceTokens tokens;
  tokens.request = RequestId{5};
  tokens.tokens = {21, 22};
  tokens.text = "hi";
  tokens.logprobs = {{-0.5F, "h", {{21, -0.5F, "h"}, {9, -1.5F, "\xff"}}}, {-0.25F, "i", {}}};
  return tokens;
}
ipc::Finished stored_finished() {
  ipc::Finished finished;
  finished.request = RequestId{5};
  finished.reason = ipc::FinishReason::kLength;
  finished.text = "!";
  finished.prompt_tokens = 3;
  finished.completion_tokens = 2;
  finished.prefill_microseconds = 1000;
  finished.decode_microseconds = 2000;
  finished.cached_tokens = 1;
  finished.parts = {{ipc::PartKind::kCall, 1, "f", "call-1"}};
  finished.reasoning_tokens = 1;
  finished.accepted_drafts = 4;
  finished.rejected_drafts = 6;
  return finished;
}

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char each : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(each));
    hex += two;
  }
  return hex;
}
std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::string journal_as_written_now() {
  constexpr std::uint32_t kSalt = 99;
  std::string file = journal_header(kSalt);
  ipc::TokenBatch batch;
  batch.step = 3;
  batch.sequences.push_back(stored_tokens());
  const auto add = [&file](RecordType type, const std::string& payload) {
    append_record(file, {type, 1700000001, 8, payload}, kSalt);
  };
  add(RecordType::kBegun, *encode_begun(stored_begun()));
  add(RecordType::kWorker, "identity");
  add(RecordType::kAccepted, *encode_message(stored_accepted()));
  add(RecordType::kTokens, *encode_tokens(batch));
  add(RecordType::kFinished, *encode_message(stored_finished()));
  return file;
}

// What journal_as_written_now() was when the version was made.
constexpr std::string_view kStoredJournal =
    "42484a4f55524e3103000000630000002b0100008d28badd0100000001f1536508000000000000000f0a0000003137"
    "30303030303030"
    "3006000000636d706c2d310500000073686f776e0400000066696c6505000000616c6963650e000000ec0000000500"
    "00000000000003"
    "0000001c0000000f0000007b226d65737361676573223a5b5d7d0010ff536500000000240000000000003f0000403f"
    "28000000000080"
    "3e0000c03f0000003e000000bff0debc9a785634121100000002000000010000007800000002000000797a00000200"
    "00000100000000"
    "000000180000000400000002000000612b00000500000072656765780000000200000008000000070000000000c0bf"
    "08000000080000"
    "0000000040020000000200000003000000010000000000000000000000020000000100000066000000400000000200"
    "00000100000066"
    "00000001000000670000000000000008000000cdd08d340200000001f1536508000000000000006964656e74697479"
    "38000000ff39e3"
    "ec0300000001f15365080000000000000003000000300000000500000000000000030000000b0000000c0000000d00"
    "00001100000001"
    "0000000900000061207761726e696e67000000900000006a9872540400000001f15365080000000000000004000000"
    "88000000030000"
    "0000000000010000007800000005000000000000000000000002000000150000001600000002000000686900000200"
    "00003800000000"
    "0000bf0100000068000000020000001000000015000000000000bf010000006800000010000000090000000000c0bf"
    "01000000ff0000"
    "0010000000000080be01000000690000000000000000000000680000000d4da8f60500000001f15365080000000000"
    "00000500000060"
    "00000005000000000000000100000001000000210000000300000002000000e803000000000000d007000000000000"
    "01000000010000"
    "001c000000020000000100000001000000660000000600000063616c6c2d310000010000000400000006000000";

TEST(JournalLayout, AStoredJournalOfThisVersionIsReadAsItWasWritten) {
  const std::string file = bytes_of_hex(kStoredJournal);
  DiskRequests read;
  const auto end = read_journal(file, [&read](const JournalRecord& record) { read.add(record); });
  ASSERT_TRUE(end.ok()) << end.error().message();
  EXPECT_EQ(end->damage, "");
  EXPECT_TRUE(read.problems.empty()) << read.problems.front();
  const std::vector<DiskRequest> requests = read.take();
  ASSERT_EQ(requests.size(), 1U) << "it is now:\n" << hex_of(journal_as_written_now());
  const DiskRequest& request = requests.front();
  EXPECT_EQ(request.begun, stored_begun());
  EXPECT_EQ(request.worker, "identity");
  EXPECT_EQ(request.accepted, stored_accepted());
  EXPECT_EQ(request.tokens, std::vector{stored_tokens()});
  EXPECT_EQ(request.finished, stored_finished());
  EXPECT_EQ(request.last_seconds, 1700000001U);
}

}  // namespace
}  // namespace bulkhead::orchestrator

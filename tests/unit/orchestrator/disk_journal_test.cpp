// The journal on disk: its format, its recovery, and what the writer promises.
#include "orchestrator/journal/disk_journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "journal_records.hpp"

namespace bulkhead::orchestrator {
namespace {

TEST(JournalFile, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(JournalFile, GivesBackWhatWasWritten) {
  Read got = read(one_stream());
  EXPECT_EQ(got.end.damage, "");
  ASSERT_EQ(got.requests.size(), 1U);
  const DiskRequest& request = got.requests[0];
  EXPECT_EQ(request.key, 5U);
  EXPECT_EQ(request.begun, begun("a"));
  EXPECT_EQ(request.worker, "w");
  EXPECT_EQ(request.accepted->prompt_tokens, (std::vector<ipc::TokenId>{3, 4}));
  ASSERT_EQ(request.tokens.size(), 2U);
  EXPECT_EQ(request.tokens[1].tokens, (std::vector<ipc::TokenId>{9}));
  EXPECT_EQ(request.last_seconds, 13U);
  EXPECT_FALSE(request.over());
}

TEST(JournalFile, KeepsTheNameOfTheClientsKey) {
  BegunRequest request = begun("a");
  const std::string without = *encode_begun(request);
  EXPECT_EQ(*decode_begun(without), request) << "as a daemon wrote it that kept no names";
  request.key_name = "alice";
  const std::string with = *encode_begun(request);
  EXPECT_EQ(*decode_begun(with), request);
  const std::size_t name_at = with.find("alice");
  ASSERT_NE(name_at, std::string::npos);
  for (std::size_t cut = name_at; cut < name_at + 5; ++cut)
    EXPECT_FALSE(decode_begun(with.substr(0, cut)).ok()) << cut;
}

TEST(JournalFile, KeepsTheTraceOfARequest) {
  BegunRequest request = begun("a");
  for (const char* key : {"", "alice"}) {
    request.key_name = key;
    request.trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010123456789abcdef";
    EXPECT_EQ(*decode_begun(*encode_begun(request)), request);
    request.trace.clear();
    EXPECT_EQ(*decode_begun(*encode_begun(request)), request);
  }
}

TEST(JournalFile, EveryTornEndLeavesTheWholeRecordsBeforeIt) {
  const std::string whole = one_stream();
  std::vector<std::size_t> ends;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    auto end = read_journal(whole.substr(0, cut), [](const JournalRecord&) {});
    ASSERT_TRUE(end.ok()) << cut;
    EXPECT_LE(end->good_bytes, cut);
    EXPECT_EQ(end->damage.empty(), end->good_bytes == cut) << cut;
    if (ends.empty() || ends.back() != end->good_bytes) ends.push_back(end->good_bytes);
  }
  EXPECT_EQ(ends.size(), 7U) << "none, the header's end, and those of five records";
}

TEST(JournalFile, EveryFlippedBitInARecordEndsTheReadingThere) {
  const std::string whole = one_stream();
  for (std::size_t at = kJournalHeaderBytes; at < whole.size(); ++at) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ (1 << (at % 8)));
    auto end = read_journal(broken, [](const JournalRecord&) {});
    ASSERT_TRUE(end.ok());
    EXPECT_NE(end->damage, "") << at;
    EXPECT_LE(end->good_bytes, at);
  }
}

TEST(JournalFile, AfterDamageTheNextWholeRecordIsFound) {
  const std::string first = one_stream();
  std::string whole = first;
  append_record(whole, {RecordType::kBegun, 10, 6, *encode_begun(begun("b"))});
  append_record(whole, {RecordType::kAccepted, 10, 6, accepted()});
  std::size_t all = 0;
  ASSERT_TRUE(read_journal(whole, [&](const JournalRecord&) { ++all; }).ok());
  for (std::size_t at = kJournalHeaderBytes; at < first.size(); at += 3) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ 0x40);
    std::size_t records = 0;
    DiskRequests requests;
    auto end = read_journal(broken, [&](const JournalRecord& record) {
      ++records;
      requests.add(record);
    });
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(records, all - 1) << at;
    EXPECT_GT(end->skipped_bytes, 0U);
    EXPECT_EQ(end->torn_bytes, 0U);
    const std::vector<DiskRequest> left = requests.take();
    EXPECT_TRUE(std::ranges::any_of(
        left, [](const DiskRequest& request) { return request.begun.id == "b"; }));
  }
}

TEST(JournalFile, WhatAClientWroteIsNeverTakenForARecord) {
  // The prompt contains a whole record, as a file without a salt would have it.
  std::string forged;
  append_record(forged, {RecordType::kBegun, 10, 99, *encode_begun(begun("forged"))});
  constexpr std::uint32_t kSalt = 0x5A17ED;
  std::string file = journal_header(kSalt);
  append_record(file, {RecordType::kFailed, 10, 5, forged}, kSalt);
  file[kJournalHeaderBytes + 4] ^= 1;  // changes the record's checksum
  std::size_t records = 0;
  ASSERT_TRUE(read_journal(file, [&](const JournalRecord&) { ++records; }).ok());
  EXPECT_EQ(records, 0U);
}

TEST(JournalFile, OtherFilesAndVersionsAreRefused) {
  EXPECT_FALSE(read_journal("GGUF and more bytes", [](const JournalRecord&) {}).ok());
  std::string later = journal_header();
  later[8] = 99;
  auto end = read_journal(later, [](const JournalRecord&) {});
  ASSERT_FALSE(end.ok());
  EXPECT_NE(end.error().message().find("version 99"), std::string::npos);
}

TEST(JournalFile, ContradictionsTakeOneRequestOut) {
  std::string file = one_stream();
  append_record(file, {RecordType::kBegun, 10, 6, *encode_begun(begun("b"))});
  append_record(file, {RecordType::kAccepted, 10, 6, accepted()});
  append_record(file, {RecordType::kTokens, 10, 6, tokens(1, {7})});  // a gap
  append_record(file, {RecordType::kTokens, 10, 6, tokens(0, {7})});  // too late
  Read got = read(file);
  ASSERT_EQ(got.requests.size(), 1U);
  EXPECT_EQ(got.requests[0].begun.id, "a");
  ASSERT_EQ(got.problems.size(), 1U);
  EXPECT_NE(got.problems[0].find("gap"), std::string::npos);
}

TEST(JournalFile, WhatNoClientHasHeardOfIsLeftOut) {
  std::string file = one_stream();
  append_record(file, {RecordType::kBegun, 10, 6, *encode_begun(begun("b"))});
  append_record(file, {RecordType::kDropped, 10, 5, ""});
  EXPECT_TRUE(read(file).requests.empty());
}

TEST(DiskJournal, ReportsDurableRecordsInTheirOrder) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  DiskJournal& journal = *opened->journal;
  struct stat info {};
  ASSERT_EQ(::stat(folder.file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);

  const std::uint64_t key = journal.new_key();
  std::vector<int> order;
  std::size_t records_on_disk = 0;
  loop.post([&] {
    journal.append(key, RecordType::kBegun, *encode_begun(begun("a")));
    journal.append(key, RecordType::kAccepted, accepted(), [&] {
      order.push_back(1);
      (void)read_journal(content(folder.file()), [&](const JournalRecord&) { ++records_on_disk; });
    });
    journal.append(key, RecordType::kTokens, tokens(0, {1}), [&] {
      order.push_back(2);
      loop.stop();
    });
    EXPECT_TRUE(order.empty());
  });
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  loop.run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(records_on_disk, 3U);
  EXPECT_EQ(journal.figures().commits, 1U) << "one turn of the loop is one commit";
}

TEST(DiskJournal, CutsATornEndAndGoesOn) {
  Folder folder;
  std::ofstream(folder.file(), std::ios::binary) << one_stream() << "torn";
  EventLoop loop;
  {
    auto opened = DiskJournal::open(loop, {.path = folder.file()});
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    ASSERT_EQ(opened->requests.size(), 1U);
    // The same records, under another salt.
    EXPECT_EQ(content(folder.file()).size(), one_stream().size());
    EXPECT_EQ(opened->journal->new_key(), 6U);
    EXPECT_EQ(opened->journal->figures().torn_bytes, 4U);
    EXPECT_EQ(opened->journal->figures().recovered_requests, 1U);
    opened->journal->append(5, RecordType::kTokens, tokens(3, {1}));
  }  // the gathered records are written at the end
  Read got = read(content(folder.file()));
  ASSERT_EQ(got.requests.size(), 1U);
  EXPECT_EQ(got.requests[0].tokens.size(), 3U);
}

TEST(DiskJournal, IsWrittenAnewWithoutWhatWasDropped) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 20000});
  ASSERT_TRUE(opened.ok());
  DiskJournal& journal = *opened->journal;
  const std::uint64_t kept = journal.new_key();
  journal.append(kept, RecordType::kBegun, *encode_begun(begun("kept")));
  journal.append(kept, RecordType::kAccepted, accepted());
  int rounds = 0;
  std::function<void()> next = [&] {
    if (++rounds > 300) return loop.stop();
    const std::uint64_t key = journal.new_key();
    journal.append(key, RecordType::kBegun, *encode_begun(begun("gone")));
    journal.append(key, RecordType::kAccepted, accepted(), next);
    journal.drop(key);
  };
  loop.post(next);
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  loop.run();
  EXPECT_GT(journal.figures().compactions, 1U);
  EXPECT_LT(journal.figures().file_bytes, 30000U);
  EXPECT_EQ(journal.figures().file_bytes, std::filesystem::file_size(folder.file()));
  Read got = read(content(folder.file()));
  EXPECT_EQ(got.end.damage, "");
  ASSERT_EQ(got.requests.size(), 1U);
  EXPECT_EQ(got.requests[0].begun.id, "kept");
  EXPECT_FALSE(std::filesystem::exists(folder.file() + ".new"));
}

TEST(DiskJournal, RefusesWhatIsNotItsOwn) {
  Folder folder;
  EventLoop loop;
  std::ofstream(folder.file()) << "my diary, nothing else";
  constexpr auto kShared = static_cast<std::filesystem::perms>(0644);
  std::filesystem::permissions(folder.file(), kShared);
  auto diary = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_FALSE(diary.ok());
  EXPECT_NE(diary.error().message().find("no journal"), std::string::npos);
  EXPECT_EQ(content(folder.file()), "my diary, nothing else");
  EXPECT_EQ(std::filesystem::status(folder.file()).permissions(), kShared);
  std::filesystem::resize_file(folder.file(),
                               std::uintmax_t{1} << 42);  // no memory has room for it
  EXPECT_FALSE(DiskJournal::open(loop, {.path = folder.file()}).ok());
  std::filesystem::remove(folder.file());
  std::filesystem::create_symlink("elsewhere", folder.file());
  auto link = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_FALSE(link.ok());
  EXPECT_NE(link.error().message().find("symbolic link"), std::string::npos);
  std::filesystem::remove(folder.file());

  auto first = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(first.ok());
  auto second = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message().find("in use"), std::string::npos);
  auto nowhere = DiskJournal::open(loop, {.path = folder.file() + "/x"});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message().find("isolation.journal_path"), std::string::npos);
}

}  // namespace
}  // namespace bulkhead::orchestrator

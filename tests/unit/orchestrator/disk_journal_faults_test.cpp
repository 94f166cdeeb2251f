// The writer of the journal on disk when the disk, descriptors or memory run out, and at its end.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"
#include "journal_records.hpp"
#include "orchestrator/journal/disk_journal.hpp"

namespace bulkhead::orchestrator {
namespace {

TEST(DiskJournalFaults, AFullDiskStopsTheJournalAndNotTheStreams) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 1});
  ASSERT_TRUE(opened.ok());
  DiskJournal& journal = *opened->journal;
  // The next commit rewrites the file; a folder under its new name can't be opened or removed.
  std::filesystem::create_directory(folder.file() + ".new");
  int durable = 0;
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  const std::uint64_t key = journal.new_key();
  loop.post([&] {
    journal.append(key, RecordType::kBegun, *encode_begun(begun("a")), [&] {
      ++durable;
      EXPECT_TRUE(journal.failed());
      journal.append(key, RecordType::kAccepted, accepted(), [&] {
        ++durable;
        loop.stop();
      });
    });
  });
  loop.run();
  EXPECT_EQ(durable, 2);
}

std::size_t records_in(const std::string& path) {
  std::size_t records = 0;
  EXPECT_TRUE(read_journal(content(path), [&](const JournalRecord&) { ++records; }).ok());
  return records;
}

// Stops the loop once the journal is written again.
class StopsWhenWritten {
 public:
  StopsWhenWritten(EventLoop& loop, const DiskJournal& journal)
      : loop_(loop), journal_(journal), timer_(loop) {}
  void look() {
    if (!journal_.failed()) return loop_.stop();
    timer_.start(std::chrono::milliseconds(20), [this] { look(); });
  }

 private:
  EventLoop& loop_;
  const DiskJournal& journal_;
  Timer timer_;
};

// The last records come while a rewrite of the file is on its way to the thread, or under way.
TEST(DiskJournalFaults, TheLastRecordsAreKeptBesideARewrite) {
  for (int round = 0; round < 100; ++round) {
    Folder folder;
    EventLoop loop;
    auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 1});
    ASSERT_TRUE(opened.ok());
    DiskJournal& journal = *opened->journal;
    const std::uint64_t key = journal.new_key();
    loop.post([&] {
      journal.append(key, RecordType::kBegun, *encode_begun(begun("a")));
      journal.append(key, RecordType::kAccepted, accepted());
    });
    loop.post([&] {
      journal.append(key, RecordType::kTokens, tokens(0, {1}));
      loop.stop();
    });
    loop.run();
    opened->journal.reset();
    const Read got = read(content(folder.file()));
    ASSERT_EQ(got.requests.size(), 1U) << round;
    ASSERT_EQ(got.requests[0].tokens.size(), 1U) << round;
  }
}

// There are more records than the journal gathers during a write.
TEST(DiskJournalFaults, TheLastRecordsAreKeptHoweverManyTheyAre) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(opened.ok());
  const std::string large(std::size_t{24} << 20, 'x');
  for (std::uint64_t key = 1; key <= 3; ++key)
    opened->journal->append(key, RecordType::kFailed, large);
  opened->journal->append(4, RecordType::kFailed, "small");
  opened->journal.reset();
  EXPECT_EQ(records_in(folder.file()), 4U);
}

// One stream has no memory to go on, and the others go on.
TEST(DiskJournalFaults, AnExceptionOfOneStreamHoldsUpNoOther) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(opened.ok());
  DiskJournal& journal = *opened->journal;
  bool told = false;
  loop.post([&] {
    journal.append(1, RecordType::kWorker, "w", [] { throw std::bad_alloc(); });
    journal.append(2, RecordType::kWorker, "w", [&] {
      told = true;
      loop.stop();
    });
  });
  Timer keep(loop);
  keep.start(std::chrono::seconds(30), [&] { loop.stop(); });
  loop.run();
  EXPECT_TRUE(told);
  EXPECT_EQ(loop.figures().exceptions, 1U);
}

// There are more records than the journal gathers, so it has to write all of them anew, but lacks memory for
// that.
TEST(DiskJournalFaults, WithoutMemoryForARewriteItFailsAndTriesAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space without a limit";
#endif
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(opened.ok());
  DiskJournal& journal = *opened->journal;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  bool told = false;
  StopsWhenWritten written(loop, journal);
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  loop.post([&] {
    const std::string large(std::size_t{24} << 20, 'x');
    for (std::uint64_t key = 1; key <= 3; ++key)
      journal.append(key, RecordType::kFailed, large);
    journal.append(4, RecordType::kFailed, "small", [&] {
      told = journal.failed();
      EXPECT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
      written.look();
    });
    std::ifstream statm("/proc/self/statm");
    rlimit low = before;
    ASSERT_TRUE(statm >> low.rlim_cur);
    low.rlim_cur = low.rlim_cur * static_cast<rlim_t>(::getpagesize()) + (rlim_t{16} << 20);
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &low), 0);
  });
  loop.run();
  EXPECT_TRUE(told);
  EXPECT_EQ(records_in(folder.file()), 4U);
}

// The journal can open the new file, but then not the folder.
TEST(DiskJournalFaults, ALackOfDescriptorsLeavesTheFileItsOwn) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 1});
  ASSERT_TRUE(opened.ok());
  DiskJournal& journal = *opened->journal;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto room_for_one = [&] {
    const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit low = before;
    low.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  };
  StopsWhenWritten written(loop, journal);
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  loop.post([&] {
    room_for_one();
    journal.append(1, RecordType::kWorker, "w", [&] {
      EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
      EXPECT_TRUE(journal.failed());
      written.look();
    });
  });
  loop.run();
  EXPECT_EQ(records_in(folder.file()), 1U);
  EXPECT_FALSE(std::filesystem::exists(folder.file() + ".other"));
  EXPECT_FALSE(std::filesystem::exists(folder.file() + ".new"));
}

}  // namespace
}  // namespace bulkhead::orchestrator

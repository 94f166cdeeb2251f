// Each thread of the daemon beside the event loop, while no allocation of it succeeds: it must go on, and tell whoever
// waits for it.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "config/base/line_writer.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/unique_fd.hpp"
#include "config/http_address.hpp"
#include "ipc/peer_descriptors.hpp"
#include "journal_records.hpp"
#include "orchestrator/journal/disk_journal.hpp"
#include "orchestrator/mailbox.hpp"
#include "orchestrator/metrics/host_figures.hpp"
#include "orchestrator/metrics/nvidia_watch.hpp"
#include "orchestrator/supervisor/worker_log.hpp"
#include "orchestrator/tracing/span_export.hpp"
#include "short_heap.hpp"

namespace bulkhead::orchestrator {
namespace {

using std::chrono::milliseconds;

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 6000; ++i, ::usleep(10'000)) {
    if (holds()) return true;
  }
  return false;
}

// Threads other than the test's find no memory, after so many allocations.
class Shortage {
 public:
  explicit Shortage(int granted = 0) {
    static_cast<void>(spdlog::default_logger());
    test::granted = granted;
    test::refusals = 0;
    test::short_of_memory = true;
  }
  ~Shortage() { test::short_of_memory = false; }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

  static bool was_felt(int times = 1) {
    return eventually([times] { return test::refusals >= times; });
  }
};

TEST(NoMemory, ACallForTheLoopComesWhenThereIsSomeAgain) {
  EventLoop loop;
  Timer keep(loop);
  keep.start(std::chrono::minutes(5), [] {});
  const auto mailbox = std::make_shared<Mailbox>(loop);
  std::thread other;
  {
    const Shortage shortage;
    other = quiet_thread([mailbox, &loop] { mailbox->put([&loop] { loop.stop(); }); });
    EXPECT_TRUE(Shortage::was_felt(3));
  }
  loop.run();
  other.join();
}

TEST(NoMemory, AClosedMailboxKeepsNoThread) {
  EventLoop loop;
  const auto mailbox = std::make_shared<Mailbox>(loop);
  const Shortage shortage;
  std::thread other = quiet_thread([mailbox] { mailbox->put([] { FAIL(); }); });
  EXPECT_TRUE(Shortage::was_felt());
  mailbox->close();
  other.join();
}

// One of the object's functions may be running, so the object must not end with the exception.
TEST(NoMemory, WhatCantBeDestroyedLaterStays) {
  EventLoop loop;
  auto object = std::make_unique<int>(1);
  bool thrown = true;
  for (int granted = 0; thrown; ++granted) {
    ASSERT_NE(object, nullptr);
    thrown = false;
    const Shortage shortage(granted);
    quiet_thread([&] {
      try {
        destroy_later(loop, object);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
    }).join();
  }
  EXPECT_EQ(object, nullptr);
}

// Appends a record while the journal's thread has no memory. Returns the journal's problem when the record counts as
// durable, once the journal has none any more.
std::string append_in_a_shortage(EventLoop& loop, DiskJournal& journal) {
  std::string problem;
  Timer keep(loop), look(loop);
  keep.start(std::chrono::minutes(5), [&] { loop.stop(); });
  auto shortage = std::make_unique<Shortage>();
  const std::function<void()> end_it = [&] {
    if (test::refusals < 3) return look.start(milliseconds(10), end_it);
    shortage.reset();
  };
  const std::function<void()> wait_until_written = [&] {
    if (!journal.failed()) return loop.stop();
    look.start(milliseconds(20), wait_until_written);
  };
  const std::uint64_t key = journal.new_key();
  loop.post([&] {
    end_it();
    journal.append(key, RecordType::kBegun, *encode_begun(begun("a")));
    journal.append(key, RecordType::kAccepted, accepted(), [&] {
      problem = journal.problem();
      wait_until_written();
    });
  });
  loop.run();
  return problem;
}

TEST(NoMemory, TheJournalTellsThatARecordIsDurable) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file()});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(append_in_a_shortage(loop, *opened->journal), "");
  EXPECT_EQ(read(content(folder.file())).requests.size(), 1U);
}

TEST(NoMemory, TheJournalTriesAgainWhatItCouldNotWrite) {
  Folder folder;
  EventLoop loop;
  auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 1});
  ASSERT_TRUE(opened.ok());
  const std::string problem = append_in_a_shortage(loop, *opened->journal);
  EXPECT_NE(problem.find("no memory"), std::string::npos) << problem;
  EXPECT_EQ(read(content(folder.file())).requests.size(), 1U);
}

// A write fails for another reason, and the memory ends at each step of saying so.
TEST(NoMemory, TheJournalTellsThatItCantBeWrittenWhereverMemoryEnds) {
  bool felt = true;
  for (int granted = 0; felt; ++granted) {
    ASSERT_LT(granted, 200);
    Folder folder;
    EventLoop loop;
    auto opened = DiskJournal::open(loop, {.path = folder.file(), .compact_at_bytes = 1});
    ASSERT_TRUE(opened.ok());
    std::filesystem::create_directory(folder.file() + ".new");  // in the way of the new file
    Timer keep(loop), look(loop);
    keep.start(std::chrono::minutes(5), [&] { loop.stop(); });
    auto shortage = std::make_unique<Shortage>(granted);
    const std::function<void()> end_it = [&] {
      if (test::refusals > 0) return shortage.reset();
      look.start(milliseconds(1), end_it);
    };
    loop.post([&] {
      end_it();
      opened->journal->append(opened->journal->new_key(), RecordType::kBegun,
                              *encode_begun(begun(std::string(1'000, 'a'))), [&] { loop.stop(); });
    });
    loop.run();
    felt = test::refusals > 0;
    EXPECT_TRUE(opened->journal->failed()) << granted;
  }
}

TEST(NoMemory, LinesOfWorkersAreLostAndCounted) {
  WorkerLogs& logs = WorkerLogs::instance();
  Result<UniqueFd> pipe = logs.open("poor");
  ASSERT_TRUE(pipe.ok());
  const auto write_lines = [&](const std::string& lines) {
    ASSERT_EQ(::write(pipe->get(), lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  };
  write_lines("before\n");
  ASSERT_TRUE(logs.catch_up(std::chrono::seconds(10)));
  const std::uint64_t dropped = logs.figures().dropped;
  const std::string longer(100, 'x');
  {
    const Shortage shortage;
    write_lines(longer + "\n" + longer + "\n" + longer);
    EXPECT_TRUE(Shortage::was_felt());
    // Two whole lines and the beginning of a third one.
    EXPECT_TRUE(eventually([&] { return logs.figures().dropped >= dropped + 3; }));
    EXPECT_EQ(logs.figures().dropped, dropped + 3);
  }
  write_lines(", the end of a lost line\nafter\n");
  ASSERT_TRUE(logs.catch_up(std::chrono::seconds(10)));
  const std::vector<WorkerLogs::Line> lines = logs.lines("poor");
  ASSERT_GE(lines.size(), 2U);
  EXPECT_EQ(lines.front().text, "before");
  EXPECT_EQ(lines.back().text, "after");
}

// A writer allocates nothing.
TEST(NoMemory, TheLogIsWritten) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reader(ends[0]), its_end(ends[1]);
  static LineWriter* const writer = new LineWriter(its_end.get());
  const Shortage shortage;
  std::string lines;
  for (int i = 0; i < 1'000; ++i)
    lines += std::string(99, 'x') +
             "\n";  // more than the thread writes at once, and than the pipe holds
  writer->put(lines);
  std::string got(lines.size(), '\0');
  for (std::size_t at = 0; at < got.size();) {
    const ssize_t bytes = ::read(reader.get(), got.data() + at, got.size() - at);
    ASSERT_GT(bytes, 0);
    at += static_cast<std::size_t>(bytes);
  }
  EXPECT_EQ(got, lines);
  EXPECT_TRUE(writer->flush(std::chrono::seconds(10)));
  EXPECT_EQ(writer->figures().dropped, 0U);
}

TEST(NoMemory, DescriptorsOfWorkersAreClosed) {
  const auto closer = ipc::PeerCloser::make([](UniqueFd) { throw std::bad_alloc(); });
  for (int i = 0; i < 3; ++i) {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    closer->close(UniqueFd(::dup(socket.get())));
  }
  EXPECT_TRUE(eventually([&] { return closer->unclosed() == 0; }));
}

GenerationSpan span() {
  GenerationSpan made;
  made.trace_id = std::string(32, 'a');
  made.span_id = std::string(16, 'b');
  return made;
}

double value(const std::vector<DaemonFigure>& figures, const std::string& name) {
  for (const DaemonFigure& each : figures) {
    if (each.name == name) return each.value;
  }
  return -1;
}

TEST(NoMemory, TheMachinesFiguresStayAsTheyWere) {
  HostWatch watch;
  const std::size_t count = watch.figures().size();
  ::usleep(1'100'000);  // figures are looked up once a second
  {
    const Shortage shortage;
    watch.figures();
    EXPECT_TRUE(Shortage::was_felt());
    EXPECT_EQ(watch.figures().size(), count);
  }
  ::usleep(50'000);
  EXPECT_FALSE(watch.figures().empty());
}

TEST(NoMemory, TheWatchOfNvidiasDevicesTriesAgain) {
  NvidiaWatch watch({.program = "/bin/false",
                     .nvml_library = "/no/library",
                     .pause = milliseconds(10),
                     .longest_pause = milliseconds(20)});
  const auto failures = [&] {
    return value(watch.figures(true), "bulkhead_device_watch_failures_total");
  };
  EXPECT_TRUE(eventually([&] { return failures() > 0; }));
  double before = 0;
  {
    const Shortage shortage;
    EXPECT_TRUE(Shortage::was_felt(3));
    before = failures();
  }
  EXPECT_TRUE(eventually([&] { return failures() > before + 3; }));
}

TEST(NoMemory, SpansAreDroppedAndCounted) {
  SpanExport spans({.collector = *config::parse_http_address("http://127.0.0.1:9"),
                    .version = "1.0",
                    .pause = milliseconds(10),
                    .longest_pause = milliseconds(20)});
  const auto dropped = [&] {
    return value(spans.figures(), "bulkhead_trace_dropped_generations_total");
  };
  {
    const Shortage shortage;
    spans.add(span());
    EXPECT_TRUE(Shortage::was_felt());
    EXPECT_TRUE(eventually([&] { return dropped() == 1; }));
  }
  spans.add(span());
  EXPECT_TRUE(eventually([&] { return dropped() == 2; }));
}

}  // namespace
}  // namespace bulkhead::orchestrator

// Both ends run on one CPU, where spinning can only keep the other end from running. With ipc.spin_us 0 they sleep at
// once. The test counts sleeps and doorbells, and measures no time.
#include <sched.h>

#include <array>
#include <cstring>

#include "tests/unit/ipc/harness.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

constexpr microseconds kNoSpin{0};
constexpr std::size_t kTokenBytes = 64;

// Keeps this process and its children on one of the CPUs that it may use.
class OneCpu {
 public:
  OneCpu() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      CPU_SET(cpu, &one);
      break;
    }
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OneCpu() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

// What the worker reports about itself at its end.
struct Counts {
  std::uint64_t sleeps = 0, doorbells = 0;
};
// When this returns true, everything has been sent, over stdio, too. The ring may still be full of what was sent
// before. A sleep in the channel would count, so this sleeps elsewhere.
bool send_counts(Channel& channel) {
  const auto done = [&] {
    const auto flushed = channel.flush();
    return flushed.ok() && *flushed;
  };
  while (!done())
    ::usleep(100);
  const Counts counts{channel.stats().sleeps, channel.stats().doorbells_sent};
  auto place = channel.try_reserve(sizeof counts);
  while (place.ok() && place->empty()) {
    ::usleep(100);
    place = channel.try_reserve(sizeof counts);
  }
  if (!place.ok()) return false;
  std::memcpy(place->data(), &counts, sizeof counts);
  return channel.commit(sizeof counts).ok() && done();
}
Counts receive_counts(Channel& channel) {
  Counts counts;
  const auto record = receive_asleep(channel);
  EXPECT_TRUE(record.ok() && record->size() == sizeof counts);
  if (record.ok()) std::memcpy(&counts, record->data(), std::min(record->size(), sizeof counts));
  channel.release();
  return counts;
}

class OneCore : public testing::TestWithParam<Kind> {
 protected:
  OneCpu one_cpu_;
  config::IpcSettings settings_ = settings_for(GetParam(), 64);
  ChannelPair pair_ = make_pair(settings_);
};

INSTANTIATE_TEST_SUITE_P(Transport, OneCore, testing::Values(kMemfd, kPosix, kStdio),
                         [](const auto& test) { return test.param.name; });

TEST_P(OneCore, RoundTripCostsOneSleepOnEachSide) {
  constexpr std::uint64_t kTrips = 2000;
  Child child(pair_, settings_, [](Channel& channel) -> int {
    for (std::uint64_t i = 0; i < kTrips; ++i) {
      const auto readable = wait_readable(channel, kNoSpin, kForever);
      if (!readable.ok() || !*readable) return 1;
      if (!matches(*channel.try_receive(), i)) return 2;
      channel.release();
      if (!send_pattern(channel, kTokenBytes, i).ok()) return 3;
    }
    return send_counts(channel) ? 0 : 4;
  });
  Channel& daemon = *pair_.daemon;
  for (std::uint64_t i = 0; i < kTrips; ++i) {
    ASSERT_TRUE(send_pattern(daemon, kTokenBytes, i).ok());
    ASSERT_TRUE(*wait_readable(daemon, kNoSpin, kForever));
    ASSERT_TRUE(matches(*daemon.try_receive(), i));
    daemon.release();
  }
  const Counts worker = receive_counts(daemon);
  EXPECT_EQ(child.wait(), 0);
  // There are a few more if the other side was descheduled between its record and its sleep.
  EXPECT_LE(daemon.stats().sleeps, kTrips + kTrips / 10);
  EXPECT_LE(worker.sleeps, kTrips + kTrips / 10);
  EXPECT_LE(daemon.stats().doorbells_sent, worker.sleeps);
  EXPECT_LE(worker.doorbells, daemon.stats().sleeps);
  RecordProperty("daemon_sleeps", static_cast<int>(daemon.stats().sleeps));
  RecordProperty("worker_sleeps", static_cast<int>(worker.sleeps));
}

TEST_P(OneCore, StreamIsReceivedManyRecordsAtATime) {
  constexpr std::uint64_t kRecords = 50000;
  Child child(pair_, settings_, [](Channel& channel) -> int {
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      if (!send_pattern(channel, kTokenBytes, i).ok()) return 1;
    }
    return send_counts(channel) ? 0 : 4;
  });
  Channel& daemon = *pair_.daemon;
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(*wait_readable(daemon, kNoSpin, kForever));
    ASSERT_TRUE(matches(*daemon.try_receive(), i)) << i;
    daemon.release();
  }
  const Counts worker = receive_counts(daemon);
  EXPECT_EQ(child.wait(), 0);
  // A ring holds hundreds of these records: a side that woke up for each one would sleep tens of thousands of times.
  // Over stdio the kernel decides when to wake the reader, at most once for each record.
  const bool stdio = GetParam().transport == config::Transport::kStdio;
  EXPECT_LE(daemon.stats().sleeps, stdio ? kRecords : kRecords / 20);
  EXPECT_LE(worker.sleeps, kRecords / 20);
  EXPECT_LE(daemon.stats().doorbells_sent, worker.sleeps);
  EXPECT_LE(worker.doorbells, daemon.stats().sleeps);
  RecordProperty("daemon_sleeps", static_cast<int>(daemon.stats().sleeps));
  RecordProperty("worker_sleeps", static_cast<int>(worker.sleeps));
}

}  // namespace
}  // namespace bulkhead::ipc

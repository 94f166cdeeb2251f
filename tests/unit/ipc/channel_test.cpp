// Records both ways, back-pressure, sleeping and descriptors: one suite for every transport and region.
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <random>
#include <thread>
#include <utility>  // included before Asio, which does not include it itself

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "tests/unit/ipc/channel_suite.hpp"
#include "tests/unit/ipc/samples.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

class ChannelTest : public OverEveryTransport {};
INSTANTIATE_TEST_SUITE_P(Transport, ChannelTest, kEveryTransport,
                         [](const auto& test) { return test.param.name; });

TEST_P(ChannelTest, CarriesEveryMessageBothWays) {
  open();
  for (const FromWorker& message : samples_from_worker()) {
    ASSERT_TRUE(send(worker(), message, kForever).ok());
    ASSERT_TRUE(*wait_readable(daemon(), microseconds(0), kForever));
    const auto back = decode_from_worker(*daemon().try_receive());
    ASSERT_TRUE(back.ok()) << back.error().message();
    EXPECT_EQ(*back, message);
    daemon().release();
  }
  for (const ToWorker& message : samples_to_worker()) {
    ASSERT_TRUE(send(daemon(), message, kForever).ok());
    ASSERT_TRUE(*wait_readable(worker(), microseconds(20), kForever));
    const auto back = decode_to_worker(*worker().try_receive());
    ASSERT_TRUE(back.ok()) << back.error().message();
    EXPECT_EQ(*back, message);
    worker().release();
  }
  EXPECT_EQ(daemon().stats().records_received, samples_from_worker().size());
  EXPECT_EQ(daemon().stats().records_sent, samples_to_worker().size());
}

TEST_P(ChannelTest, RecordStaysTheSameUntilReleased) {
  open();
  ASSERT_TRUE(send_pattern(worker(), 100, 1).ok());
  ASSERT_TRUE(send_pattern(worker(), 200, 2).ok());
  ASSERT_EQ(receive_asleep(daemon())->size(), 100U);
  ASSERT_EQ(daemon().try_receive()->size(), 100U);
  daemon().release();
  daemon().release();  // there is nothing more to release
  ASSERT_EQ(receive_asleep(daemon())->size(), 200U);
}

TEST_P(ChannelTest, MisuseIsRefused) {
  open();
  EXPECT_EQ(daemon().try_reserve(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(daemon().commit(1).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(daemon().try_reserve(10).ok());
  EXPECT_EQ(daemon().commit(11).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(daemon().commit(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(daemon().commit(10).ok());
  EXPECT_EQ(daemon().commit(10).error().code(), ErrorCode::kInvalidArgument) << "committed once";
  const auto huge = daemon().try_reserve(daemon().max_record_bytes() + 1);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(huge.error().message().find("ipc.ring_kib"), std::string::npos);
}

TEST_P(ChannelTest, ReservationSurvivesReceiving) {
  open();
  // Between reserve and commit, the same end receives and sends waiting records.
  for (std::uint64_t i = 0; i < 2000; ++i) {
    ASSERT_TRUE(send_pattern(daemon(), 300, i).ok());
    auto place = worker().try_reserve(500);
    ASSERT_TRUE(place.ok());
    if (place->empty()) {  // answers fill the other direction, so one is taken
      ASSERT_TRUE(receive_asleep(daemon()).ok());
      daemon().release();
      place = worker().try_reserve(500);
    }
    if (!place->empty()) fill(place->first(400), i);
    const auto record = receive_asleep(worker());
    ASSERT_TRUE(record.ok());
    ASSERT_TRUE(matches(*record, i));
    worker().release();
    ASSERT_TRUE(worker().flush().ok());
    if (place->empty()) continue;
    ASSERT_TRUE(worker().commit(400).ok());
    if (i % 3 != 0) continue;
    const auto back = receive_asleep(daemon());
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back->size(), 400U);
    // A record's first byte identifies it: seed * 37 mod 256, and 37 is odd.
    std::uint64_t seed = 0;
    while (static_cast<std::byte>(seed * 37) != (*back)[0])
      ++seed;
    EXPECT_TRUE(matches(*back, seed));
    daemon().release();
  }
}

// Sends `records` records of random sizes, some of them in pieces.
Status send_many(Channel& channel, std::uint64_t records, std::uint64_t seed, std::size_t frame) {
  std::minstd_rand random(static_cast<unsigned>(seed));
  for (std::uint64_t i = 0; i < records; ++i) {
    const std::size_t limit = random() % 512 == 0 ? 5 * frame : random() % 16 == 0 ? frame : 128;
    BULKHEAD_RETURN_IF_ERROR(send_pattern(channel, 1 + random() % limit, seed + i));
  }
  for (;;) {
    BULKHEAD_TRY(const bool done, channel.flush());
    if (done) return {};
    ::usleep(50);
  }
}
Status receive_many(Channel& channel, std::uint64_t records, std::uint64_t seed,
                    std::size_t frame) {
  std::minstd_rand random(static_cast<unsigned>(seed));
  for (std::uint64_t i = 0; i < records; ++i) {
    const std::size_t limit = random() % 512 == 0 ? 5 * frame : random() % 16 == 0 ? frame : 128;
    const std::size_t size = 1 + random() % limit;
    BULKHEAD_TRY(const std::span<const std::byte> record, receive_asleep(channel));
    if (record.size() != size || !matches(record, seed + i)) {
      return Error(ErrorCode::kInternal, "record " + std::to_string(i) + " came wrong");
    }
    channel.release();
  }
  return {};
}

TEST_P(ChannelTest, RandomSizesBetweenThreads) {
  open();
  constexpr std::uint64_t kRecords = 20000;
  constexpr std::size_t kFrame = 8000;
  for (const bool up : {true, false}) {
    Channel& from = up ? worker() : daemon();
    Channel& to = up ? daemon() : worker();
    Status sent;
    std::thread sender([&] { sent = send_many(from, kRecords, 5, kFrame); });
    const Status received = receive_many(to, kRecords, 5, kFrame);
    if (!received.ok()) worker_.reset(), pair_.daemon.reset();
    sender.join();
    ASSERT_TRUE(received.ok()) << received.error().message();
    ASSERT_TRUE(sent.ok()) << sent.error().message();
  }
}

TEST_P(ChannelTest, RandomSizesBetweenProcesses) {
  constexpr std::uint64_t kRecords = 10000;
  constexpr std::size_t kFrame = 8000;
  settings_ = settings_for(GetParam(), 16);
  pair_ = make_pair(settings_);
  Child child(pair_, settings_, [&](Channel& channel) {
    if (!receive_many(channel, kRecords, 3, kFrame).ok()) return 1;
    if (!send_many(channel, kRecords, 4, kFrame).ok()) return 2;
    return 0;
  });
  const Status sent = send_many(daemon(), kRecords, 3, kFrame);
  ASSERT_TRUE(sent.ok()) << sent.error().message();
  const Status received = receive_many(daemon(), kRecords, 4, kFrame);
  ASSERT_TRUE(received.ok()) << received.error().message();
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(ChannelTest, FullIsBackPressureNotLoss) {
  open();
  std::uint64_t sent = 0;
  for (;;) {
    const auto place = worker().try_reserve(1000);
    ASSERT_TRUE(place.ok());
    if (place->empty()) break;
    fill(*place, sent);
    ASSERT_TRUE(worker().commit(1000).ok());
    ASSERT_LT(++sent, 100000U) << "the channel never fills";
  }
  EXPECT_GT(worker().stats().full_stalls, 0U);
  // The sender sleeps until there is room.
  ASSERT_TRUE(*worker().prepare_sleep());
  pollfd wait{worker().wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0) << "no room yet, nothing to wake for";
  for (std::uint64_t i = 0; i < sent; ++i) {
    auto record = receive_asleep(daemon());
    // Over stdio the sender still has the last ones, so it must run.
    ASSERT_TRUE(record.ok());
    ASSERT_TRUE(matches(*record, i)) << i;
    daemon().release();
    (void)worker().flush();
  }
  EXPECT_EQ(::poll(&wait, 1, 10000), 1) << "woken for room";
  worker().finish_sleep();
  const auto place = worker().try_reserve(1000);
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(place->empty());
}

TEST_P(ChannelTest, NoWakeUpIsLost) {
  open();
  constexpr int kRounds = 20000;
  // Both sides sleep in each turn; now and then one waits, so that every timing occurs.
  const auto play = [](Channel& channel, bool serves, unsigned seed) -> Status {
    std::minstd_rand random(seed);
    for (int i = 0; i < kRounds; ++i) {
      if (serves) BULKHEAD_RETURN_IF_ERROR(send_pattern(channel, 16, 1));
      BULKHEAD_TRY(const std::span<const std::byte> record, receive_asleep(channel));
      (void)record;
      channel.release();
      for (unsigned spin = random() % 64; spin > 0; --spin)
        std::atomic_signal_fence(std::memory_order_seq_cst);
      if (!serves) BULKHEAD_RETURN_IF_ERROR(send_pattern(channel, 16, 1));
    }
    return {};
  };
  Status there;
  std::thread peer([&] { there = play(worker(), false, 1); });
  const Status here = play(daemon(), true, 2);
  if (!here.ok()) pair_.daemon.reset();
  peer.join();
  EXPECT_TRUE(here.ok()) << here.error().message();
  EXPECT_TRUE(there.ok()) << there.error().message();
}

TEST_P(ChannelTest, WaitReadableTimesOut) {
  open();
  const auto waited = wait_readable(daemon(), microseconds(10), milliseconds(20));
  ASSERT_TRUE(waited.ok());
  EXPECT_FALSE(*waited);
}

TEST_P(ChannelTest, SendTimesOutWhenNobodyReads) {
  open(4);
  Status status;
  for (int i = 0; i < 100000 && status.ok(); ++i) {
    status = send(daemon(), ToWorker(Tokenize{RequestId{1}, std::string(1500, 'x'), true, true}),
                  milliseconds(10));
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
}

TEST_P(ChannelTest, DescriptorsTravelWithTheirTag) {
  open();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_TRUE(worker().send_descriptors(std::span<const int>(&ends[1], 1), 42).ok());
  ::close(ends[1]);
  auto taken = daemon().take_descriptors();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->tag, 42U);
  ASSERT_EQ(taken->fds.size(), 1U);
  EXPECT_EQ(::fcntl(taken->fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(::write(taken->fds[0].get(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  ::close(ends[0]);
  EXPECT_FALSE(daemon().take_descriptors().has_value());
}

// The kernel drops descriptors if the receiver's process has reached its limit of open files. The channel must not
// report that as the sender's fault.
TEST_P(ChannelTest, DescriptorsWithoutRoomAreLostAndNothingElseIs) {
  open();
  const int fd = 0;
  const int three[] = {0, 0, 0};
  ASSERT_TRUE(worker().send_descriptors(std::span<const int>(&fd, 1), 1).ok());
  ASSERT_TRUE(worker().send_descriptors(three, 2).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  const int next = ::dup(0);
  ::close(next);
  low.rlim_cur = static_cast<rlim_t>(next) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const bool came = daemon().take_descriptors().has_value();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(came) << "what came before may belong to what was lost";
  EXPECT_TRUE(daemon().lost_descriptors());
  ASSERT_TRUE(worker().send_descriptors(std::span<const int>(&fd, 1), 3).ok());
  EXPECT_FALSE(daemon().take_descriptors().has_value());
  EXPECT_EQ(daemon().waiting_descriptors(), 0U);
  EXPECT_TRUE(daemon().try_receive().ok());
  EXPECT_FALSE(worker().lost_descriptors());
}

TEST_P(ChannelTest, DescriptorsWakeASleeper) {
  open();
  ASSERT_TRUE(*worker().prepare_sleep());
  const int fd = 0;
  ASSERT_TRUE(daemon().send_descriptors(std::span<const int>(&fd, 1), 7).ok());
  pollfd wait{worker().wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 10000), 1);
  EXPECT_FALSE(worker().take_descriptors().has_value()) << "asleep: nothing is read";
  worker().finish_sleep();
  EXPECT_TRUE(worker().take_descriptors().has_value());
}

TEST_P(ChannelTest, SleepingEventLoopMaySend) {
  // As in the daemon: it sleeps in its event loop while other handlers send.
  open(4);
  ASSERT_TRUE(*daemon().prepare_sleep());
  int sent = 0;
  for (;; ++sent) {
    const auto place = daemon().try_reserve(1000);
    ASSERT_TRUE(place.ok());
    if (place->empty()) break;
    ASSERT_TRUE(daemon().commit(1000).ok());
  }
  // A send was refused while this end sleeps, so it must wake up when there is room.
  pollfd wait{daemon().wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  std::thread reader([&] {
    pollfd woken{daemon().wait_fd(), POLLIN, 0};
    for (int i = 0; i < sent; ++i) {
      if (!receive_asleep(worker()).ok()) return;
      worker().release();
      if (::poll(&woken, 1, 0) == 1) return;
    }
  });
  EXPECT_EQ(::poll(&wait, 1, 60000), 1);
  reader.join();
  daemon().finish_sleep();
}

TEST_P(ChannelTest, AsioWaitsOnIt) {
  open();
  boost::asio::io_context context;
  boost::asio::posix::stream_descriptor descriptor(context, daemon().wait_fd());
  int received = 0;
  constexpr int kRecords = 2000;
  std::function<void()> arm = [&] {
    for (;;) {
      const auto record = daemon().try_receive();
      ASSERT_TRUE(record.ok()) << record.error().message();
      if (!record->empty()) {
        daemon().release();
        if (++received == kRecords) return;
        continue;
      }
      const auto asleep = daemon().prepare_sleep();
      ASSERT_TRUE(asleep.ok());
      if (*asleep) break;
    }
    descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [&](const boost::system::error_code& error) {
                            ASSERT_FALSE(error);
                            daemon().finish_sleep();
                            arm();
                          });
  };
  std::thread sender([&] {
    for (int i = 0; i < kRecords; ++i) {
      if (i % 7 == 0) ::usleep(20);
      if (!send_pattern(worker(), 100, 1).ok()) return;
    }
  });
  arm();
  context.run_for(kForever);
  descriptor.release();
  sender.join();
  EXPECT_EQ(received, kRecords);
}

TEST_P(ChannelTest, HeartbeatIsSeen) {
  open();
  worker().beat(41);
  if (GetParam().transport == config::Transport::kStdio) {
    EXPECT_FALSE(daemon().last_beat().has_value()) << "over stdio the worker sends pongs";
    return;
  }
  EXPECT_EQ(daemon().last_beat(), 41U);
  const auto first = daemon().last_beat_ns();
  ASSERT_TRUE(first.has_value());
  EXPECT_GT(*first, 0U);
  worker().beat(42);
  EXPECT_EQ(daemon().last_beat(), 42U);
  EXPECT_GE(*daemon().last_beat_ns(), *first);
}

TEST_P(ChannelTest, SleepsAndDoorbellsAreCounted) {
  open();
  ASSERT_TRUE(*daemon().prepare_sleep());
  ASSERT_TRUE(send_pattern(worker(), 10, 1).ok());
  ASSERT_TRUE(send_pattern(worker(), 10, 2).ok());
  daemon().finish_sleep();
  EXPECT_EQ(daemon().stats().sleeps, 1U);
  EXPECT_EQ(worker().stats().doorbells_sent,
            GetParam().transport == config::Transport::kShm ? 1U : 0U);
}

}  // namespace
}  // namespace bulkhead::ipc

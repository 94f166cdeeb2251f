// How a channel begins and ends: what the worker inherits, what each side sees when the other dies.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "config/config.hpp"
#include "ipc/region.hpp"
#include "tests/unit/ipc/channel_suite.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

class ChannelEnd : public OverEveryTransport {};
INSTANTIATE_TEST_SUITE_P(Transport, ChannelEnd, kEveryTransport,
                         [](const auto& test) { return test.param.name; });

TEST_P(ChannelEnd, DeadWorkersRecordsAreReceivedFirst) {
  settings_ = settings_for(GetParam(), 64);
  pair_ = make_pair(settings_);
  Child child(pair_, settings_, [](Channel& channel) -> int {
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (!send_pattern(channel, 500, i).ok()) return 1;
    }
    ::raise(SIGKILL);
    return 2;
  });
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto record = receive_asleep(daemon());
    ASSERT_TRUE(record.ok()) << i << ": " << record.error().message();
    EXPECT_TRUE(matches(*record, i));
    daemon().release();
  }
  const auto end = receive_asleep(daemon());
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(daemon().try_reserve(8).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(send(daemon(), ToWorker(Ping{1}), kForever).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(child.wait(), 1000 + SIGKILL);
}

TEST_P(ChannelEnd, DeathBeforeTheWorkerOpensIsSeen) {
  settings_ = settings_for(GetParam(), 64);
  pair_ = make_pair(settings_);
  Child child(pair_, [] { return 3; });
  EXPECT_EQ(receive_asleep(daemon()).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(child.wait(), 3);
}

TEST_P(ChannelEnd, DeathWhileReservedOrPeekedIsSeen) {
  settings_ = settings_for(GetParam(), 64);
  pair_ = make_pair(settings_);
  Child child(pair_, settings_, [](Channel& channel) -> int {
    if (!receive_asleep(channel).ok()) return 1;   // never released
    if (!channel.try_reserve(100).ok()) return 1;  // never committed
    ::raise(SIGKILL);
    return 2;
  });
  ASSERT_TRUE(send_pattern(daemon(), 100, 1).ok());
  EXPECT_EQ(receive_asleep(daemon()).error().code(), ErrorCode::kUnavailable);
}

TEST_P(ChannelEnd, DeathInTheMiddleOfALargeRecordIsSeen) {
  settings_ = settings_for(GetParam(), 16);
  pair_ = make_pair(settings_);
  Child child(pair_, settings_, [](Channel& channel) -> int {
    const auto place = channel.try_reserve(1 << 20);
    if (!place.ok() || place->empty()) return 1;
    std::ranges::fill(*place, std::byte{1});
    if (!channel.commit(1 << 20).ok()) return 2;
    ::raise(SIGKILL);
    return 3;
  });
  EXPECT_EQ(receive_asleep(daemon()).error().code(), ErrorCode::kUnavailable);
}

TEST_P(ChannelEnd, DeathWhileWaitingForRoomIsSeen) {
  open(4);
  Status status;
  std::thread sender([&] {
    while (status.ok())
      status = send_pattern(daemon(), 1000, 1);
  });
  ::usleep(20000);
  worker_.reset();
  sender.join();
  EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable) << status.error().message();
}

TEST_P(ChannelEnd, DeathIsSeenByAPoller) {
  open();
  worker_.reset();
  Error last(ErrorCode::kInternal, "never");
  for (int i = 0; i < 1'000'000; ++i) {
    const auto record = daemon().try_receive();
    if (record.ok()) continue;
    last = record.error();
    break;
  }
  EXPECT_EQ(last.code(), ErrorCode::kUnavailable);
}

TEST_P(ChannelEnd, WorkerSeesTheDaemonDie) {
  open();
  ASSERT_TRUE(send_pattern(daemon(), 50, 8).ok());
  pair_.daemon.reset();
  const auto record = receive_asleep(worker());
  ASSERT_TRUE(record.ok());
  EXPECT_TRUE(matches(*record, 8));
  worker().release();
  EXPECT_EQ(receive_asleep(worker()).error().code(), ErrorCode::kUnavailable);
}

TEST_P(ChannelEnd, NothingLeaks) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    open(64);
    ASSERT_TRUE(send_pattern(worker(), 50, 1).ok());
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    ASSERT_TRUE(worker().send_descriptors(pipe_ends, 1).ok());
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
    ASSERT_TRUE(receive_asleep(daemon()).ok());
    daemon().finish_sleep();  // the descriptors were received but never taken
    worker_.reset();
    pair_ = ChannelPair{};
  }
  EXPECT_EQ(descriptors_settle(before), before);
}

// ---- what the worker inherits ----

TEST(OpenWorkerChannel, RefusesWhatItWasNotGiven) {
  const config::IpcSettings settings = settings_for(kMemfd, 64);
  EXPECT_EQ(open_worker_channel({}, settings).error().code(), ErrorCode::kInvalidArgument);

  int null = ::open("/dev/null", O_RDWR);
  EXPECT_FALSE(open_worker_channel({null, -1}, settings).ok()) << "no socket";

  ChannelPair pair = make_pair(settings);
  null = ::open("/dev/null", O_RDWR);
  EXPECT_FALSE(open_worker_channel({pair.worker_socket.release(), null}, settings).ok())
      << "no region";

  pair = make_pair(settings);
  const int blank = ::memfd_create("blank", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(blank, 4096 + 2 * 65536), 0);
  const auto opened = open_worker_channel({pair.worker_socket.release(), blank}, settings);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message().find("magic"), std::string::npos) << opened.error().message();
}

TEST(MakeChannelPair, RefusesARingThatIsNoPowerOfTwo) {
  for (const std::uint32_t kib : {0U, 1U, 3U, 1000U, 1U << 20}) {
    const auto pair = make_channel_pair(settings_for(kMemfd, kib));
    ASSERT_FALSE(pair.ok()) << kib;
    EXPECT_EQ(pair.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(pair.error().message().find("ipc.ring_kib"), std::string::npos);
  }
}

TEST(MakeChannelPair, TheSettingsLimitsAreTheRings) {
  for (std::uint32_t kib = 1; kib <= 1U << 21; kib *= 2) {
    config::Settings settings;
    const Status assigned = config::assign(settings, "ipc.ring_kib=" + std::to_string(kib));
    EXPECT_EQ(assigned.ok(), checked_ring_bytes(kib).ok()) << kib;
  }
}

TEST(MakeChannelPair, MemfdCannotBeResized) {
  ChannelPair pair = make_pair(settings_for(kMemfd, 64));
  EXPECT_NE(::ftruncate(pair.worker_region.get(), 0), 0);
  EXPECT_NE(::ftruncate(pair.worker_region.get(), 1 << 20), 0);
}

TEST(Stdio, StrayPrintsDoNotReachTheChannel) {
  const config::IpcSettings settings = settings_for(kStdio, 64);
  ChannelPair pair = make_pair(settings);
  Child child(pair, [&]() -> int {
    const int quiet = ::open("/dev/null", O_WRONLY);
    ::dup2(quiet, 2);
    ::dup2(pair.worker_stdin.get(), 0);
    ::dup2(pair.worker_stdout.get(), 1);
    pair.worker_stdin.reset();
    pair.worker_stdout.reset();
    InheritedDescriptors inherited;
    inherited.socket = pair.worker_socket.release();
    auto channel = open_worker_channel(inherited, settings);
    if (!channel.ok()) return 1;
    std::puts("a library's greeting");
    std::fflush(stdout);
    if (::write(1, "more", 4) != 4) return 2;
    char byte;
    if (::read(0, &byte, 1) != 0) return 3;  // /dev/null
    if (!send(**channel, FromWorker(Pong{5}), kForever).ok()) return 4;
    return 0;
  });
  const auto record = receive_asleep(*pair.daemon);
  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(std::get<Pong>(*decode_from_worker(*record)).nonce, 5U);
  pair.daemon->release();
  EXPECT_EQ(receive_asleep(*pair.daemon).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace bulkhead::ipc

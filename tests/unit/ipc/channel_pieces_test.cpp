// Records that are larger than a frame travel in pieces; the calls of their sender send piece after piece.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/sample.hpp"
#include "tests/unit/ipc/channel_suite.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

class ChannelPieces : public OverEveryTransport {};
INSTANTIATE_TEST_SUITE_P(Transport, ChannelPieces, kEveryTransport,
                         [](const auto& test) { return test.param.name; });

TEST_P(ChannelPieces, LargeRecordsTravelInPieces) {
  open(64);
  Submit submit;
  submit.request = RequestId{9};
  submit.prompt = std::string(16'000'000, 'p');
  const Accepted accepted{RequestId{9}, std::vector<TokenId>(2'000'000, 77), 5};
  Status sent;
  std::thread client([&] {
    auto got = receive_asleep(worker());
    if (!got.ok()) return;
    const auto message = decode_to_worker(*got);
    worker().release();
    if (message.ok() && std::get<Submit>(*message) == submit) {
      sent = send(worker(), FromWorker(accepted), kForever);
    }
  });
  ASSERT_TRUE(send(daemon(), ToWorker(submit), kForever).ok());
  const auto record = receive_asleep(daemon());
  client.join();
  ASSERT_TRUE(record.ok()) << record.error().message();
  ASSERT_TRUE(sent.ok());
  const auto message = decode_from_worker(*record);
  ASSERT_TRUE(message.ok()) << message.error().message();
  EXPECT_EQ(std::get<Accepted>(*message), accepted);
  daemon().release();
  // Small records continue as before.
  ASSERT_TRUE(send_pattern(daemon(), 64, 1).ok());
  ASSERT_TRUE(receive_asleep(worker()).ok());
}

TEST_P(ChannelPieces, LargeRecordGoesOnFromTheEventLoop) {
  // One thread plays both ends, and neither calls flush(): the sender's usual loop sends the pieces.
  open(16);
  constexpr std::size_t kSize = 1 << 20;
  auto place = daemon().try_reserve(kSize);
  ASSERT_TRUE(place.ok());
  ASSERT_EQ(place->size(), kSize);
  fill(*place, 5);
  ASSERT_TRUE(daemon().commit(kSize).ok());
  EXPECT_TRUE(daemon().try_reserve(8)->empty()) << "not before the large one is out";
  for (int i = 0; i < 100000; ++i) {
    const auto record = worker().try_receive();
    ASSERT_TRUE(record.ok());
    if (!record->empty()) {
      EXPECT_EQ(record->size(), kSize);
      EXPECT_TRUE(matches(*record, 5));
      return;
    }
    const auto asleep = daemon().prepare_sleep();
    ASSERT_TRUE(asleep.ok());
    if (*asleep) daemon().finish_sleep();
  }
  FAIL() << "it never arrived";
}

// The last piece may go out while its sender prepares to sleep. Then the sender must not sleep, because nobody will
// wake it. (This happened: it slept to its deadline and was taken for hung.)
TEST_P(ChannelPieces, NobodySleepsOnceTheLastPieceIsOut) {
  open(16);
  constexpr std::size_t kSize = 1 << 20;
  const auto place = daemon().try_reserve(kSize);
  ASSERT_TRUE(place.ok());
  ASSERT_EQ(place->size(), kSize);
  fill(*place, 7);
  ASSERT_TRUE(daemon().commit(kSize).ok());
  // One thread plays both ends, so that each look finds the state that the step before has left: the receiver makes
  // room, then the sender continues to send only by preparing to sleep.
  bool told = false;
  for (int step = 0; step < 100000; ++step) {
    const auto record = worker().try_receive();
    ASSERT_TRUE(record.ok());
    const auto asleep = daemon().prepare_sleep();
    ASSERT_TRUE(asleep.ok());
    if (*asleep) {
      EXPECT_EQ(*daemon().flush(), told) << "asleep, with nothing left to send";
      daemon().finish_sleep();
    } else {
      told = *daemon().flush();  // a sender that waits for this calls flush()
    }
    if (record->empty()) continue;
    EXPECT_TRUE(matches(*record, 7));
    EXPECT_TRUE(told);
    EXPECT_TRUE(*daemon().prepare_sleep()) << "told once: now there is nothing to do";
    daemon().finish_sleep();
    return;
  }
  FAIL() << "it never arrived";
}

// The same through send(), whose caller waits for it, with every possible rest of the record when the receiver first
// makes room.
TEST_P(ChannelPieces, SendEndsWithTheLastPiece) {
  for (std::size_t size = 16000; size < 40000; size += 1000) {
    open(16);
    Status received;
    std::thread receiver([&] {
      const auto record = receive_asleep(worker());
      if (!record.ok()) received = record.error();
      worker().release();
      const auto end = receive_asleep(worker());  // this end stays open until the sender's end closes
      if (end.ok()) received = Error(ErrorCode::kInternal, "one record too many");
    });
    const Status sent = send(
        daemon(), ToWorker(Tokenize{RequestId{1}, std::string(size, 'x'), true, true}), kForever);
    const bool out = *daemon().flush();
    pair_.daemon.reset();
    receiver.join();
    EXPECT_TRUE(sent.ok()) << sent.error().message();
    EXPECT_TRUE(received.ok()) << received.error().message();
    EXPECT_TRUE(out) << "it gave up waiting, at " << size << " bytes";
  }
}

// An event loop sends while its end is asleep. If the receiver takes the pieces as fast as they come, the ring is never
// full, and the sender must not stop before it has announced that it waits for room. (This happened: nothing woke the
// sender for the rest of the record.)
TEST_P(ChannelPieces, FastReceiverGetsTheWholeRecordOfASleepingSender) {
  open(16);
  constexpr std::size_t kSize = bulkhead::test::kSample ? 1 << 20 : 4 << 20;
  for (unsigned round = 0; round < 20; ++round) {
    std::atomic<bool> arrived = false, given_up = false;
    std::thread receiver([&] {
      while (!given_up) {
        const auto record = worker().try_receive();
        if (!record.ok()) return;
        if (record->empty()) continue;
        arrived = matches(*record, round);
        worker().release();
        return;
      }
    });
    while (!*daemon().prepare_sleep()) daemon().finish_sleep();
    const auto place = daemon().try_reserve(kSize);
    EXPECT_TRUE(place.ok() && place->size() == kSize);
    fill(*place, round);
    EXPECT_TRUE(daemon().commit(kSize).ok());
    // Goes on only when something wakes it.
    const auto deadline = std::chrono::steady_clock::now() + seconds{20};
    while (!arrived && std::chrono::steady_clock::now() < deadline) {
      pollfd waits{daemon().wait_fd(), POLLIN, 0};
      if (::poll(&waits, 1, 10) <= 0) continue;
      daemon().finish_sleep();
      while (!*daemon().prepare_sleep()) daemon().finish_sleep();
    }
    given_up = true;
    receiver.join();
    daemon().finish_sleep();
    ASSERT_TRUE(arrived) << "record " << round;
  }
}

}  // namespace
}  // namespace bulkhead::ipc

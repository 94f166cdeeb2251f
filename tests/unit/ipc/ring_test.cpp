#include "ipc/ring.hpp"

#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/ipc/ring_in_memory.hpp"

namespace bulkhead::ipc {
namespace {

void fill(std::span<std::byte> payload, std::uint64_t seed) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] = static_cast<std::byte>(seed * 31 + i);
  }
}
bool matches(std::span<const std::byte> payload, std::uint64_t seed) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    if (payload[i] != static_cast<std::byte>(seed * 31 + i)) return false;
  }
  return true;
}

TEST(Ring, EmptyGivesNothing) {
  Ring ring(1024);
  auto consumer = ring.consumer();
  FrameHeader frame;
  EXPECT_FALSE(consumer.next(frame));
  EXPECT_EQ(consumer.fault(), RingFault::kNone);
}

TEST(Ring, EverySizeAtEveryOffset) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  std::uint64_t seed = 0;
  for (std::uint64_t step = 1; step < 64; ++step) {
    for (std::uint64_t size = 1; size <= max_payload(1024); size += step) {
      std::byte* place = producer.reserve(size);
      ASSERT_NE(place, nullptr) << "an empty ring has room for " << size;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 8, 0U);
      fill({place, size}, ++seed);
      producer.commit(size, FrameKind::kWhole);
      FrameHeader frame;
      ASSERT_TRUE(consumer.next(frame)) << to_string(consumer.fault());
      ASSERT_EQ(frame.length, size);
      ASSERT_TRUE(matches(consumer.peek(), seed));
      consumer.release();
    }
  }
}

TEST(Ring, FullIsFullUntilReleased) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  std::vector<std::byte> payload(56);
  int sent = 0;
  while (producer.put(payload, FrameKind::kWhole))
    ++sent;
  EXPECT_EQ(sent, 16);  // 64 bytes each fill the ring
  FrameHeader frame;
  ASSERT_TRUE(consumer.next(frame));
  EXPECT_FALSE(producer.put(payload, FrameKind::kWhole)) << "taken is not yet released";
  consumer.release();
  EXPECT_TRUE(producer.put(payload, FrameKind::kWhole));
  EXPECT_FALSE(producer.put(payload, FrameKind::kWhole));
}

TEST(Ring, CommitMayBeShorterThanReserve) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  for (int i = 0; i < 100; ++i) {
    std::byte* place = producer.reserve(400);
    ASSERT_NE(place, nullptr);
    fill({place, 10}, static_cast<std::uint64_t>(i));
    producer.commit(10, FrameKind::kMore);
    FrameHeader frame;
    ASSERT_TRUE(consumer.next(frame));
    EXPECT_EQ(frame.length, 10U);
    EXPECT_EQ(frame.kind, FrameKind::kMore);
    EXPECT_TRUE(matches(consumer.peek(), static_cast<std::uint64_t>(i)));
    consumer.release();
  }
}

TEST(Ring, OneDoorbellForOneSleep) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  std::vector<std::byte> payload(8);
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  EXPECT_FALSE(producer.must_ring()) << "nobody sleeps";
  EXPECT_TRUE(consumer.announce_sleep()) << "a frame is there";
  consumer.withdraw_sleep();
  FrameHeader frame;
  ASSERT_TRUE(consumer.next(frame));
  consumer.release();
  EXPECT_FALSE(consumer.announce_sleep());
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  EXPECT_TRUE(producer.must_ring());
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  EXPECT_FALSE(producer.must_ring()) << "rung for this sleep already";
  consumer.withdraw_sleep();
  while (consumer.next(frame))
    consumer.release();
  EXPECT_FALSE(consumer.announce_sleep());
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  EXPECT_TRUE(producer.must_ring()) << "another sleep";
  EXPECT_EQ(consumer.sleeps_announced(), 3U);
}

TEST(Ring, WaitingProducerIsWokenForAnEighthOrAtTheEnd) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  const std::vector<std::byte> payload(24);  // 32 bytes of the 1024 for each record
  while (producer.put(payload, FrameKind::kWhole)) {
  }
  FrameHeader frame;
  std::vector<int> woken;
  for (int i = 1; i <= 16; ++i) {
    EXPECT_FALSE(producer.announce_wait(max_payload(1024))) << "not before half of it is free";
    ASSERT_TRUE(consumer.next(frame));
    consumer.release();
    if (consumer.must_ring()) {
      woken.push_back(i);
      producer.withdraw_wait();
    }
    EXPECT_FALSE(consumer.must_ring()) << "rung for this wait already";
  }
  EXPECT_EQ(woken, (std::vector<int>{4, 8, 12, 16}));
  EXPECT_TRUE(producer.announce_wait(max_payload(1024)));

  // One frame less than an eighth; but it is the last one, and nothing else would wake the producer.
  producer.withdraw_wait();
  while (consumer.next(frame)) {
    consumer.release();
  }
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  ASSERT_TRUE(producer.put(std::vector<std::byte>(480), FrameKind::kWhole));
  EXPECT_FALSE(producer.announce_wait(max_payload(1024)));
  ASSERT_TRUE(consumer.next(frame));
  consumer.release();
  EXPECT_FALSE(consumer.must_ring());
  ASSERT_TRUE(consumer.next(frame));
  consumer.release();
  EXPECT_TRUE(consumer.must_ring());
}

// ---- lies ----

struct Lie {
  const char* name;
  RingFault fault;
  void (*tell)(Ring&);
};
void PrintTo(const Lie& lie, std::ostream* out) {
  *out << lie.name;
}

class LyingProducer : public testing::TestWithParam<Lie> {};

TEST_P(LyingProducer, IsFound) {
  Ring ring(1024);
  auto consumer = ring.consumer();
  GetParam().tell(ring);
  FrameHeader frame;
  for (int i = 0; i < 4 && consumer.next(frame); ++i)
    consumer.release();
  EXPECT_EQ(consumer.fault(), GetParam().fault) << to_string(consumer.fault());
  EXPECT_FALSE(consumer.next(frame)) << "a fault lasts";
}

// Sends a good frame of 504 bytes, which is released, and then one of 200 bytes that ends at 720. Lies about the wrap
// begin there.
void to_offset_720(Ring& ring) {
  ring.header(0, 496, FrameKind::kWhole);
  ring.header(504, 208, FrameKind::kWhole);
}

INSTANTIATE_TEST_SUITE_P(
    Ring, LyingProducer,
    testing::Values(
        Lie{"HeadUnaligned", RingFault::kIndexUnaligned, [](Ring& r) { r.control->head = 12; }},
        Lie{"HeadAhead", RingFault::kIndexAhead, [](Ring& r) { r.control->head = 1032; }},
        Lie{"HeadHuge", RingFault::kIndexAhead, [](Ring& r) { r.control->head = ~7ULL; }},
        Lie{"EmptyFrame", RingFault::kLength, [](Ring& r) { r.control->head = 64; }},
        Lie{"LongerThanPublished", RingFault::kLength,
            [](Ring& r) {
              r.header(0, 100, FrameKind::kWhole);
              r.control->head = 64;
            }},
        Lie{"LongerThanAllowed", RingFault::kLength,
            [](Ring& r) {
              r.header(0, 600, FrameKind::kWhole);
              r.control->head = 1024;
            }},
        Lie{"LengthOverflows", RingFault::kLength,
            [](Ring& r) {
              r.header(0, 0xFFFFFFFF, FrameKind::kWhole);
              r.control->head = 1024;
            }},
        Lie{"UnknownKind", RingFault::kKind,
            [](Ring& r) {
              r.header(0, 8, static_cast<FrameKind>(9));
              r.control->head = 64;
            }},
        Lie{"PaddingAtTheStart", RingFault::kPadding,
            [](Ring& r) {
              r.header(0, 1016, FrameKind::kPadding);
              r.control->head = 1024;
            }},
        Lie{"PaddingTooShort", RingFault::kPadding,
            [](Ring& r) {
              to_offset_720(r);
              r.header(720, 8, FrameKind::kPadding);
              r.control->head = 1024;
            }},
        Lie{"PaddingLast", RingFault::kPadding,
            [](Ring& r) {
              to_offset_720(r);
              r.header(720, 296, FrameKind::kPadding);
              r.control->head = 1024;
            }},
        Lie{"FrameAcrossTheEnd", RingFault::kLength,
            [](Ring& r) {
              to_offset_720(r);
              r.header(720, 304, FrameKind::kWhole);
              r.control->head = 1024;
            }}),
    [](const auto& test) { return test.param.name; });

TEST(Ring, HeadThatGoesBackIsFound) {
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  std::vector<std::byte> payload(8);
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  FrameHeader frame;
  ASSERT_TRUE(consumer.next(frame));
  consumer.release();
  ring.control->head = 0;
  EXPECT_FALSE(consumer.next(frame));
  EXPECT_EQ(consumer.fault(), RingFault::kIndexBack);
}

TEST(Ring, LyingConsumerIsFound) {
  const auto after = [](std::uint64_t tail) {
    Ring ring(1024);
    auto producer = ring.producer();
    std::vector<std::byte> payload(440);
    EXPECT_TRUE(producer.put(payload, FrameKind::kWhole));
    EXPECT_TRUE(producer.put(payload, FrameKind::kWhole));
    ring.control->tail = tail;
    EXPECT_FALSE(producer.put(payload, FrameKind::kWhole));
    return producer.fault();
  };
  EXPECT_EQ(after(0), RingFault::kNone);
  EXPECT_EQ(after(4), RingFault::kIndexUnaligned);
  EXPECT_EQ(after(904), RingFault::kIndexAhead);
  EXPECT_EQ(after(~7ULL), RingFault::kIndexAhead);
}

TEST(Ring, LengthIsReadOnce) {
  // The peer changes a header after the check; the checked values must count.
  Ring ring(1024);
  auto producer = ring.producer();
  auto consumer = ring.consumer();
  std::vector<std::byte> payload(8);
  ASSERT_TRUE(producer.put(payload, FrameKind::kWhole));
  FrameHeader frame;
  ASSERT_TRUE(consumer.next(frame));
  ring.header(0, 0xFFFF, FrameKind::kWhole);
  std::byte into[8];
  consumer.take(into);
  consumer.release();
  EXPECT_EQ(ring.control->tail.load(), 16U);
}

// ---- two threads ----

}  // namespace
}  // namespace bulkhead::ipc

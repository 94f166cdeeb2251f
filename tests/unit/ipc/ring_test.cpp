#include "ipc/ring.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::ipc {
namespace {

// Both ends of one ring in one process; `control` and `data` stand for the shared memory.
struct Ring {
  explicit Ring(std::uint64_t size)
      : bytes(size), data(static_cast<std::byte*>(std::aligned_alloc(64, size)), &std::free) {}
  RingProducer producer() { return RingProducer(*control, data.get(), bytes); }
  RingConsumer consumer() { return RingConsumer(*control, data.get(), bytes); }
  void header(std::uint64_t at, std::uint32_t length, FrameKind kind) {
    const FrameHeader header{length, kind};
    std::memcpy(data.get() + at, &header, sizeof header);
  }

  std::uint64_t bytes;
  std::unique_ptr<RingControl> control = std::make_unique<RingControl>();
  std::unique_ptr<std::byte[], decltype(&std::free)> data;
};

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

// Plays the socketpair between processes: one rings it without blocking, and the other sleeps on it.
class Bell {
 public:
  Bell() {
    if (::pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) std::abort();
  }
  ~Bell() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void ring() { (void)!::write(ends_[1], "!", 1); }
  // Returns false if nobody rang within a minute, or somebody rang more often than `allowed`.
  bool sleep(std::uint64_t allowed) {
    pollfd wait{ends_[0], POLLIN, 0};
    if (::poll(&wait, 1, 60000) != 1) return false;
    return count(allowed);
  }
  bool count(std::uint64_t allowed) {
    char bytes[64];
    for (ssize_t got; (got = ::read(ends_[0], bytes, sizeof bytes)) > 0;)
      rung_ += static_cast<std::uint64_t>(got);
    return rung_ <= allowed;
  }

 private:
  int ends_[2] = {-1, -1};
  std::uint64_t rung_ = 0;
};

// Writes eight bytes at a time; otherwise most of the test's time would go into the pattern.
void fill_words(std::span<std::byte> payload, std::uint64_t seed) {
  std::size_t i = 0;
  for (; i + 8 <= payload.size(); i += 8) {
    const std::uint64_t word = seed * 0x9E3779B97F4A7C15U + i;
    std::memcpy(payload.data() + i, &word, 8);
  }
  for (; i < payload.size(); ++i)
    payload[i] = static_cast<std::byte>(seed * 31 + i);
}
bool matches_words(std::span<const std::byte> payload, std::uint64_t seed) {
  std::size_t i = 0;
  for (; i + 8 <= payload.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, payload.data() + i, 8);
    if (word != seed * 0x9E3779B97F4A7C15U + i) return false;
  }
  for (; i < payload.size(); ++i) {
    if (payload[i] != static_cast<std::byte>(seed * 31 + i)) return false;
  }
  return true;
}

// Waits in place: first with some pauses, for a peer on another core, then by giving the core to a peer on this one.
class Backoff {
 public:
  void wait() {
    if (++turns_ % 64 == 0) return std::this_thread::yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  unsigned turns_ = 0;
};

// Records of random sizes, over wraps, stalls and sleeps of both ends. One end works in place and one in private
// memory, as worker and daemon do. If a wake-up is lost, the test ends after a minute.
//   BULKHEAD_RING_RECORDS   how many records (default 300000; 100 million for a long ThreadSanitizer run)
//   BULKHEAD_RING_SEED      decides the sizes and pauses (default 7)
TEST(Ring, TwoThreadsRandomSizesWrapsAndStalls) {
  const auto setting = [](const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  const std::uint64_t records = setting("BULKHEAD_RING_RECORDS", 300000);
  const auto seed = static_cast<std::uint_fast32_t>(setting("BULKHEAD_RING_SEED", 7));
  constexpr std::uint64_t kTold = 10'000'000;  // prints a line after each so many records
  Ring ring(4096);
  Bell consumers_bell, producers_bell;
  std::atomic<bool> stop = false;
  std::uint64_t waits = 0, sleeps = 0, wraps_in_bytes = 0;
  const char* writers_failure = nullptr;

  std::thread writer([&] {
    auto producer = ring.producer();
    std::minstd_rand random(seed);
    Backoff backoff;
    for (std::uint64_t i = 0; i < records; ++i) {
      const std::uint64_t draw = random();
      const std::uint64_t size =
          1 + (draw >> 8) % (draw % 64 == 0 ? max_payload(ring.bytes) : std::uint64_t{96});
      std::byte* place;
      int tries = 0;
      while ((place = producer.reserve(size)) == nullptr) {
        if (stop || producer.fault() != RingFault::kNone) return;
        if (++tries < 256 || draw % 4 != 0) {
          backoff.wait();
          continue;
        }
        if (!producer.announce_wait(size)) {
          ++waits;
          if (!producers_bell.sleep(producer.waits_announced())) {
            writers_failure = "the producer's wake-up was lost, or it was rung too often";
            stop = true;
            return;
          }
        }
        producer.withdraw_wait();
        if (!producers_bell.count(producer.waits_announced())) {
          writers_failure = "the producer was rung twice for one wait";
        }
      }
      fill_words({place, size}, i);
      producer.commit(size, FrameKind::kWhole);
      wraps_in_bytes += frame_bytes(size);
      if (producer.must_ring()) consumers_bell.ring();
      if (draw % 4096 == 1) std::this_thread::yield();
      if (draw % 8192 == 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });

  auto consumer = ring.consumer();
  std::minstd_rand random(seed + 2);
  std::vector<std::byte> inbox(max_payload(ring.bytes));
  Backoff backoff;
  const char* failure = nullptr;
  const auto begun = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < records && failure == nullptr; ++i) {
    const std::uint64_t draw = random();
    FrameHeader frame;
    int tries = 0;
    while (!consumer.next(frame) && failure == nullptr) {
      if (consumer.fault() != RingFault::kNone) {
        failure = to_string(consumer.fault());
      } else if (stop) {
        failure = "the producer gave up";
      } else if (++tries < 256 || draw % 4 != 0) {
        backoff.wait();
      } else {
        if (!consumer.announce_sleep()) {
          ++sleeps;
          if (!consumers_bell.sleep(consumer.sleeps_announced()))
            failure = "the consumer's wake-up was lost, or it was rung too often";
        }
        consumer.withdraw_sleep();
        if (!consumers_bell.count(consumer.sleeps_announced()))
          failure = "the consumer was rung twice for one sleep";
      }
    }
    if (failure != nullptr) break;
    consumer.take(inbox.data());
    consumer.release();
    if (consumer.must_ring()) producers_bell.ring();
    if (!matches_words({inbox.data(), frame.length}, i)) failure = "a record is not what was sent";
    if (draw % 4096 == 1) std::this_thread::yield();
    if (draw % 8192 == 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if ((i + 1) % kTold == 0) {
      std::printf("%llu M records, %.0f s\n", static_cast<unsigned long long>((i + 1) / 1'000'000),
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
      std::fflush(stdout);
    }
  }
  stop = true;
  producers_bell.ring();  // the producer may sleep after a failure
  writer.join();
  if (failure != nullptr || writers_failure != nullptr) {
    FAIL() << (failure != nullptr ? failure : writers_failure) << "; seed " << seed;
  }
  FrameHeader frame;
  EXPECT_FALSE(consumer.next(frame));
  std::printf("%llu records, %llu turns of the ring, %llu waits for room and %llu sleeps asleep\n",
              static_cast<unsigned long long>(records),
              static_cast<unsigned long long>(wraps_in_bytes / ring.bytes),
              static_cast<unsigned long long>(waits), static_cast<unsigned long long>(sleeps));
}

}  // namespace
}  // namespace bulkhead::ipc

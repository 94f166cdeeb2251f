// Two threads use one ring, for any number of records.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/ipc/ring_in_memory.hpp"

namespace bulkhead::ipc {
namespace {

// Plays the socketpair that two processes would have: one end rings without blocking, and the other
// end sleeps on it.
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
  // Returns false if the other end did not ring within a minute, or rang more often than `allowed`.
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

// Works on eight bytes at a time; otherwise the pattern would take most of the test's time.
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

// Waits without sleeping: some pauses for a peer on another core, then it yields the core to a peer
// on this one.
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

// Records of random sizes, over wraps, stalls and sleeps of both ends, one in place and one private
// as worker and daemon are. A lost wake-up ends it after a minute.
struct RandomTraffic {
  RandomTraffic(std::uint64_t count, std::uint_fast32_t the_seed)
      : records(count), seed(the_seed) {}

  static void rest(std::uint64_t draw) {
    if (draw % 4096 == 1) std::this_thread::yield();
    if (draw % 8192 == 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  // Runs in a separate thread.
  void write() {
    auto producer = ring.producer();
    std::minstd_rand random(seed);
    for (std::uint64_t i = 0; i < records; ++i) {
      const std::uint64_t draw = random();
      const std::uint64_t size =
          1 + (draw >> 8) % (draw % 64 == 0 ? max_payload(ring.bytes) : std::uint64_t{96});
      std::byte* const place = reserve(producer, size, draw);
      if (place == nullptr) return;
      fill_words({place, size}, i);
      producer.commit(size, FrameKind::kWhole);
      wraps_in_bytes += frame_bytes(size);
      if (producer.must_ring()) consumers_bell.ring();
      rest(draw);
    }
  }
  // Null: there are no more records.
  template <typename Producer>
  std::byte* reserve(Producer& producer, std::uint64_t size, std::uint64_t draw) {
    std::byte* place;
    for (int tries = 0; (place = producer.reserve(size)) == nullptr;) {
      if (stop || producer.fault() != RingFault::kNone) return nullptr;
      if (++tries < 256 || draw % 4 != 0) {
        writers_backoff.wait();
        continue;
      }
      if (!producer.announce_wait(size)) {
        ++waits;
        if (!producers_bell.sleep(producer.waits_announced())) {
          writers_failure = "the producer's wake-up was lost, or it was rung too often";
          stop = true;
          return nullptr;
        }
      }
      producer.withdraw_wait();
      if (!producers_bell.count(producer.waits_announced()))
        writers_failure = "the producer was rung twice for one wait";
    }
    return place;
  }

  // Returns what went wrong; null: nothing.
  template <typename Consumer>
  const char* await(Consumer& consumer, FrameHeader& frame, std::uint64_t draw) {
    for (int tries = 0; !consumer.next(frame);) {
      if (consumer.fault() != RingFault::kNone) return to_string(consumer.fault());
      if (stop) return "the producer gave up";
      if (++tries < 256 || draw % 4 != 0) {
        readers_backoff.wait();
        continue;
      }
      if (!consumer.announce_sleep()) {
        ++sleeps;
        if (!consumers_bell.sleep(consumer.sleeps_announced()))
          return "the consumer's wake-up was lost, or it was rung too often";
      }
      consumer.withdraw_sleep();
      if (!consumers_bell.count(consumer.sleeps_announced()))
        return "the consumer was rung twice for one sleep";
    }
    return nullptr;
  }
  template <typename Consumer>
  const char* read(Consumer& consumer) {
    constexpr std::uint64_t kTold = 10'000'000;  // prints a line after this many records
    std::minstd_rand random(seed + 2);
    std::vector<std::byte> inbox(max_payload(ring.bytes));
    const auto begun = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < records; ++i) {
      const std::uint64_t draw = random();
      FrameHeader frame;
      if (const char* const failure = await(consumer, frame, draw)) return failure;
      consumer.take(inbox.data());
      consumer.release();
      if (consumer.must_ring()) producers_bell.ring();
      if (!matches_words({inbox.data(), frame.length}, i)) return "a record is not what was sent";
      rest(draw);
      if ((i + 1) % kTold != 0) continue;
      std::printf("%llu M records, %.0f s\n", static_cast<unsigned long long>((i + 1) / 1'000'000),
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
      std::fflush(stdout);
    }
    return nullptr;
  }

  const std::uint64_t records;
  const std::uint_fast32_t seed;
  Ring ring{4096};
  Bell consumers_bell, producers_bell;
  Backoff writers_backoff, readers_backoff;
  std::atomic<bool> stop = false;
  std::uint64_t waits = 0, sleeps = 0, wraps_in_bytes = 0;
  const char* writers_failure = nullptr;
};

//   BULKHEAD_RING_RECORDS   how many (default 300000; 100 million for a long ThreadSanitizer run)
//   BULKHEAD_RING_SEED      of the sizes and pauses (default 7)
TEST(Ring, TwoThreadsRandomSizesWrapsAndStalls) {
  const auto setting = [](const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  RandomTraffic traffic(setting("BULKHEAD_RING_RECORDS", 300000),
                        static_cast<std::uint_fast32_t>(setting("BULKHEAD_RING_SEED", 7)));
  std::thread writer([&] { traffic.write(); });
  auto consumer = traffic.ring.consumer();
  const char* const failure = traffic.read(consumer);
  traffic.stop = true;
  traffic.producers_bell.ring();  // it may sleep, after a failure
  writer.join();
  if (failure != nullptr || traffic.writers_failure != nullptr) {
    FAIL() << (failure != nullptr ? failure : traffic.writers_failure) << "; seed " << traffic.seed;
  }
  FrameHeader frame;
  EXPECT_FALSE(consumer.next(frame));
  std::printf("%llu records, %llu turns of the ring, %llu waits for room and %llu sleeps asleep\n",
              static_cast<unsigned long long>(traffic.records),
              static_cast<unsigned long long>(traffic.wraps_in_bytes / traffic.ring.bytes),
              static_cast<unsigned long long>(traffic.waits),
              static_cast<unsigned long long>(traffic.sleeps));
}

}  // namespace
}  // namespace bulkhead::ipc

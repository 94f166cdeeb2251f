// Runs the daemon's ends of both rings while a hostile peer writes words and data between their calls.
//
// Input, 16 bytes a step: op (1), place (7, little-endian), value (8).
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "ipc/ring.hpp"

using namespace bulkhead::ipc;

namespace {

constexpr std::uint64_t kRing = 4096;

void require(bool rule) {
  if (!rule) std::abort();
}

struct Half {
  RingControl control{};
  // Allocated in the exact size, so that an access one byte too far is noticed.
  std::unique_ptr<std::byte[]> data = std::make_unique<std::byte[]>(kRing);
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto up = std::make_unique<Half>(), down = std::make_unique<Half>();
  RingConsumer consumer(up->control, up->data.get(), kRing);
  RingProducer producer(down->control, down->data.get(), kRing);
  const auto inbox = std::make_unique<std::byte[]>(max_payload(kRing));
  const auto outbox = std::make_unique<std::byte[]>(max_payload(kRing));

  for (std::size_t at = 0; at + 16 <= size; at += 16) {
    std::uint64_t place = 0, value = 0;
    std::memcpy(&place, data + at + 1, 7);
    std::memcpy(&value, data + at + 8, 8);
    switch (data[at] % 12) {
      // the peer
      case 0:
        up->control.head.store(value);
        break;
      case 1:
        up->control.head.fetch_add(value % (2 * kRing));
        break;
      case 2:
        up->control.tail.store(value);
        break;  // this word is not the peer's, so its changes must have no effect
      case 3:
        down->control.tail.store(value);
        break;
      case 4:
        down->control.tail.fetch_add(value % (2 * kRing));
        break;
      case 5:
        down->control.head.store(value);
        break;
      case 6:
        std::memcpy(up->data.get() + (place % kRing & ~7ULL), &value, 8);
        break;
      case 7:
        up->control.producer_wait.store(value);
        down->control.consumer_sleep.store(value);
        break;
      // the daemon
      case 8: {
        const RingFault before = consumer.fault();
        FrameHeader frame;
        if (!consumer.next(frame)) {
          require(before == RingFault::kNone || consumer.fault() == before);
          break;
        }
        require(before == RingFault::kNone && consumer.fault() == RingFault::kNone);
        require(frame.length >= 1 && frame.length <= max_payload(kRing));
        consumer.take(inbox.get());
        if (place % 2 == 0) {
          consumer.release();
          (void)consumer.must_ring();
        }
        break;
      }
      case 9: {
        const std::uint64_t bytes = 1 + value % max_payload(kRing);
        const bool sent = producer.put({outbox.get(), bytes}, FrameKind::kWhole);
        require(!sent || producer.fault() == RingFault::kNone);
        if (sent) (void)producer.must_ring();
        break;
      }
      case 10:
        (void)consumer.announce_sleep();
        consumer.withdraw_sleep();
        break;
      default:
        (void)producer.announce_wait(1 + value % max_payload(kRing));
        producer.withdraw_wait();
    }
    require(consumer.depth() <= kRing);
  }
  return 0;
}

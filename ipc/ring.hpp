// A single-producer single-consumer ring of variable-length frames between two processes.
//
// This file deals only with memory: no sockets, no messages, no waiting. Two rings, one for each direction, live
// in a Region.
//
// Control words (RingControl), each with one writer:
//     +0    head            the producer's: bytes published since the start
//     +128  tail            the consumer's: bytes given back since the start
//     +256  consumer_sleep  the consumer's: odd while it sleeps
//     +384  producer_wait   the producer's: odd while it waits for room
//
// Data, a power of two of bytes (head and tail are 64-bit counts, which never overflow; their offsets in the data
// wrap):
//     +---------+---------+-----------+---------+----------------+---------+
//     | frame   | free    |    free   | frame   | frame          | padding |
//     +---------+---------+-----------+---------+----------------+---------+
//               ^ head                ^ tail
//
//   a frame, always 8-byte aligned:
//     +0  uint32 length   bytes of payload, at least 1
//     +4  uint32 kind     whole | more | last | padding
//     +8  payload         then 0..7 bytes to the next multiple of 8
//
// Invariants
//   I1  Every shared word has one writer. Nothing is locked, nothing is compared-and-swapped.
//   I2  tail <= head <= tail + size; both are multiples of 8 and never go back.
//   I3  A payload is contiguous. If a frame would cross the end of the data, a padding frame fills the rest up to
//       the end exactly, and one store of head publishes both frames. So padding never stands at offset 0 and is
//       never the last thing published.
//   I4  A frame takes at most half the ring, so an empty ring has room for it wherever head stands: the producer
//       skips the rest only if the frame does not fit there, and rest + frame < 2 * frame.
//   I5  Each end keeps its own index in private memory and only publishes it. A peer that overwrites the published
//       copy harms only its own end.
//
// Trust. Both ends check what they read from the other (a few comparisons), so one class serves both. They differ
// in where payloads live:
//   in place  reserve/commit and peek/release: the caller works in the ring itself. The worker does so, because it
//             trusts its peer, which can still write there.
//   private   put and take: one memcpy moves the payload from or to the caller's memory, and nobody reads it from
//             the ring again. The daemon does so, because it does not trust its peer. A peer that writes at the
//             same time spoils only its own bytes, which the daemon validates after the copy.
// A broken rule is a permanent RingFault, because the control words can't be trusted any more.
//
// Memory orders
//   (a) head: the producer stores it after the payload; the consumer loads it before the payload. Release and
//       acquire would suffice for the data; the store is sequentially consistent because of (c).
//   (b) tail: the same in the other direction. The consumer reads a payload before it stores tail; the producer
//       loads tail before it overwrites the payload.
//   (c) Sleep. The consumer announces its sleep and then looks for frames; the producer publishes a frame and then
//       looks for the announcement:
//           consumer                               producer
//           consumer_sleep = odd   (S1)            head = new             (S3)
//           load head              (S2)            load consumer_sleep    (S4)
//       If S2 could miss the frame and S4 the announcement, both would wait for ever. Each side
//       stores one word and loads another, and a CPU (x86 too: its store buffer) may perform the
//       load first; acquire and release do not forbid it. With all four sequentially consistent
//       there is one order of them all: if S2 misses the frame it comes before S3 there, and then
//       S1 comes before S4. On x86 such a load is a plain load and such a store one `xchg`. (Fences
//       between would do too, but ThreadSanitizer does not understand fences.)
//   (d) producer_wait and tail: the same for a producer that waits for room. But a consumer need not look for a
//       waiting producer after each frame. It looks when it has given back an eighth of the ring since its last
//       look, and when it knows of no further frame. Only that store of tail is sequentially consistent; the others
//       are release (a plain store on x86). Nobody waits for ever, because a consumer goes on until it knows of no
//       frame, and then it looks. And it wakes a waiting producer when there is enough to do, not once a frame.
//   (e) A frame's header is loaded once, relaxed. (a) has ordered the load already. It must be loaded only once,
//       because the peer may change it after the check.
//
// Sleep words are counters: each sleep writes another odd value. The other end remembers the last odd value for which
// it rang, so a sleep costs at most one doorbell, and no word needs a second writer.
//
// tests/model/ring.pml models this algorithm with store buffers and checks it exhaustively. It also leaves out each
// of the orders above, one at a time, and each time the checker finds the record or the wake-up that is lost.
//
// reach(Point) marks a step at which tests make a process die; it does nothing in a release build.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ipc/fault_points.hpp"

namespace bulkhead::ipc {

struct RingControl {
  alignas(128) std::atomic<std::uint64_t> head;  // 128: CPUs prefetch lines in pairs
  alignas(128) std::atomic<std::uint64_t> tail;
  alignas(128) std::atomic<std::uint64_t> consumer_sleep;
  alignas(128) std::atomic<std::uint64_t> producer_wait;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be in one process");
static_assert(sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(offsetof(RingControl, head) == 0);
static_assert(offsetof(RingControl, tail) == 128);
static_assert(offsetof(RingControl, consumer_sleep) == 256);
static_assert(offsetof(RingControl, producer_wait) == 384);
static_assert(sizeof(RingControl) == 512);

enum class FrameKind : std::uint32_t {
  kWhole = 1,    // a whole record
  kMore = 2,     // a piece of a record; more follow
  kLast = 3,     // the last piece
  kPadding = 4,  // the rest of the ring, skipped
};

struct FrameHeader {
  std::uint32_t length;
  FrameKind kind;
};
static_assert(sizeof(FrameHeader) == 8);

constexpr std::uint64_t kFrameHeaderBytes = sizeof(FrameHeader);
constexpr std::uint64_t align8(std::uint64_t bytes) {
  return (bytes + 7) & ~std::uint64_t{7};
}
// Returns the bytes of the ring that a frame takes.
constexpr std::uint64_t frame_bytes(std::uint64_t payload) {
  return kFrameHeaderBytes + align8(payload);
}
// Returns the largest payload of a frame (I4).
constexpr std::uint64_t max_payload(std::uint64_t ring_bytes) {
  return ring_bytes / 2 - kFrameHeaderBytes;
}

enum class RingFault { kNone, kIndexUnaligned, kIndexBack, kIndexAhead, kLength, kKind, kPadding };

constexpr const char* to_string(RingFault fault) {
  switch (fault) {
    case RingFault::kNone:
      return "no fault";
    case RingFault::kIndexUnaligned:
      return "its index is no multiple of 8";
    case RingFault::kIndexBack:
      return "its index went back";
    case RingFault::kIndexAhead:
      return "its index is further than the ring allows";
    case RingFault::kLength:
      return "a frame is empty, or longer than what was published or allowed";
    case RingFault::kKind:
      return "a frame is of no known kind";
    case RingFault::kPadding:
      return "padding does not fill the rest of the ring, or nothing follows it";
  }
  return "unknown";
}

// This end's word that says "wake me": call announce() before the last look, and withdraw() when awake (c).
class SleepWord {
 public:
  explicit SleepWord(std::atomic<std::uint64_t>& word) : word_(&word) {}
  void announce() {
    if ((count_ & 1) != 0) return;
    word_->store(++count_, std::memory_order_seq_cst);  // S1
  }
  // Relaxed: if the peer sees it late, the peer rings one doorbell too many.
  void withdraw() {
    if ((count_ & 1) != 0) word_->store(++count_, std::memory_order_relaxed);
  }
  // Returns the number of sleeps announced so far, which is how often the peer may have rung.
  std::uint64_t announced() const { return (count_ + 1) / 2; }

 private:
  std::atomic<std::uint64_t>* word_;
  std::uint64_t count_ = 0;
};

// The peer's word, seen from the end that rings.
class WakeWord {
 public:
  explicit WakeWord(const std::atomic<std::uint64_t>& word) : word_(&word) {}
  // Returns true if the peer sleeps and this end has not rung for this sleep.
  bool must_ring() {
    const std::uint64_t seen = word_->load(std::memory_order_seq_cst);  // S4
    reach(Point::kSleepWordRead);
    if ((seen & 1) == 0 || seen == rung_) return false;
    rung_ = seen;
    return true;
  }

 private:
  const std::atomic<std::uint64_t>* word_;
  std::uint64_t rung_ = 0;
};

class RingProducer {
 public:
  // `data` is 64-byte aligned and has `bytes` bytes, a power of two of at least 1024.
  RingProducer(RingControl& control, std::byte* data, std::uint64_t bytes)
      : control_(&control),
        data_(data),
        size_(bytes),
        wait_(control.producer_wait),
        consumer_(control.consumer_sleep) {}

  // In place: returns where the caller may build a payload of up to `bytes` (1..max_payload), or nullptr if the ring
  // is full or faulty. It publishes nothing; a second reserve replaces the first.
  std::byte* reserve(std::uint64_t bytes) {
    if (fault_ != RingFault::kNone) return nullptr;
    const std::uint64_t need = frame_bytes(bytes);
    const std::uint64_t offset = head_ & (size_ - 1);
    padding_ = need <= size_ - offset ? 0 : size_ - offset;
    if (padding_ + need > size_ - (head_ - tail_)) {
      refresh(std::memory_order_acquire);  // (b)
      if (fault_ != RingFault::kNone || padding_ + need > size_ - (head_ - tail_)) return nullptr;
    }
    return data_ + ((offset + padding_) & (size_ - 1)) + kFrameHeaderBytes;
  }

  // Publishes the first `bytes` of the reserved room.
  void commit(std::uint64_t bytes, FrameKind kind) {
    if (padding_ != 0) {
      write_header(head_, static_cast<std::uint32_t>(padding_ - kFrameHeaderBytes),
                   FrameKind::kPadding);
      reach(Point::kPaddingWritten);
    }
    write_header(head_ + padding_, static_cast<std::uint32_t>(bytes), kind);
    head_ += padding_ + frame_bytes(bytes);
    padding_ = 0;
    reach(Point::kPublish);
    control_->head.store(head_, std::memory_order_seq_cst);  // (a), S3
    reach(Point::kPublished);
    own_ahead(frame_bytes(bytes));
  }

  // Private: returns false if the ring is full or faulty.
  bool put(std::span<const std::byte> payload, FrameKind kind) {
    std::byte* place = reserve(payload.size());
    if (place == nullptr) return false;
    std::memcpy(place, payload.data(), payload.size());
    reach(Point::kPayloadCopied);
    commit(payload.size(), kind);
    return true;
  }

  // Call after a commit: returns whether the consumer must be woken. Returns true once per sleep.
  bool must_ring() { return consumer_.must_ring(); }

  // To wait for room for `bytes`: announces the wait, then looks once more (d). Returns true if there is room now.
  bool announce_wait(std::uint64_t bytes) {
    reach(Point::kAnnounceWait);
    wait_.announce();
    reach(Point::kWaitAnnounced);
    refresh(std::memory_order_seq_cst);
    reach(Point::kLastLookForRoom);
    return reserve(bytes) != nullptr;
  }
  void withdraw_wait() { wait_.withdraw(); }
  std::uint64_t waits_announced() const { return wait_.announced(); }

  RingFault fault() const { return fault_; }

 private:
  void refresh(std::memory_order order) {
    if (fault_ != RingFault::kNone) return;  // the first one lasts
    reach(Point::kReadTail);
    const std::uint64_t tail = control_->tail.load(order);
    reach(Point::kTailRead);
    if (tail % 8 != 0)
      fault_ = RingFault::kIndexUnaligned;
    else if (tail < tail_)
      fault_ = RingFault::kIndexBack;
    else if (tail > head_)
      fault_ = RingFault::kIndexAhead;
    else
      tail_ = tail;
  }
  // Prefetches free cache lines some way ahead for writing. The store of head waits for the payload's stores, and
  // each of these waits until its line leaves the consumer's cache. With prefetching several lines travel at the same
  // time, and small frames follow each other twice as fast (bench-ipc-latency, 16 cores apart). It leaves the next
  // frame's own lines alone, because a waiting consumer looks at them.
  void own_ahead(std::uint64_t published) {
#if defined(__x86_64__)
    constexpr std::uint64_t kAhead = 256, kMost = 512;  // long copies are prefetched by the CPU itself
    const std::uint64_t begin = head_ + kAhead;
    const std::uint64_t end = begin + std::min(published, kMost);
    if (end - tail_ > size_) return;  // not known to be free
    for (std::uint64_t at = begin & ~std::uint64_t{63}; at < end; at += 64) {
      // __builtin_prefetch emits this instruction only if every CPU of the build's target has it. On CPUs that lack
      // it, it does nothing.
      asm volatile("prefetchw %0" : : "m"(data_[at & (size_ - 1)]));
    }
#endif
  }
  void write_header(std::uint64_t at, std::uint32_t length, FrameKind kind) {
    const FrameHeader header{length, kind};
    std::memcpy(data_ + (at & (size_ - 1)), &header, sizeof header);
  }

  RingControl* control_;
  std::byte* data_;
  std::uint64_t size_;
  std::uint64_t head_ = 0;  // ours (I5)
  std::uint64_t tail_ = 0;  // the consumer's, as last seen: read again only when this says "full"
  std::uint64_t padding_ = 0;  // bytes to skip before the reserved frame
  SleepWord wait_;
  WakeWord consumer_;
  RingFault fault_ = RingFault::kNone;
};

class RingConsumer {
 public:
  RingConsumer(RingControl& control, const std::byte* data, std::uint64_t bytes)
      : control_(&control),
        data_(data),
        size_(bytes),
        sleep_(control.consumer_sleep),
        producer_(control.producer_wait) {}

  // Reads the next frame's header once and checks it; returns false if there is none now or the ring is faulty. The
  // header stays the same until release().
  bool next(FrameHeader& header) {
    if (held_ != 0) {
      header = header_;
      return true;
    }
    if (head_ == tail_) {
      // Prefetches the next frame's lines while it looks at head. A small frame then needs one exchange of lines
      // between two cores and not two, which saves a seventh of a round trip (bench-ipc-latency).
      prefetch(tail_);
      prefetch(tail_ + 64);
      refresh(std::memory_order_acquire);  // (a)
    }
    if (fault_ != RingFault::kNone || head_ == tail_) return false;
    read_header();
    if (header_.kind == FrameKind::kPadding) {
      if (!skip_padding()) return false;
      read_header();
    }
    if (header_.length == 0 || header_.length > max_payload(size_) ||
        frame_bytes(header_.length) > size_ - (tail_ & (size_ - 1)) ||
        frame_bytes(header_.length) > head_ - tail_) {
      return broken(RingFault::kLength);
    }
    if (header_.kind != FrameKind::kWhole && header_.kind != FrameKind::kMore &&
        header_.kind != FrameKind::kLast) {
      return broken(RingFault::kKind);  // padding after padding, too
    }
    reach(Point::kFrameRead);
    held_ = frame_bytes(header_.length);
    header = header_;
    return true;
  }

  // In place: returns the payload of the frame that next() gave, valid until release().
  std::span<const std::byte> peek() const {
    return {data_ + (tail_ & (size_ - 1)) + kFrameHeaderBytes, header_.length};
  }
  // Private: copies the payload. `into` must have room for the length that next() gave.
  void take(std::byte* into) const {
    std::memcpy(into, data_ + (tail_ & (size_ - 1)) + kFrameHeaderBytes, header_.length);
  }
  void release() {
    if (held_ == 0) return;
    tail_ += held_;
    held_ = 0;
    look_ = head_ == tail_ || tail_ - looked_ >= size_ / 8;
    reach(Point::kGiveBack);
    if (look_) {
      looked_ = tail_;
      control_->tail.store(tail_, std::memory_order_seq_cst);  // (b), (d)
    } else {
      control_->tail.store(tail_, std::memory_order_release);  // (b)
    }
    reach(Point::kGivenBack);
  }

  // Call after a release: returns whether the producer must be woken.
  bool must_ring() { return look_ && producer_.must_ring(); }

  // Announces sleep, then looks once more (c). Returns true if there is something to do (a frame, or a fault to
  // report): do not sleep then.
  bool announce_sleep() {
    reach(Point::kAnnounceSleep);
    sleep_.announce();
    reach(Point::kSleepAnnounced);
    if (head_ == tail_) refresh(std::memory_order_seq_cst);  // S2
    reach(Point::kLastLook);
    return fault_ != RingFault::kNone || head_ != tail_;
  }
  void withdraw_sleep() { sleep_.withdraw(); }
  std::uint64_t sleeps_announced() const { return sleep_.announced(); }

  // Returns the bytes that were published and not released, as of the last look.
  std::uint64_t depth() const { return head_ - tail_; }
  RingFault fault() const { return fault_; }

 private:
  void prefetch(std::uint64_t at) const { __builtin_prefetch(data_ + (at & (size_ - 1))); }
  bool broken(RingFault fault) {
    fault_ = fault;
    return false;
  }
  void refresh(std::memory_order order) {
    if (fault_ != RingFault::kNone) return;  // the first one lasts
    reach(Point::kReadHead);
    const std::uint64_t head = control_->head.load(order);
    reach(Point::kHeadRead);
    if (head % 8 != 0)
      fault_ = RingFault::kIndexUnaligned;
    else if (head < head_)
      fault_ = RingFault::kIndexBack;
    else if (head - tail_ > size_)
      fault_ = RingFault::kIndexAhead;
    else
      head_ = head;
  }
  // head_ - tail_ is a positive multiple of 8, and so is the distance to the end of the data: there is room for a
  // header.
  void read_header() {
    auto* at = const_cast<std::byte*>(data_ + (tail_ & (size_ - 1)));
    const std::uint64_t word = std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
                                   .load(std::memory_order_relaxed);  // (e)
    std::memcpy(&header_, &word, sizeof header_);
  }
  // I3: one store of head has published the skipped bytes and the frame after them.
  bool skip_padding() {
    const std::uint64_t offset = tail_ & (size_ - 1);
    const std::uint64_t skip = kFrameHeaderBytes + header_.length;
    if (offset == 0 || skip != size_ - offset || skip >= head_ - tail_) {
      return broken(RingFault::kPadding);
    }
    tail_ += skip;
    reach(Point::kPaddingSkipped);
    return true;
  }

  RingControl* control_;
  const std::byte* data_;
  std::uint64_t size_;
  std::uint64_t tail_ = 0;  // ours (I5)
  std::uint64_t head_ = 0;  // the producer's, as last seen: read again only when this says "empty"
  std::uint64_t held_ = 0;  // bytes that release() gives back
  std::uint64_t looked_ = 0;  // tail_ when this end last looked for a waiting producer (d)
  bool look_ = false;
  FrameHeader header_{};
  SleepWord sleep_;
  WakeWord producer_;
  RingFault fault_ = RingFault::kNone;
};

}  // namespace bulkhead::ipc

#include "tests/fuzz/hostile_peer.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/messages.hpp"
#include "tests/unit/ipc/samples.hpp"

namespace bulkhead::fuzz {
namespace {

constexpr std::size_t kMostWork = 20000;  // frames, packets and writes of one script

constexpr std::uint64_t kExtremes[] = {0,
                                       1,
                                       7,
                                       8,
                                       4096,
                                       16384,
                                       0x7FFFFFFF,
                                       0x80000000,
                                       0xFFFFFFF8,
                                       0x100000000,
                                       0x7FFFFFFFFFFFFFF8,
                                       0x8000000000000000,
                                       0xFFFFFFFFFFFFFFF0,
                                       0xFFFFFFFFFFFFFFF8,
                                       ~std::uint64_t{0}};

std::vector<std::vector<std::uint64_t>>& samples() {
  static auto& encoded = *new std::vector<std::vector<std::uint64_t>>([] {
    std::vector<std::vector<std::uint64_t>> all;
    for (const auto& message : ipc::test::samples_from_worker()) {
      std::vector<std::uint64_t> words(ipc::encoded_bound(message) / 8 + 1);
      const auto size = ipc::encode(message, std::as_writable_bytes(std::span(words)));
      if (!size.ok()) std::abort();
      words.resize((*size + 7) / 8);
      all.push_back(std::move(words));
    }
    return all;
  }());
  return encoded;
}

}  // namespace

void HostilePeer::prepare() {
  (void)samples();
}

HostilePeer::HostilePeer(Held held, std::span<const std::uint8_t> script, int patience)
    : held_(std::move(held)), script_(script), patience_(patience) {
  struct stat status {};
  if (!held_.region.valid() || ::fstat(held_.region.get(), &status) != 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, held_.region.get(), 0);
  if (base == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(base);
  ring_bytes_ = (size - ipc::kRegionDataOffset) / 2;
}

HostilePeer::~HostilePeer() {
  die();
}

void HostilePeer::die() {
  if (base_ != nullptr) ::munmap(base_, ipc::kRegionDataOffset + 2 * ring_bytes_);
  base_ = nullptr;
  held_ = Held{};
}

std::uint64_t HostilePeer::next_random() {  // xorshift
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

bool HostilePeer::spend(std::size_t work) {
  work_ += work;
  return work_ <= kMostWork;
}

bool HostilePeer::step() {
  if (at_ + kStepBytes > script_.size() || work_ > kMostWork) return false;
  Step step{};
  step.action = static_cast<Action>(script_[at_] % static_cast<unsigned>(Action::kCount));
  step.choice = script_[at_ + 1];
  std::memcpy(&step.count, &script_[at_ + 2], 2);
  std::memcpy(&step.value, &script_[at_ + 4], 8);
  at_ += kStepBytes;
  random_ = step.value * 2 + 1;
  act(step);
  return true;
}

std::atomic<std::uint64_t>& HostilePeer::word(unsigned which) {
  ipc::RegionHeader& h = header();
  switch (which % 10) {
    case 0:
      return h.to_daemon.head;
    case 1:
      return h.to_worker.tail;
    case 2:
      return h.to_daemon.producer_wait;
    case 3:
      return h.to_worker.consumer_sleep;
    case 4:
      return h.to_daemon.tail;  // only these words are the daemon's
    case 5:
      return h.to_worker.head;
    case 6:
      return h.to_daemon.consumer_sleep;
    case 7:
      return h.to_worker.producer_wait;
    case 8:
      return h.beat_step;
    default:
      return h.beat_ns;
  }
}

// Sends a frame as the ring's producer writes it, with any header; over stdio, the same bytes. It looks for room as
// an honest producer does, so that it can send many, but it may lie about its head.
bool HostilePeer::send_frame(const void* payload, std::size_t bytes, std::uint32_t length,
                             std::uint32_t kind) {
  const std::uint32_t words[2] = {length, kind};
  if (!shm()) {
    char frame[1024] = {};
    const std::size_t size = std::min(bytes, sizeof frame - 8);
    std::memcpy(frame, words, 8);
    std::memcpy(frame + 8, payload, size);
    const std::size_t whole = 8 + ((size + 7) & ~std::size_t{7});
    return held_.output.valid() &&
           ::send(held_.output.get(), frame, whole, MSG_DONTWAIT | MSG_NOSIGNAL) ==
               static_cast<ssize_t>(whole);
  }
  ipc::RingControl& ring = header().to_daemon;
  const std::uint64_t head = ring.head.load() & ~std::uint64_t{7};
  const std::uint64_t room = ring_bytes_ - std::min(ring_bytes_, head - ring.tail.load());
  const std::uint64_t offset = head & (ring_bytes_ - 1);
  const std::uint64_t need = ipc::frame_bytes(bytes);
  const std::uint64_t rest = ring_bytes_ - offset;
  const std::uint64_t padding = need <= rest ? 0 : rest;
  if (need > ring_bytes_ / 2 || padding + need > room) return false;
  if (padding != 0) {
    const std::uint32_t skip[2] = {static_cast<std::uint32_t>(padding - 8), 4};
    std::memcpy(up() + offset, skip, 8);
  }
  std::byte* frame = up() + ((offset + padding) & (ring_bytes_ - 1));
  std::memcpy(frame, words, 8);
  if (bytes != 0) std::memcpy(frame + 8, payload, bytes);
  ring.head.store(head + padding + need);
  return true;
}

void HostilePeer::stream(const void* bytes, std::size_t size, int flags) {
  if (!held_.output.valid()) return;
  (void)::send(held_.output.get(), bytes, size, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool HostilePeer::packet(UniqueFd& socket, const void* bytes, std::size_t size,
                         std::span<const int> fds, int type) {
  if (!socket.valid()) return false;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  iovec vector{const_cast<void*>(bytes), size};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  return ::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void HostilePeer::send_sample(const Step& step) {
  const auto& sample = samples()[step.choice % samples().size()];
  std::uint64_t copy[128];
  const std::size_t bytes = std::min(sample.size() * 8, sizeof copy);
  std::memcpy(copy, sample.data(), bytes);
  reinterpret_cast<std::uint8_t*>(copy)[step.count % bytes] ^=
      static_cast<std::uint8_t>(step.value);
  const auto length = static_cast<std::uint32_t>(bytes);
  const auto* from = reinterpret_cast<const std::byte*>(copy);
  switch (step.action) {
    case Action::kSample:
      spend(1);
      send_frame(from, bytes, length, 1);
      return;
    case Action::kSampleInPieces: {
      const std::size_t piece = 8 + (step.value >> 8) % 64 * 8;
      for (std::size_t at = 0; at < bytes && spend(1); at += piece) {
        const std::size_t size = std::min(piece, bytes - at);
        const bool last = at + size == bytes;
        if (last && (step.value >> 16) % 4 == 0) return;
        send_frame(from + at, size, static_cast<std::uint32_t>(size), last ? 3 : 2);
      }
      return;
    }
    case Action::kRewrite: {
      if (!shm() || !send_frame(from, bytes, length, 1)) return;
      const std::uint64_t head = header().to_daemon.head.load();
      std::byte* frame = up() + ((head - ipc::frame_bytes(bytes)) & (ring_bytes_ - 1));
      for (std::size_t i = 0; i < step.count % 4096U && spend(1); ++i) {
        const std::uint64_t random = next_random();
        const std::size_t place = random % 4 == 0 ? random / 8 % 8 : random / 8 % (8 + bytes);
        frame[place] ^= static_cast<std::byte>(random >> 40);
      }
      return;
    }
    default: {  // kFlood
      int refused = 0;
      for (std::size_t i = 0; i < step.count && refused <= patience_ && spend(1); ++i) {
        if (send_frame(from, bytes, length, 1)) {
          refused = 0;
        } else {
          ++refused;
          if (patience_ != 0) ::sched_yield();
        }
      }
    }
  }
}

void HostilePeer::store_word(const Step& step) {
  std::atomic<std::uint64_t>& target = word(step.choice);
  switch (step.count % 5) {
    case 0:
      target.store(step.value);
      break;
    case 1:
      target.fetch_add(step.value);
      break;
    case 2:
      target.fetch_add(static_cast<std::uint64_t>(
          static_cast<std::int64_t>(static_cast<std::int8_t>(step.value)) * 8));
      break;
    case 3:
      target.store(kExtremes[step.value % std::size(kExtremes)]);
      break;
    default:
      target.store(word(static_cast<unsigned>(step.value)).load() + (step.value >> 8) % 64 * 8);
  }
}

}  // namespace bulkhead::fuzz

#include "tests/fuzz/hostile_peer.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/messages.hpp"
#include "tests/unit/ipc/samples.hpp"

namespace bulkhead::fuzz {
namespace {

constexpr std::size_t kMostWork = 20000;       // frames, packets and writes of one script
constexpr std::size_t kMostDescriptors = 253;  // that the kernel takes in a packet

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

// What lingering sockets are connected to, the latest few: once it is closed, nobody lingers.
UniqueFd readers[4];
std::size_t next_reader = 0;

std::uint64_t next_random(std::uint64_t& state) {  // xorshift
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

void HostilePeer::prepare() {
  (void)samples();
}

std::size_t HostilePeer::left_open() {
  return static_cast<std::size_t>(
      std::ranges::count_if(readers, [](const UniqueFd& fd) { return fd.valid(); }));
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
      return h.to_daemon.tail;  // the daemon's own words, from here on
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

// A frame as the ring's producer writes it, with any header; over stdio, the same bytes. It looks
// for room as an honest one does, so that many can be sent, but takes its own word for its head.
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
        const std::uint64_t random = next_random(random_);
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

namespace {
void forgive(const UniqueFd& sender) {
  const linger none{0, 0};
  ::setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}
}  // namespace

// A TCP socket with bytes that nobody reads and SO_LINGER: who closes it last waits for a minute.
void HostilePeer::lingering(const Step& step, UniqueFd& socket) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd sender(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const int small = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  ::setsockopt(sender.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  if (::bind(listener.get(), name, size) != 0 || ::getsockname(listener.get(), name, &size) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::connect(sender.get(), name, size) != 0) {
    return;  // no network here
  }
  readers[next_reader++ % std::size(readers)].reset(
      ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  static constexpr char kBytes[4096] = {};
  for (int i = 0;
       i < 64 && ::send(sender.get(), kBytes, sizeof kBytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
       ++i) {
  }
  const linger minute{1, 60};
  ::setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &minute, sizeof minute);

  int fds[kMostDescriptors];
  std::fill(std::begin(fds), std::end(fds), sender.get());
  bool sent = false;
  switch (step.choice % 4) {
    case 0:
      sent = packet(socket, "12345678", 8, std::span(fds, 1));
      break;
    case 1:  // in a packet that breaks the rules
      sent = packet(socket, "123", 3, std::span(fds, 2));
      break;
    case 2:  // more than are taken at once
      sent = packet(socket, "12345678", 8, fds);
      break;
    default: {  // in another socket's queue, which goes with that socket
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) break;
      UniqueFd inner(ends[0]), outer(ends[1]);
      sent = packet(inner, "12345678", 8, std::span(fds, 1)) &&
             packet(socket, "12345678", 8, std::span(ends + 1, 1));
      if (!sent) forgive(sender);
    }
  }
  if (!sent) forgive(sender);  // ours is the last one
}

void HostilePeer::act(const Step& step) {
  static constexpr char kZeros[65536] = {};
  switch (step.action) {
    case Action::kStoreWord:
      if (shm()) store_word(step);
      break;
    case Action::kWriteData:
      if (shm()) std::memcpy(up() + (step.count * 8U & (ring_bytes_ - 1)), &step.value, 8);
      break;
    case Action::kFrame: {
      const std::uint64_t payload[4] = {step.value, step.value, step.value, step.value};
      const bool honest = step.choice % 8 != 7;
      const std::size_t bytes = step.choice / 8 % 5 * 8;
      send_frame(payload, bytes, honest ? step.count : static_cast<std::uint32_t>(step.value),
                 step.choice % 8);
      break;
    }
    case Action::kSample:
    case Action::kSampleInPieces:
    case Action::kFlood:
    case Action::kRewrite:
      send_sample(step);
      break;
    case Action::kScribble:
    case Action::kScribbleDown: {
      if (!shm()) break;
      const bool ours = step.action == Action::kScribble;
      for (std::size_t i = 0; i < step.count && spend(1); ++i) {
        const std::uint64_t random = next_random(random_);
        if (random % 16 == 0) {
          word(static_cast<unsigned>(random >> 8)).fetch_xor(8ULL << (random >> 16) % 8);
        } else {
          (ours ? up() : down())[(random >> 8) & (ring_bytes_ - 1)] ^=
              static_cast<std::byte>(random >> 56);
        }
      }
      break;
    }
    case Action::kToggleWord: {
      if (!shm()) break;
      std::atomic<std::uint64_t>& target = word(step.choice);
      const std::uint64_t old = target.load();
      for (std::size_t i = 0; i < step.count && spend(1); ++i)
        target.store(i % 2 == 0 ? step.value : old);
      break;
    }
    case Action::kPretendRead:
      if (shm()) header().to_worker.tail.store(header().to_worker.head.load());
      break;
    case Action::kSleepWords:
      if (!shm()) break;
      header().to_worker.consumer_sleep.store(step.value | 1);
      header().to_daemon.producer_wait.store(step.value | 1);
      break;
    case Action::kPieces: {
      const std::size_t size = 8 + step.choice * 8U % 1000;
      int refused = 0;
      for (std::size_t i = 0; i < step.count && refused <= patience_ && spend(1); ++i) {
        const std::size_t piece = shm() ? ipc::max_payload(ring_bytes_) : size;
        refused = send_frame(kZeros, piece, static_cast<std::uint32_t>(piece), 2) ? 0 : refused + 1;
        if (refused != 0 && patience_ != 0) ::sched_yield();
      }
      break;
    }
    case Action::kDoorbells:
      for (std::size_t i = 0; i < step.count % 2048U && spend(1); ++i)
        packet(held_.socket, "x", 1, {});
      break;
    case Action::kPacket: {
      int fds[kMostDescriptors];
      std::fill(std::begin(fds), std::end(fds), held_.socket.get());
      packet(held_.socket, kZeros, step.count, std::span(fds, step.choice % 4 == 0 ? 3U : 0U));
      break;
    }
    case Action::kDescriptors: {
      int fds[kMostDescriptors];
      UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      std::fill(std::begin(fds), std::end(fds), null.get());
      const std::size_t each = std::min<std::size_t>(step.choice, kMostDescriptors);
      for (std::size_t i = 0; i < step.count % 64U && spend(each + 1); ++i)
        packet(held_.socket, &step.value, 8, std::span(fds, each));
      break;
    }
    case Action::kOwnEnds: {
      int fds[4];
      std::size_t count = 0;
      for (const UniqueFd* fd : {&held_.socket, &held_.region, &held_.input, &held_.output}) {
        if (fd->valid() && (step.choice >> count & 1) == 0) fds[count++] = fd->get();
      }
      packet(held_.socket, &step.value, 8, std::span(fds, count));
      break;
    }
    case Action::kLingering:
      if (spend(2000))
        lingering(step, step.count % 4 == 0 && held_.output.valid() ? held_.output : held_.socket);
      break;
    case Action::kCredentials: {
      const int credentials[3] = {static_cast<int>(::getpid()), static_cast<int>(::getuid()),
                                  static_cast<int>(::getgid())};
      packet(held_.socket, "x", 1, credentials, SCM_CREDENTIALS);
      break;
    }
    case Action::kSocketOptions: {
      if (!held_.socket.valid()) break;
      const int value = static_cast<int>(step.value);
      static constexpr int kOptions[] = {SO_SNDBUF, SO_RCVBUF, SO_PASSCRED, SO_LINGER, SO_PEEK_OFF};
      ::setsockopt(held_.socket.get(), SOL_SOCKET, kOptions[step.choice % std::size(kOptions)],
                   &value, sizeof value);
      break;
    }
    case Action::kEmptyPacket:
      packet(held_.socket, "", 0, {});
      break;
    case Action::kShutdown:
      if (held_.socket.valid()) ::shutdown(held_.socket.get(), step.choice % 3);
      break;
    case Action::kCloseSocket:
      held_.socket.reset();
      break;
    case Action::kStreamBytes:
      stream(&step.value, 1 + step.choice % 8);
      break;
    case Action::kStreamFloods:
      if (step.choice % 2 == 0) {
        stream(kZeros, step.count);
      } else {
        for (std::size_t i = 0; i < step.count % 4096U && spend(1); ++i)
          stream(&step.value, 1);
      }
      break;
    case Action::kStreamDescriptors: {
      if (!held_.output.valid()) break;
      int fds[kMostDescriptors];
      std::fill(std::begin(fds), std::end(fds), held_.output.get());
      const std::size_t each = std::min<std::size_t>(step.choice, kMostDescriptors);
      for (std::size_t i = 0; i < step.count % 16U && spend(each + 1); ++i)
        packet(held_.output, &step.value, 8, std::span(fds, each));
      break;
    }
    case Action::kStreamUrgent:
      stream(&step.value, 1 + step.choice % 8, MSG_OOB);
      break;
    case Action::kStreamShutdown: {
      UniqueFd& end = step.choice % 2 == 0 ? held_.output : held_.input;
      if (end.valid()) ::shutdown(end.get(), step.choice / 2 % 3);
      break;
    }
    case Action::kStreamClose:
      (step.choice % 2 == 0 ? held_.output : held_.input).reset();
      break;
    case Action::kStreamRead: {
      char bytes[4096];
      for (std::size_t i = 0; held_.input.valid() && i < step.choice && spend(1); ++i) {
        if (::recv(held_.input.get(), bytes, std::min<std::size_t>(step.count, sizeof bytes),
                   MSG_DONTWAIT) <= 0) {
          break;
        }
      }
      break;
    }
    case Action::kHole:
      if (held_.region.valid() && shm()) {
        ::fallocate(held_.region.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(step.choice % 8) * 4096, 4096 * (1 + step.count % 8));
      }
      break;
    case Action::kResize: {
      if (!held_.region.valid() || !shm()) break;
      // A POSIX object has no seals; there a system call filter forbids this.
      const int seals = ::fcntl(held_.region.get(), F_GET_SEALS);
      if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) break;
      if (::ftruncate(held_.region.get(), static_cast<off_t>(step.value % 100000)) == 0) {
        std::abort();
      }
      break;
    }
    case Action::kPause:
      if (step.choice % 4 == 0) {
        ::usleep(step.count % 64U);
      } else {
        ::sched_yield();
      }
      break;
    case Action::kDeath:
    case Action::kCount:
      die();
      at_ = script_.size();
      break;
  }
}

}  // namespace bulkhead::fuzz

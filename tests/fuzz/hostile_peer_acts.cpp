// The acts of a hostile peer, one for each kind of step.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "tests/fuzz/hostile_peer.hpp"
#include "tests/support/lingering_socket.hpp"

namespace bulkhead::fuzz {
namespace {

// The other ends of the latest lingering sockets. When such an end is closed, its socket lingers no
// more.
UniqueFd readers[4];
std::size_t next_reader = 0;

constexpr char kZeros[65536] = {};

void forgive(const UniqueFd& sender) {
  const linger none{0, 0};
  ::setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

}  // namespace

std::size_t HostilePeer::left_open() {
  return static_cast<std::size_t>(
      std::ranges::count_if(readers, [](const UniqueFd& fd) { return fd.valid(); }));
}

// Makes a TCP socket with SO_LINGER and bytes that nobody reads: the process that closes it last
// waits for a minute.
void HostilePeer::lingering(const Step& step, UniqueFd& socket) {
  std::optional<test::LingeringSocket> made = test::make_lingering(60);
  if (!made) return;  // this machine has no network
  const UniqueFd sender = std::move(made->sender);
  readers[next_reader++ % std::size(readers)] = std::move(made->reader);

  int fds[kMostDescriptors];
  std::fill(std::begin(fds), std::end(fds), sender.get());
  bool sent = false;
  switch (step.choice % 4) {
    case 0:
      sent = packet(socket, "12345678", 8, std::span(fds, 1));
      break;
    case 1:  // sends them in a packet that breaks the rules
      sent = packet(socket, "123", 3, std::span(fds, 2));
      break;
    case 2:  // sends more than the daemon takes at once
      sent = packet(socket, "12345678", 8, fds);
      break;
    default: {  // sends them in the queue of another socket, which it sends along
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) break;
      UniqueFd inner(ends[0]), outer(ends[1]);
      sent = packet(inner, "12345678", 8, std::span(fds, 1)) &&
             packet(socket, "12345678", 8, std::span(ends + 1, 1));
      if (!sent) forgive(sender);
    }
  }
  if (!sent) forgive(sender);  // this is the last reference
}

void HostilePeer::do_store_word(const Step& step) {
  if (shm()) store_word(step);
}

void HostilePeer::do_write_data(const Step& step) {
  if (shm()) std::memcpy(up() + (step.count * 8U & (ring_bytes_ - 1)), &step.value, 8);
}

void HostilePeer::do_frame(const Step& step) {
  const std::uint64_t payload[4] = {step.value, step.value, step.value, step.value};
  const bool honest = step.choice % 8 != 7;
  const std::size_t bytes = step.choice / 8 % 5 * 8;
  send_frame(payload, bytes, honest ? step.count : static_cast<std::uint32_t>(step.value),
             step.choice % 8);
}

void HostilePeer::do_scribble(const Step& step) {
  if (!shm()) return;
  const bool ours = step.action == Action::kScribble;
  for (std::size_t i = 0; i < step.count && spend(1); ++i) {
    const std::uint64_t random = next_random();
    if (random % 16 == 0) {
      word(static_cast<unsigned>(random >> 8)).fetch_xor(8ULL << (random >> 16) % 8);
    } else {
      (ours ? up() : down())[(random >> 8) & (ring_bytes_ - 1)] ^=
          static_cast<std::byte>(random >> 56);
    }
  }
}

void HostilePeer::do_toggle_word(const Step& step) {
  if (!shm()) return;
  std::atomic<std::uint64_t>& target = word(step.choice);
  const std::uint64_t old = target.load();
  for (std::size_t i = 0; i < step.count && spend(1); ++i)
    target.store(i % 2 == 0 ? step.value : old);
}

void HostilePeer::do_pretend_read(const Step&) {
  if (shm()) header().to_worker.tail.store(header().to_worker.head.load());
}

void HostilePeer::do_sleep_words(const Step& step) {
  if (!shm()) return;
  header().to_worker.consumer_sleep.store(step.value | 1);
  header().to_daemon.producer_wait.store(step.value | 1);
}

void HostilePeer::do_pieces(const Step& step) {
  const std::size_t size = 8 + step.choice * 8U % 1000;
  int refused = 0;
  for (std::size_t i = 0; i < step.count && refused <= patience_ && spend(1); ++i) {
    const std::size_t piece = shm() ? ipc::max_payload(ring_bytes_) : size;
    refused = send_frame(kZeros, piece, static_cast<std::uint32_t>(piece), 2) ? 0 : refused + 1;
    if (refused != 0 && patience_ != 0) ::sched_yield();
  }
}

void HostilePeer::do_doorbells(const Step& step) {
  for (std::size_t i = 0; i < step.count % 2048U && spend(1); ++i)
    packet(held_.socket, "x", 1, {});
}

void HostilePeer::do_packet(const Step& step) {
  int fds[kMostDescriptors];
  std::fill(std::begin(fds), std::end(fds), held_.socket.get());
  packet(held_.socket, kZeros, step.count, std::span(fds, step.choice % 4 == 0 ? 3U : 0U));
}

void HostilePeer::do_descriptors(const Step& step) {
  int fds[kMostDescriptors];
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::fill(std::begin(fds), std::end(fds), null.get());
  const std::size_t each = std::min<std::size_t>(step.choice, kMostDescriptors);
  for (std::size_t i = 0; i < step.count % 64U && spend(each + 1); ++i)
    packet(held_.socket, &step.value, 8, std::span(fds, each));
}

void HostilePeer::do_own_ends(const Step& step) {
  int fds[4];
  std::size_t count = 0;
  for (const UniqueFd* fd : {&held_.socket, &held_.region, &held_.input, &held_.output}) {
    if (fd->valid() && (step.choice >> count & 1) == 0) fds[count++] = fd->get();
  }
  packet(held_.socket, &step.value, 8, std::span(fds, count));
}

void HostilePeer::do_lingering(const Step& step) {
  if (spend(2000))
    lingering(step, step.count % 4 == 0 && held_.output.valid() ? held_.output : held_.socket);
}

void HostilePeer::do_credentials(const Step&) {
  const int credentials[3] = {static_cast<int>(::getpid()), static_cast<int>(::getuid()),
                              static_cast<int>(::getgid())};
  packet(held_.socket, "x", 1, credentials, SCM_CREDENTIALS);
}

void HostilePeer::do_socket_options(const Step& step) {
  if (!held_.socket.valid()) return;
  const int value = static_cast<int>(step.value);
  static constexpr int kOptions[] = {SO_SNDBUF, SO_RCVBUF, SO_PASSCRED, SO_LINGER, SO_PEEK_OFF};
  ::setsockopt(held_.socket.get(), SOL_SOCKET, kOptions[step.choice % std::size(kOptions)], &value,
               sizeof value);
}

void HostilePeer::do_empty_packet(const Step&) {
  packet(held_.socket, "", 0, {});
}

void HostilePeer::do_shutdown(const Step& step) {
  if (held_.socket.valid()) ::shutdown(held_.socket.get(), step.choice % 3);
}

void HostilePeer::do_close_socket(const Step&) {
  held_.socket.reset();
}

void HostilePeer::do_stream_bytes(const Step& step) {
  stream(&step.value, 1 + step.choice % 8);
}

void HostilePeer::do_stream_floods(const Step& step) {
  if (step.choice % 2 == 0) {
    stream(kZeros, step.count);
  } else {
    for (std::size_t i = 0; i < step.count % 4096U && spend(1); ++i)
      stream(&step.value, 1);
  }
}

void HostilePeer::do_stream_descriptors(const Step& step) {
  if (!held_.output.valid()) return;
  int fds[kMostDescriptors];
  std::fill(std::begin(fds), std::end(fds), held_.output.get());
  const std::size_t each = std::min<std::size_t>(step.choice, kMostDescriptors);
  for (std::size_t i = 0; i < step.count % 16U && spend(each + 1); ++i)
    packet(held_.output, &step.value, 8, std::span(fds, each));
}

void HostilePeer::do_stream_urgent(const Step& step) {
  stream(&step.value, 1 + step.choice % 8, MSG_OOB);
}

void HostilePeer::do_stream_shutdown(const Step& step) {
  UniqueFd& end = step.choice % 2 == 0 ? held_.output : held_.input;
  if (end.valid()) ::shutdown(end.get(), step.choice / 2 % 3);
}

void HostilePeer::do_stream_close(const Step& step) {
  (step.choice % 2 == 0 ? held_.output : held_.input).reset();
}

void HostilePeer::do_stream_read(const Step& step) {
  char bytes[4096];
  for (std::size_t i = 0; held_.input.valid() && i < step.choice && spend(1); ++i) {
    if (::recv(held_.input.get(), bytes, std::min<std::size_t>(step.count, sizeof bytes),
               MSG_DONTWAIT) <= 0) {
      break;
    }
  }
}

void HostilePeer::do_hole(const Step& step) {
  if (held_.region.valid() && shm()) {
    ::fallocate(held_.region.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(step.choice % 8) * 4096, 4096 * (1 + step.count % 8));
  }
}

void HostilePeer::do_resize(const Step& step) {
  if (!held_.region.valid() || !shm()) return;
  // A POSIX object has no seals; there the system call filter forbids the change.
  const int seals = ::fcntl(held_.region.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return;
  if (::ftruncate(held_.region.get(), static_cast<off_t>(step.value % 100000)) == 0) {
    std::abort();
  }
}

void HostilePeer::do_pause(const Step& step) {
  if (step.choice % 4 == 0) {
    ::usleep(step.count % 64U);
  } else {
    ::sched_yield();
  }
}

void HostilePeer::do_death(const Step&) {
  die();
  at_ = script_.size();
}

// A row for each action, in the order of the enumeration.
void HostilePeer::act(const Step& step) {
  struct Row {
    Action action;
    void (HostilePeer::*act)(const Step&);
  };
  static constexpr Row kActs[] = {
      {Action::kStoreWord, &HostilePeer::do_store_word},
      {Action::kWriteData, &HostilePeer::do_write_data},
      {Action::kFrame, &HostilePeer::do_frame},
      {Action::kSample, &HostilePeer::send_sample},
      {Action::kSampleInPieces, &HostilePeer::send_sample},
      {Action::kFlood, &HostilePeer::send_sample},
      {Action::kScribble, &HostilePeer::do_scribble},
      {Action::kToggleWord, &HostilePeer::do_toggle_word},
      {Action::kPretendRead, &HostilePeer::do_pretend_read},
      {Action::kSleepWords, &HostilePeer::do_sleep_words},
      {Action::kRewrite, &HostilePeer::send_sample},
      {Action::kScribbleDown, &HostilePeer::do_scribble},
      {Action::kPieces, &HostilePeer::do_pieces},
      {Action::kDoorbells, &HostilePeer::do_doorbells},
      {Action::kPacket, &HostilePeer::do_packet},
      {Action::kDescriptors, &HostilePeer::do_descriptors},
      {Action::kOwnEnds, &HostilePeer::do_own_ends},
      {Action::kLingering, &HostilePeer::do_lingering},
      {Action::kCredentials, &HostilePeer::do_credentials},
      {Action::kSocketOptions, &HostilePeer::do_socket_options},
      {Action::kEmptyPacket, &HostilePeer::do_empty_packet},
      {Action::kShutdown, &HostilePeer::do_shutdown},
      {Action::kCloseSocket, &HostilePeer::do_close_socket},
      {Action::kStreamBytes, &HostilePeer::do_stream_bytes},
      {Action::kStreamFloods, &HostilePeer::do_stream_floods},
      {Action::kStreamDescriptors, &HostilePeer::do_stream_descriptors},
      {Action::kStreamUrgent, &HostilePeer::do_stream_urgent},
      {Action::kStreamShutdown, &HostilePeer::do_stream_shutdown},
      {Action::kStreamClose, &HostilePeer::do_stream_close},
      {Action::kStreamRead, &HostilePeer::do_stream_read},
      {Action::kHole, &HostilePeer::do_hole},
      {Action::kResize, &HostilePeer::do_resize},
      {Action::kPause, &HostilePeer::do_pause},
      {Action::kDeath, &HostilePeer::do_death},
  };
  static_assert(std::size(kActs) == static_cast<std::size_t>(Action::kCount));
  static_assert(std::ranges::adjacent_find(kActs, std::ranges::greater_equal(), &Row::action) ==
                std::end(kActs));
  (this->*kActs[static_cast<std::size_t>(step.action)].act)(step);
}

}  // namespace bulkhead::fuzz

// Runs the daemon's end of a whole channel while a hostile peer does what the input says with everything that a
// worker holds: the region, the socket, the streams.
//
//   +0  flags   bits 0-1: region memfd | POSIX | stdio | stdio
//               bit 2: a ring of 4 or of 16 KiB
//               bit 3: the peer runs in a second process, at the same time; otherwise here, a step
//                      between any two calls of the daemon's, the same every time
//               bits 4-5: the daemon sends nothing | pings | a large record, too
//   +1  steps, see hostile_peer.hpp
//
// The daemon's side does what orchestrator/supervisor does in its event loop. Rules:
//   - nothing waits: no call blocks (the watchdog of the fuzzer or driver notices that), and once the peer has
//     finished, the channel comes to rest or to an end within a fixed number of turns;
//   - an end is kCorrupt with a reason, or kUnavailable, and lasts;
//   - a received record does not change while it is held, because it is private;
//   - memory and descriptors are bounded meanwhile, and all of them are freed afterwards;
//   - another worker's channel continues to carry every record.
//
// BULKHEAD_HOSTILE_REPEAT=N runs each input N times: a race need not show at once.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>

#include "config/base/fnv1a.hpp"
#include "ipc/channel.hpp"
#include "ipc/peer_socket.hpp"
#include "ipc/record_channel.hpp"
#include "tests/fuzz/hostile_peer.hpp"
#include "tests/support/descriptor_packet.hpp"

extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace bulkhead {
namespace {

constexpr int kRecordsPerTurn = 32;
constexpr int kTurnsAfterwards = 5000;  // rings and sockets hold at most a tenth of what fills this many turns
constexpr std::size_t kMostScript = 8192;
constexpr std::size_t kSlackBytes = std::size_t{1} << 20;
constexpr double kMostTurnSeconds =
    10;  // seconds of this thread's own CPU time, because the work of a call is bounded

#define REQUIRE(rule)                     \
  do {                                    \
    if (!(rule)) broken(#rule, __LINE__); \
  } while (false)

[[noreturn]] void broken(const char* rule, int line) {
  std::fprintf(stderr, "ipc_hostile_peer.cpp:%d: a rule is broken: %s\n", line, rule);
  std::abort();
}

std::size_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return __sanitizer_get_current_allocated_bytes();
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  while (::readdir(folder) != nullptr)
    ++count;
  ::closedir(folder);
  return count;
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// ---- the second process: it gets a worker's descriptors and a script, runs the script and answers ----

class PeerProcess {
 public:
  PeerProcess() {
    auto ends = ipc::make_socket_pair(SOCK_SEQPACKET);
    REQUIRE(ends.ok());
    fuzz::HostilePeer::prepare();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGALRM})
        std::signal(number, SIG_DFL);
      ends->ours.reset();
      serve(ends->theirs.get());
    }
    control_ = std::move(ends->ours);
  }
  int fd() const { return control_.get(); }

  void start(fuzz::Held held, const std::uint8_t* script, std::size_t size) {
    int fds[4];
    std::size_t count = 0;
    for (const UniqueFd* fd : {&held.socket, &held.region, &held.input, &held.output}) {
      if (fd->valid()) fds[count++] = fd->get();
    }
    REQUIRE(test::send_packet(control_.get(), script, size, std::span(fds, count), 0) >= 0);
  }
  bool finished() {
    char byte;
    const ssize_t got = ::recv(control_.get(), &byte, 1, MSG_DONTWAIT);
    if (got < 0) return false;
    REQUIRE(got == 1);  // otherwise it died by its own fault
    return true;
  }

 private:
  [[noreturn]] static void serve(int control_fd) {
    static std::uint8_t script[kMostScript];
    for (;;) {
      iovec vector{script, sizeof script};
      alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
      msghdr message{};
      message.msg_iov = &vector;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t size = ::recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC);
      if (size <= 0) ::_exit(0);
      const cmsghdr* c = CMSG_FIRSTHDR(&message);
      int fds[4] = {-1, -1, -1, -1};
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(fds, CMSG_DATA(c), count * sizeof(int));
      fuzz::Held held;
      held.socket.reset(fds[0]);
      if (count == 2) {
        held.region.reset(fds[1]);
      } else {
        held.input.reset(fds[1]);
        held.output.reset(fds[2]);
      }
      {
        fuzz::HostilePeer peer(std::move(held), {script, static_cast<std::size_t>(size)}, 1000);
        while (peer.step()) {
        }
      }
      if (::send(control_fd, "!", 1, MSG_NOSIGNAL) != 1) ::_exit(0);
    }
  }

  UniqueFd control_;
  pid_t pid_ = -1;
};

// ---- another worker, which keeps the rules ----

class Neighbour {
 public:
  Neighbour() {
    config::IpcSettings settings;
    settings.ring_kib = 4;
    auto pair = ipc::make_channel_pair(settings);
    REQUIRE(pair.ok());
    daemon_ = std::move(pair->daemon);
    ipc::InheritedDescriptors inherited;
    inherited.socket = pair->worker_socket.release();
    inherited.region = pair->worker_region.release();
    auto worker = ipc::open_worker_channel(inherited, settings);
    REQUIRE(worker.ok());
    worker_ = std::move(*worker);
  }
  void serve() {
    ++number_;
    REQUIRE(*ipc::try_send(*worker_, ipc::FromWorker(ipc::Pong{number_})));
    const auto record = daemon_->try_receive();
    REQUIRE(record.ok() && !record->empty());
    const auto message = ipc::decode_from_worker(*record);
    daemon_->release();
    REQUIRE(message.ok() && std::get<ipc::Pong>(*message).nonce == number_);
  }

 private:
  std::unique_ptr<ipc::Channel> daemon_, worker_;
  std::uint64_t number_ = 0;
};

// ---- the daemon's side ----

class DaemonSide {
 public:
  DaemonSide(std::unique_ptr<ipc::Channel> channel, unsigned sends, fuzz::HostilePeer* stepped,
             std::size_t heap_before)
      : channel_(std::move(channel)), sends_(sends), stepped_(stepped), heap_before_(heap_before) {
    large_.request = RequestId{1};
    large_.prompt = std::string(20000, 'p');
  }

  const std::optional<Error>& ended() const { return ended_; }
  bool asleep_now() const { return rested_; }
  ipc::Channel& channel() { return *channel_; }

  // One turn of the event loop; waits for news of `other` (-1: not at all) or of the channel.
  void turn(int other) {
    const double begun = cpu_seconds();
    rested_ = false;
    send();
    if (!ended_) receive();
    if (!ended_) {
      peer();
      const auto asleep = channel_->prepare_sleep();
      peer();
      if (!asleep.ok()) {
        end(asleep.error());
      } else if (*asleep) {
        rested_ = true;
        pollfd items[2] = {{channel_->wait_fd(), POLLIN, 0}, {other, POLLIN, 0}};
        const int ready = ::poll(items, 2, other >= 0 ? 60000 : 0);
        REQUIRE(ready != 0 || other < 0);  // the peer's work is bounded; EINTR is the fuzzer's
        if (ready > 0 && items[0].revents != 0) rested_ = false;
        peer();
        channel_->finish_sleep();
      }
    }
    bounded();
    REQUIRE(cpu_seconds() - begun < kMostTurnSeconds);
  }

  // Makes the calls that a daemon may still make while it ends this worker. A broken rule lasts; for a peer that
  // seemed to be gone, a broken rule may still be found.
  void expect_the_end_to_last() {
    const auto same = [&](const auto& result) {
      if (message_refused_ || ended_->code() != ErrorCode::kCorrupt) return true;
      return !result.ok() && result.error().code() == ErrorCode::kCorrupt &&
             result.error().message() == ended_->message();
    };
    for (int i = 0; i < 2; ++i) {
      REQUIRE(same(channel_->try_receive()));
      channel_->release();
      REQUIRE(same(channel_->try_reserve(8)));
      REQUIRE(same(channel_->flush()));
      (void)channel_->send_descriptors(std::array{0}, 1);
      (void)channel_->take_descriptors();
      (void)channel_->last_beat();
      (void)channel_->last_beat_ns();
      const auto asleep = channel_->prepare_sleep();
      if (asleep.ok() && *asleep) channel_->finish_sleep();
      peer();
    }
  }

 private:
  void peer() {
    if (stepped_ != nullptr) (void)stepped_->step();
  }
  void end(const Error& error) {
    REQUIRE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnavailable);
    REQUIRE(!error.message().empty() && error.message().size() < 1000);
    ended_ = error;
  }
  void send() {
    if (sends_ == 0) return;
    peer();
    const auto sent = ipc::try_send(
        *channel_, sends_ == 1 ? ipc::ToWorker(ipc::Ping{++nonce_}) : ipc::ToWorker(large_));
    // The peer is gone, but what it sent before must still be received.
    if (!sent.ok() && sent.error().code() != ErrorCode::kUnavailable) end(sent.error());
  }
  void receive() {
    peer();
    (void)channel_->take_descriptors();  // none are expected
    for (int i = 0; i < kRecordsPerTurn && !ended_; ++i) {
      peer();
      const auto record = channel_->try_receive();
      if (!record.ok()) return end(record.error());
      if (record->empty()) return;
      REQUIRE(record->size() <= ipc::kMaxRecordToDaemon);
      bounded();
      const std::uint64_t hash = fnv1a(*record);
      const std::size_t heap = heap_bytes();
      peer();
      std::uint64_t tokens = 0;
      const auto visited = ipc::visit_tokens(
          *record, [&](const ipc::SequenceTokensView& view) { tokens += view.tokens.size(); });
      peer();
      {
        const auto message = ipc::decode_from_worker(*record);
        REQUIRE(heap_bytes() <= heap + 8 * record->size() + 65536);
        if (!visited.ok() || !message.ok()) {
          message_refused_ = true;
          end(message.ok() ? visited.error() : message.error());
        } else {
          REQUIRE(*visited == std::holds_alternative<ipc::TokenBatch>(*message));
        }
      }
      peer();
      REQUIRE(fnv1a(*record) == hash);
      channel_->release();
    }
  }
  void bounded() const {
    REQUIRE(heap_bytes() <= heap_before_ + 2 * ipc::kMaxRecordToDaemon + kSlackBytes);
    // Descriptors take the lowest free numbers.
    const int lowest_free = ::dup(0);
    if (lowest_free < 0) return;  // no standard input
    ::close(lowest_free);
    REQUIRE(lowest_free < 64 + static_cast<int>(ipc::kMaxQueuedFds) + 256);
  }

  std::unique_ptr<ipc::Channel> channel_;
  unsigned sends_;
  fuzz::HostilePeer* stepped_;
  std::size_t heap_before_;
  std::uint64_t nonce_ = 0;
  ipc::Submit large_;
  std::optional<Error> ended_;
  bool message_refused_ = false;
  bool rested_ = false;
};

PeerProcess& peer_process() {
  static auto& process = *new PeerProcess;
  return process;
}
Neighbour& neighbour() {
  static auto& other = *new Neighbour;
  return other;
}

void run_once(std::uint8_t flags, const std::uint8_t* script, std::size_t size) {
  config::IpcSettings settings;
  settings.transport = flags % 4 < 2 ? config::Transport::kShm : config::Transport::kStdio;
  settings.region = flags % 4 == 1 ? config::RegionKind::kPosix : config::RegionKind::kMemfd;
  settings.ring_kib = (flags & 4) != 0 ? 16 : 4;
  const bool beside = (flags & 8) != 0;
  const unsigned sends = flags / 16 % 4;

  const std::size_t heap_before = heap_bytes();
  {
    auto made = ipc::make_channel_pair(settings);
    REQUIRE(made.ok());
    fuzz::Held held{std::move(made->worker_socket), std::move(made->worker_region),
                    std::move(made->worker_stdin), std::move(made->worker_stdout)};
    std::optional<fuzz::HostilePeer> here;
    int other = -1;
    if (beside) {
      peer_process().start(std::move(held), script, size);
      held = fuzz::Held{};  // only the peer may hold these; otherwise its death is not noticed
      other = peer_process().fd();
    } else {
      here.emplace(std::move(held), std::span(script, size), 0);
    }
    DaemonSide daemon(std::move(made->daemon), sends, here ? &*here : nullptr, heap_before);
    bool peer_done = false;
    int turns = 0;
    while (!daemon.ended()) {
      daemon.turn(peer_done ? -1 : other);
      neighbour().serve();
      if (beside && !peer_done) {
        peer_done = peer_process().finished();
        continue;
      }
      if (here && here->step()) continue;
      if (daemon.asleep_now()) break;  // at rest: the worker has nothing more to say
      REQUIRE(++turns < kTurnsAfterwards);
    }
    if (daemon.ended()) {
      daemon.expect_the_end_to_last();
      neighbour().serve();
    }
    while (beside && !peer_done) {
      pollfd item{other, POLLIN, 0};
      REQUIRE(::poll(&item, 1, 60000) == 1);
      peer_done = peer_process().finished();
    }
  }
  REQUIRE(heap_bytes() <= heap_before + 65536);
}

}  // namespace
}  // namespace bulkhead

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bulkhead;
  if (size < 1 + fuzz::kStepBytes || size > kMostScript) return 0;
  static const int repeat = [] {
    const char* text = std::getenv("BULKHEAD_HOSTILE_REPEAT");
    return text != nullptr ? std::max(1, std::atoi(text)) : 1;
  }();
  (void)peer_process();  // started before anything else is open that it would inherit
  (void)neighbour();
  for (int i = 0; i < repeat; ++i) {
    const std::size_t before = open_descriptors() - fuzz::HostilePeer::left_open();
    run_once(data[0], data + 1, size - 1);
    // Some are closed by a thread of their own.
    for (int wait = 0; open_descriptors() - fuzz::HostilePeer::left_open() != before; ++wait) {
      REQUIRE(wait < 20000);
      ::usleep(1000);
    }
  }
  return 0;
}

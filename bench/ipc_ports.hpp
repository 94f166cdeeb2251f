// The ways of carrying a message between two processes that bench-ipc-latency compares, and what its parts share: two
// pinned processes and one clock.
//
// Ports that sleep do so as the product does: they poll the channel's descriptor and do not spin. The others spin, as
// the daemon and a worker do within ipc.spin_us.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <nlohmann/json_fwd.hpp>

#include "bench/served_stream.hpp"
#include "ipc/channel.hpp"

namespace bulkhead::bench {

struct IpcOptions {
  double seconds = 0.5;  // at most, for each repeat of each pass
  int repeats = 3;
  std::uint64_t rounds = 200000;  // at most, for each repeat
  std::vector<int> cpus;
  std::uint32_t ring_kib = 256;
};

enum class Order : std::uint64_t { kEcho, kStamp, kStop };
struct Message {
  std::uint64_t number = 0;
  Order order = Order::kEcho;
  std::uint64_t stamp_ns = 0;
  std::uint64_t more[5] = {};
};
static_assert(sizeof(Message) == 64);

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "bench-ipc-latency: %s\n", what.c_str());
  ::_exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.error().message());
  return *std::move(result);
}
inline void must(Status status) {
  if (!status.ok()) fail(status.error().message());
}
inline void must(bool good, const char* what) {
  if (!good) fail(std::string(what) + ": " + std::strerror(errno));
}

void pin(const std::vector<int>& cpus);
std::vector<int> allowed_cpus();
// Returns p50_ns, p99_ns, p999_ns and max_ns of the samples, and sorts them.
nlohmann::json percentiles(std::vector<std::uint64_t>& samples);

// Zeroed memory that a forked child shares.
template <typename T>
T* shared() {
  void* place =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(place != MAP_FAILED, "mmap");
  return new (place) T();
}

template <class Body>
pid_t fork_worker(const IpcOptions& options, Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  must(child >= 0, "fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin({options.cpus[1]});
    body();
    ::_exit(0);
  }
  return child;
}
inline void join(pid_t child) {
  int status = 0;
  must(::waitpid(child, &status, 0) == child, "waitpid");
  if (status != 0) fail("the worker process failed");
}

// ---- the ways: each is made before the fork; then one process calls parent(), the other calls child(), and both
// send and receive ----

struct CacheLine {
  static constexpr bool kCarriesStamps = false, kSleeps = false;
  struct alignas(128) Line {
    std::atomic<std::uint64_t> turn;
  };
  Line* line = shared<Line>();
  std::uint64_t turn = 0;
  void parent() {}
  void child() {}
  void send(const Message& message) {
    line->turn.store(message.order == Order::kStop ? ~std::uint64_t{0} : ++turn,
                     std::memory_order_release);
  }
  void receive(Message& message) {
    std::uint64_t seen;
    while ((seen = line->turn.load(std::memory_order_acquire)) <= turn)
      pause_cpu();
    turn = seen;
    message = {};
    if (seen == ~std::uint64_t{0}) message.order = Order::kStop;
  }
};

struct ChannelPort {
  static constexpr bool kCarriesStamps = true;
  bool kSleeps;
  config::IpcSettings settings;
  ipc::ChannelPair pair;
  std::unique_ptr<ipc::Channel> channel;

  ChannelPort(config::Transport transport, bool sleeps, std::uint32_t ring_kib) : kSleeps(sleeps) {
    settings.transport = transport;
    settings.ring_kib = ring_kib;
    pair = must(ipc::make_channel_pair(settings));
  }
  void parent() {
    channel = std::move(pair.daemon);
    pair = {};
  }
  void child() {
    pair.daemon.reset();
    ipc::InheritedDescriptors inherited;
    inherited.socket = pair.worker_socket.release();
    inherited.region = pair.worker_region.release();
    if (inherited.region < 0) {
      inherited.input = pair.worker_stdin.release();
      inherited.output = pair.worker_stdout.release();
    }
    channel = must(ipc::open_worker_channel(inherited, settings));
  }
  std::span<std::byte> room(std::size_t bytes) {
    for (;;) {
      const std::span<std::byte> place = must(channel->try_reserve(bytes));
      if (!place.empty()) return place;
      pause_cpu();
    }
  }
  std::span<const std::byte> next() {
    if (kSleeps) {
      while (!must(ipc::wait_readable(*channel, std::chrono::microseconds(0),
                                      std::chrono::milliseconds(1000)))) {
      }
      return must(channel->try_receive());
    }
    for (;;) {
      const std::span<const std::byte> record = must(channel->try_receive());
      if (!record.empty()) return record;
      pause_cpu();
    }
  }
  // For a consumer that keeps up with its producer: if it has found nothing, it looks again a microsecond later. A
  // consumer that looks all the time takes the cache line of the producer's index away from the producer for each
  // record, which slows the producer down.
  std::span<const std::byte> next_of_many() {
    for (;;) {
      const std::span<const std::byte> record = must(channel->try_receive());
      if (!record.empty()) return record;
      for (const std::uint64_t until = now_ns() + 1000; now_ns() < until;)
        pause_cpu();
    }
  }
  void send(const Message& message) {
    std::memcpy(room(sizeof message).data(), &message, sizeof message);
    must(channel->commit(sizeof message));
  }
  void receive(Message& message) {
    const std::span<const std::byte> record = next();
    if (record.size() != sizeof message) fail("a record came back with another size");
    std::memcpy(&message, record.data(), sizeof message);
    channel->release();
  }
};

// Blocking reads and writes, as in a program without an event loop.
struct ByteStream {
  static constexpr bool kCarriesStamps = true, kSleeps = true;
  int down[2], up[2];  // read, write
  int in = -1, out = -1;
  explicit ByteStream(bool pipes) {
    if (pipes) {
      must(::pipe(down) == 0 && ::pipe(up) == 0, "pipe");
    } else {
      int ends[2];
      must(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
      down[0] = up[1] = ends[0];
      down[1] = up[0] = ends[1];
    }
  }
  ByteStream(ByteStream&&) = delete;
  ~ByteStream() {
    ::close(in);
    if (out != in) ::close(out);
  }
  void take(int input, int output, int other_input, int other_output) {
    in = input;
    out = output;
    ::close(other_input);
    if (other_output != other_input) ::close(other_output);
  }
  void parent() { take(up[0], down[1], down[0], up[1]); }
  void child() { take(down[0], up[1], up[0], down[1]); }
  void send(const Message& message) {
    must(::write(out, &message, sizeof message) == sizeof message, "write");
  }
  void receive(Message& message) {
    std::size_t got = 0;
    while (got < sizeof message) {
      const ssize_t more =
          ::read(in, reinterpret_cast<char*>(&message) + got, sizeof message - got);
      must(more > 0, "read");
      got += static_cast<std::size_t>(more);
    }
  }
};

struct BoostMessageQueue {
  using Queue = boost::interprocess::message_queue;
  static constexpr bool kCarriesStamps = true, kSleeps = false;  // it spins, and then yields
  std::string name = "bulkhead-bench-" + std::to_string(::getpid());
  Queue down{boost::interprocess::create_only, (name + "-down").c_str(), 1024, sizeof(Message)};
  Queue up{boost::interprocess::create_only, (name + "-up").c_str(), 1024, sizeof(Message)};
  Queue* in = nullptr;
  Queue* out = nullptr;
  BoostMessageQueue() {
    Queue::remove((name + "-down").c_str());
    Queue::remove((name + "-up").c_str());
  }
  void parent() { in = &up, out = &down; }
  void child() { in = &down, out = &up; }
  void send(const Message& message) { out->send(&message, sizeof message, 0); }
  void receive(Message& message) {
    Queue::size_type size = 0;
    unsigned priority = 0;
    in->receive(&message, sizeof message, size, priority);
  }
};

struct BoostSpscQueue {
  using Queue = boost::lockfree::spsc_queue<Message, boost::lockfree::capacity<1024>>;
  static constexpr bool kCarriesStamps = true, kSleeps = false;
  Queue* down = shared<Queue>();
  Queue* up = shared<Queue>();
  Queue* in = nullptr;
  Queue* out = nullptr;
  void parent() { in = up, out = down; }
  void child() { in = down, out = up; }
  void send(const Message& message) {
    while (!out->push(message))
      pause_cpu();
  }
  void receive(Message& message) {
    while (!in->pop(message))
      pause_cpu();
  }
};

}  // namespace bulkhead::bench

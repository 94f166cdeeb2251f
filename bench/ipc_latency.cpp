// bench-ipc-latency: what a 64-byte message costs between two processes, over the product's own
// Channel and over the things one might have used instead, against what the hardware allows: two
// cores that bounce one cache line.
//
// The parent plays the daemon, a forked child the worker, each pinned to a core. Four passes: round
// trips (the child echoes), one way (the same, the child notes when it received: one clock, read by
// both), wake-ups (the parent dawdles before each message until the child surely sleeps), and paced
// round trips (one each millisecond, as a step's records come). Then throughput in one direction by
// size, and the whole way of a token to a client. Percentiles are of sorted samples, all repeats
// together.
//
// Ports that sleep do so as the product does: poll on the channel's descriptor, no spinning. The
// others spin, as the daemon and a worker do within ipc.spin_us.
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <nlohmann/json.hpp>

#include "bench/report.hpp"
#include "bench/token_latency.hpp"
#include "ipc/channel.hpp"

namespace {

using namespace bulkhead;
using nlohmann::json;

struct Options {
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

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench-ipc-latency: %s\n", what.c_str());
  ::_exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.error().message());
  return *std::move(result);
}
void must(Status status) {
  if (!status.ok()) fail(status.error().message());
}
void must(bool good, const char* what) {
  if (!good) fail(std::string(what) + ": " + std::strerror(errno));
}

void pin(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    CPU_SET(cpu, &set);
  must(::sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  must(::sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// Zeroed memory that a forked child shares.
template <typename T>
T* shared() {
  void* place =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(place != MAP_FAILED, "mmap");
  return new (place) T();
}

// ---- the ways to carry a message: made before the fork; then one process calls parent(), the other
// child(), and each sends and receives ----

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
  // For a consumer that keeps up with its producer: having found nothing it looks again a
  // microsecond later. One that looks all the time takes the line of the producer's index away from
  // it for each record, and halts it so.
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

// Blocking reads and writes, as a program without an event loop would do it.
struct Stream {
  static constexpr bool kCarriesStamps = true, kSleeps = true;
  int down[2], up[2];  // read, write
  int in = -1, out = -1;
  explicit Stream(bool pipes) {
    if (pipes) {
      must(::pipe(down) == 0 && ::pipe(up) == 0, "pipe");
    } else {
      int ends[2];
      must(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
      down[0] = up[1] = ends[0];
      down[1] = up[0] = ends[1];
    }
  }
  Stream(Stream&&) = delete;
  ~Stream() {
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
  static constexpr bool kCarriesStamps = true, kSleeps = false;  // it spins, then yields
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

// ---- measuring ----

template <class Body>
pid_t fork_worker(const Options& options, Body body) {
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
void join(pid_t child) {
  int status = 0;
  must(::waitpid(child, &status, 0) == child, "waitpid");
  if (status != 0) fail("the worker process failed");
}

json percentiles(std::vector<std::uint64_t>& samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[std::min(samples.size() - 1,
                            static_cast<std::size_t>(share * static_cast<double>(samples.size())))];
  };
  return {{"p50_ns", at(0.5)},
          {"p99_ns", at(0.99)},
          {"p999_ns", at(0.999)},
          {"max_ns", samples.back()},
          {"samples", samples.size()}};
}

struct Passes {
  std::vector<std::uint64_t> round_trip, one_way, wake_up, paced;
  double long_gap_ms = 0;  // between round trips of more than kLong_ns, the median
  std::size_t long_ones = 0;
  long switches = 0;  // of the daemon's side, involuntary, during the round trips
};
constexpr std::uint64_t kLong_ns = 2000;
constexpr std::chrono::milliseconds kPace{1};

long involuntary_switches() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

template <class Port>
void echo(Port& port) {
  for (Message message;;) {
    port.receive(message);
    if (message.order == Order::kStop) return;
    if (message.order == Order::kStamp) message.stamp_ns = now_ns();
    port.send(message);
  }
}

template <class Port>
Passes measure(const Options& options, Port& port) {
  const pid_t child = fork_worker(options, [&] {
    port.child();
    echo(port);
  });
  port.parent();
  Passes passes;
  std::vector<std::uint64_t> gaps;
  Message message;
  std::uint64_t number = 0;
  const auto exchange = [&](Order order) {
    message = {};
    message.number = ++number;
    message.order = order;
    port.send(message);
    port.receive(message);
    if (Port::kCarriesStamps && message.number != number) fail("another message came back");
  };
  const auto budget = static_cast<std::uint64_t>(options.seconds * 1e9);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const std::uint64_t warm = now_ns() + budget / 10;
    while (now_ns() < warm)
      exchange(Order::kEcho);
    const long switches = involuntary_switches();
    std::uint64_t before = now_ns();
    std::uint64_t end = before + budget;
    std::uint64_t last_long = 0;
    for (std::uint64_t i = 0; i < options.rounds && before < end; ++i) {
      exchange(Order::kEcho);
      const std::uint64_t after = now_ns();
      passes.round_trip.push_back(after - before);
      if (after - before > kLong_ns) {
        if (last_long != 0) gaps.push_back(after - last_long);
        last_long = after;
      }
      before = after;
    }
    passes.switches += involuntary_switches() - switches;
    end = now_ns() + budget;
    while (before < end) {
      std::this_thread::sleep_for(kPace);
      before = now_ns();
      exchange(Order::kEcho);
      passes.paced.push_back(now_ns() - before);
    }
    if constexpr (Port::kCarriesStamps) {
      end = now_ns() + budget;
      for (std::uint64_t i = 0; i < options.rounds && before < end; ++i) {
        before = now_ns();
        exchange(Order::kStamp);
        passes.one_way.push_back(message.stamp_ns - before);
      }
      end = now_ns() + budget;
      while (port.kSleeps && before < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        before = now_ns();
        exchange(Order::kStamp);
        passes.wake_up.push_back(message.stamp_ns - before);
      }
    }
  }
  message.order = Order::kStop;
  port.send(message);
  join(child);
  passes.long_ones = gaps.size();
  if (!gaps.empty()) {
    std::nth_element(gaps.begin(), gaps.begin() + gaps.size() / 2, gaps.end());
    passes.long_gap_ms = static_cast<double>(gaps[gaps.size() / 2]) / 1e6;
  }
  return passes;
}

// One way, `bytes` a record: records a second in the fastest stretch, and all in all in the best
// repeat. `up`: from the worker to the daemon. Each record is published by itself.
struct Throughput {
  double fastest = 0, whole = 0;
};
Throughput throughput(const Options& options, config::Transport transport, bool up,
                      std::size_t bytes) {
  Throughput best;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    ChannelPort port(transport, false, options.ring_kib);
    // Bounded by time: the sender marks its last record.
    const auto produce = [&] {
      const std::vector<std::byte> source(bytes, std::byte{1});
      const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(options.seconds * 1e9);
      for (std::uint64_t i = 0;; ++i) {
        const bool last = i % 1024 == 1023 && now_ns() > end;
        const std::span<std::byte> place = port.room(bytes);
        std::memcpy(place.data(), source.data(), bytes);
        if (last) place[0] = std::byte{2};
        must(port.channel->commit(bytes));
        if (last) break;
      }
      while (!must(port.channel->flush()))
        pause_cpu();
    };
    const auto consume = [&] {
      // The fastest stretch counts: on shared cores, one end often waits for the other to be run.
      // Many times what the ring holds, so that a backlog doesn't count as speed.
      const std::uint64_t stretch =
          std::max<std::uint64_t>(1024, std::uint64_t{16} * (options.ring_kib << 10) / bytes);
      Throughput rate;
      std::uint64_t start = now_ns();
      const std::uint64_t begin = start;
      for (std::uint64_t i = 1;; ++i) {
        const std::span<const std::byte> record = port.next_of_many();
        const bool last = record.front() == std::byte{2};
        if (record.back() == std::byte{0} || record.size() != bytes) fail("a record came wrong");
        port.channel->release();
        if (i % stretch == 0) {
          const std::uint64_t end = now_ns();
          rate.fastest = std::max(
              rate.fastest, static_cast<double>(stretch) * 1e9 / static_cast<double>(end - start));
          start = end;
        }
        if (last) {
          rate.whole = static_cast<double>(i) * 1e9 / static_cast<double>(now_ns() - begin);
          return rate;
        }
      }
    };
    Throughput* rate = shared<Throughput>();
    const pid_t child = fork_worker(options, [&] {
      port.child();
      if (up) {
        produce();
        // Stays until everything was taken: its end of the channel would take the rest along.
        while (must(ipc::wait_readable(*port.channel, std::chrono::microseconds(0),
                                       std::chrono::milliseconds(60000))) == false) {
        }
      } else {
        *rate = consume();
      }
    });
    port.parent();
    if (up) {
      *rate = consume();
      port.send({});
    } else {
      produce();
    }
    join(child);
    best.fastest = std::max(best.fastest, rate->fastest);
    best.whole = std::max(best.whole, rate->whole);
    ::munmap(rate, sizeof *rate);
  }
  return best;
}

// What one core does when it only copies records of `bytes` into a buffer of the ring's size.
double memcpy_gb_per_s(const Options& options, std::size_t bytes) {
  std::vector<std::byte> source(bytes, std::byte{1}), ring(std::size_t{options.ring_kib} << 10);
  double best = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;
    std::size_t at = 0;
    const std::uint64_t start = now_ns();
    for (std::uint64_t done = 0; done < kBytes; done += bytes) {
      std::memcpy(ring.data() + at, source.data(), bytes);
      asm volatile("" : : "r"(ring.data()) : "memory");
      at = at + 2 * bytes <= ring.size() ? at + bytes : 0;
    }
    best = std::max(best, static_cast<double>(kBytes) / static_cast<double>(now_ns() - start));
  }
  return best;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

json throughput_by_size(const Options& options) {
  std::printf("\none way throughput\n%-10s %7s %14s %9s %16s %14s\n", "", "bytes", "records/s",
              "GB/s", "memcpy alone", "whole, rec/s");
  json rates = json::array();
  for (const std::size_t bytes : {64, 256, 1024, 4096, 16384, 65536}) {
    const double copy = memcpy_gb_per_s(options, bytes);
    for (auto [name, transport, up] : {std::tuple{"ring_up", config::Transport::kShm, true},
                                       {"ring_down", config::Transport::kShm, false},
                                       {"stdio_up", config::Transport::kStdio, true},
                                       {"stdio_down", config::Transport::kStdio, false}}) {
      const Throughput rate = throughput(options, transport, up, bytes);
      const double gb = rate.fastest * static_cast<double>(bytes) / 1e9;
      std::printf("%-10s %7zu %14.0f %9.2f %11.2f GB/s %14.0f\n", name, bytes, rate.fastest, gb,
                  copy, rate.whole);
      std::fflush(stdout);
      rates.push_back({{"name", name},
                       {"bytes", bytes},
                       {"records_per_s", rate.fastest},
                       {"whole_records_per_s", rate.whole},
                       {"gb_per_s", gb},
                       {"memcpy_gb_per_s", copy}});
    }
  }
  return rates;
}

// Unpaced tokens come faster than a client takes them; more of them than this would be more than the
// daemon lets wait for one.
constexpr double kUnpacedTokens = 5000;

// Nothing is pinned here: daemon, worker and client run where the system puts them.
json tokens_to_client(const Options& options) {
  std::printf(
      "\na token from the worker's write to the client, us\n%-8s %7s %8s %9s %9s %9s %9s %12s "
      "%14s\n",
      "", "streams", "pace us", "p50", "p99", "p99.9", "max", "tokens/s", "daemon CPU us");
  json all = json::array();
  for (const config::Transport transport : {config::Transport::kShm, config::Transport::kStdio}) {
    for (const auto& [streams, pace_us] :
         {std::pair{1U, 1000U}, {16U, 1000U}, {1U, 0U}, {16U, 0U}}) {
      bench::TokenLatencyPlan plan;
      plan.transport = transport;
      plan.streams = streams;
      plan.pace_us = pace_us;
      plan.repeats = options.repeats;
      const double each_s = pace_us != 0 ? pace_us / 1e6 : options.seconds / kUnpacedTokens;
      plan.tokens = static_cast<std::uint32_t>(std::max(100.0, options.seconds / each_s));
      auto measured = bench::measure_token_latency(plan);
      if (!measured.ok()) {
        std::printf("not measured: %s\n", measured.error().message().c_str());
        return json(measured.error().message());
      }
      const char* name = transport == config::Transport::kShm ? "shm" : "stdio";
      json result = percentiles(measured->samples_ns);
      const auto us = [&](const char* key) { return result[key].get<double>() / 1e3; };
      std::printf("%-8s %7u %8u %9.1f %9.1f %9.1f %9.1f %12.0f %14.2f\n", name, streams, pace_us,
                  us("p50_ns"), us("p99_ns"), us("p999_ns"), us("max_ns"), measured->tokens_per_s,
                  measured->daemon_cpu_us_per_token);
      std::fflush(stdout);
      result["transport"] = name;
      result["streams"] = streams;
      result["pace_us"] = pace_us;
      result["tokens_per_s"] = measured->tokens_per_s;
      result["daemon_cpu_us_per_token"] = measured->daemon_cpu_us_per_token;
      all.push_back(std::move(result));
    }
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (int code = 0; bench::run_as_worker(argc, argv, code)) return code;
  CLI::App app(
      "Latency and throughput of the channel between the daemon and a worker, and of the "
      "alternatives");
  Options options;
  std::string json_file;
  bool latency = true, streams = true, sizes = true;
  std::vector<std::string> only;
  app.add_flag("!--throughput-only", latency, "Leave the latencies out");
  app.add_option("--only", only, "Of the latencies, only these names")->delimiter(',');
  app.add_flag("!--no-throughput", sizes, "Leave the throughput out");
  app.add_flag("!--no-tokens", streams, "Leave out the way of a token to a client");
  app.add_option("--json", json_file, "Write the results to this file");
  app.add_option("--seconds", options.seconds, "At most this long for each repeat of each pass");
  app.add_option("--repeats", options.repeats, "Repeats, all counted together");
  app.add_option("--rounds", options.rounds, "At most so many round trips for each repeat");
  app.add_option("--cpus", options.cpus, "The daemon's and the worker's core")->expected(2);
  app.add_option("--ring-kib", options.ring_kib, "ipc.ring_kib");
  CLI11_PARSE(app, argc, argv);
  const std::vector<int> allowed = allowed_cpus();
  if (options.cpus.empty()) options.cpus = allowed;
  if (options.cpus.size() < 2)
    fail("two cores are needed: a spinning peer on the same one says nothing");

  double load[3] = {};
  ::getloadavg(load, 3);
  json report = {{"cpu", cpu_name()},
                 {"cpus", {options.cpus[0], options.cpus[1]}},
                 {"cpus_online", ::sysconf(_SC_NPROCESSORS_ONLN)},
                 {"load_average_before", load[0]},
                 {"message_bytes", sizeof(Message)},
                 {"ring_kib", options.ring_kib},
                 {"repeats", options.repeats}};
  std::printf("%s, cores %d and %d of %ld, load %.1f\n", cpu_name().c_str(), options.cpus[0],
              options.cpus[1], ::sysconf(_SC_NPROCESSORS_ONLN), load[0]);
  if (::sysconf(_SC_NPROCESSORS_ONLN) <= 2) {
    std::printf(
        "Both cores are pinned: whatever else runs here takes its time from a spinning process, "
        "which p99.9 and max show.\n");
  }
  pin({options.cpus[0]});

  json results = json::array();
  std::printf(
      "\nround trip of %zu bytes, ns\n%-20s %9s %9s %9s %11s   %9s %9s   %9s %9s   %9s %9s\n",
      sizeof(Message), "", "p50", "p99", "p99.9", "max", "one way", "p99", "wake-up", "p99",
      "each ms", "p99");
  const auto add = [&](const char* name, Passes passes) {
    json result = percentiles(passes.round_trip);
    result["name"] = name;
    std::printf("%-20s %9lu %9lu %9lu %11lu", name, result["p50_ns"].get<std::uint64_t>(),
                result["p99_ns"].get<std::uint64_t>(), result["p999_ns"].get<std::uint64_t>(),
                result["max_ns"].get<std::uint64_t>());
    result["long_round_trips"] = {{"over_ns", kLong_ns},
                                  {"count", passes.long_ones},
                                  {"median_gap_ms", passes.long_gap_ms},
                                  {"involuntary_switches", passes.switches}};
    for (auto [part, samples] : {std::pair{"one_way", &passes.one_way},
                                 {"wake_up", &passes.wake_up},
                                 {"paced_round_trip", &passes.paced}}) {
      if (samples->empty()) {
        std::printf("   %9s %9s", "-", "-");
        continue;
      }
      result[part] = percentiles(*samples);
      std::printf("   %9lu %9lu", result[part]["p50_ns"].get<std::uint64_t>(),
                  result[part]["p99_ns"].get<std::uint64_t>());
    }
    std::printf("\n");
    std::fflush(stdout);
    results.push_back(std::move(result));
  };
  const auto run = [&](const char* name, auto&& port) {
    const bool wanted = only.empty() || std::find(only.begin(), only.end(), name) != only.end();
    if (wanted) add(name, measure(options, port));
  };
  if (latency) {
    run("cache_line", CacheLine());
    run("ring", ChannelPort(config::Transport::kShm, false, options.ring_kib));
    run("ring_sleeping", ChannelPort(config::Transport::kShm, true, options.ring_kib));
    run("stdio", ChannelPort(config::Transport::kStdio, true, options.ring_kib));
    run("pipe", Stream(true));
    run("unix_socket", Stream(false));
    run("boost_message_queue", BoostMessageQueue());
    run("boost_spsc_queue", BoostSpscQueue());

    const auto ratio = [&](const char* upper, const char* lower, const char* part = nullptr) {
      const auto p50 = [&](const char* name) {
        for (const json& result : results) {
          if (result["name"] != name) continue;
          return (part != nullptr ? result[part] : result)["p50_ns"].get<double>();
        }
        return 0.0;
      };
      return p50(lower) > 0 ? p50(upper) / p50(lower) : 0.0;
    };
    std::printf(
        "ring / cache_line %.2f, stdio / ring %.0f (one each ms: %.0f), stdio / ring_sleeping "
        "%.1f\n",
        ratio("ring", "cache_line"), ratio("stdio", "ring"),
        ratio("stdio", "ring", "paced_round_trip"), ratio("stdio", "ring_sleeping"));
  }
  report["results"] = results;

  if (sizes) report["throughput"] = throughput_by_size(options);
  pin(allowed);
  if (streams) report["token_to_client"] = tokens_to_client(options);
  if (const Status written = bench::write_report(json_file, report); !written.ok()) {
    std::fprintf(stderr, "bench-ipc-latency: %s\n", written.error().message().c_str());
    return 1;
  }
  return 0;
}

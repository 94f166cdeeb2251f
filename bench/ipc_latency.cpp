// bench-ipc-latency measures what a 64-byte message costs between two processes, over the product's own Channel and
// over other means of communication. The limit of the hardware is shown beside it: two cores that exchange one cache
// line.
//
// The parent process plays the daemon and a forked child the worker; each is pinned to a core. There are four passes:
// round trips (the child echoes); one way (the same, but the child notes when it received the message; both read one
// clock); wake-ups (before each message the parent waits until the child surely sleeps); and paced round trips (one
// each millisecond, like a step's records). Then the program measures throughput in one direction by size, and the
// whole way of a token to a client. Percentiles are of sorted samples of all repeats together.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/ipc_ports.hpp"
#include "bench/ipc_throughput.hpp"
#include "bench/program.hpp"
#include "bench/report.hpp"
#include "bench/token_latency.hpp"
#include "config/base/program_options.hpp"

namespace bulkhead::bench {

using nlohmann::json;

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

namespace {

struct Passes {
  std::vector<std::uint64_t> round_trip, one_way, wake_up, paced;
  double long_gap_ms = 0;  // median of the gaps between round trips that are longer than kLong_ns
  std::size_t long_ones = 0;
  long switches = 0;  // involuntary switches of the daemon's side during the round trips
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
Passes measure(const IpcOptions& options, Port& port) {
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

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Prints a line of the table, and returns the same for the report.
json tell(const char* name, Passes passes) {
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
  return result;
}

// Measures all ports, or those with these names.
json latencies(const IpcOptions& options, const std::vector<std::string>& only) {
  json results = json::array();
  std::printf(
      "\nround trip of %zu bytes, ns\n%-20s %9s %9s %9s %11s   %9s %9s   %9s %9s   %9s %9s\n",
      sizeof(Message), "", "p50", "p99", "p99.9", "max", "one way", "p99", "wake-up", "p99",
      "each ms", "p99");
  const auto run = [&](const char* name, auto&& port) {
    const bool wanted = only.empty() || std::find(only.begin(), only.end(), name) != only.end();
    if (wanted) results.push_back(tell(name, measure(options, port)));
  };
  run("cache_line", CacheLine());
  run("ring", ChannelPort(config::Transport::kShm, false, options.ring_kib));
  run("ring_sleeping", ChannelPort(config::Transport::kShm, true, options.ring_kib));
  run("stdio", ChannelPort(config::Transport::kStdio, true, options.ring_kib));
  run("pipe", ByteStream(true));
  run("unix_socket", ByteStream(false));
  run("boost_message_queue", BoostMessageQueue());
  run("boost_spsc_queue", BoostSpscQueue());

  const auto ratio = [&](const char* upper, const char* lower, const char* part = nullptr) {
    const auto p50 = [&](const char* name) {
      for (const json& result : results) {
        if (result["name"] != name || (part != nullptr && !result.contains(part))) continue;
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
  return results;
}

// Unpaced tokens come faster than a client takes them. If there were more of them, more would wait than the daemon
// allows for one client.
constexpr double kUnpacedTokens = 5000;

// Nothing is pinned here: the system decides where daemon, worker and client run.
json tokens_to_client(const IpcOptions& options) {
  std::printf(
      "\na token from the worker's write to the client, us\n%-8s %7s %8s %9s %9s %9s %9s %12s "
      "%14s\n",
      "", "streams", "pace us", "p50", "p99", "p99.9", "max", "tokens/s", "daemon CPU us");
  json all = json::array();
  for (const config::Transport transport : {config::Transport::kShm, config::Transport::kStdio}) {
    for (const auto& [streams, pace_us] :
         {std::pair{1U, 1000U}, {16U, 1000U}, {1U, 0U}, {16U, 0U}}) {
      TokenLatencyPlan plan;
      plan.transport = transport;
      plan.streams = streams;
      plan.pace_us = pace_us;
      plan.repeats = options.repeats;
      const double each_s = pace_us != 0 ? pace_us / 1e6 : options.seconds / kUnpacedTokens;
      plan.tokens = static_cast<std::uint32_t>(std::max(100.0, options.seconds / each_s));
      auto measured = measure_token_latency(plan);
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
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
  using namespace bulkhead;         // NOLINT: a program
  using namespace bulkhead::bench;  // NOLINT
  if (int code = 0; run_as_worker(argc, argv, code)) return code;
  ProgramOptions line(
      "Latency and throughput of the channel between the daemon and a worker, and of the "
      "alternatives");
  IpcOptions options;
  std::string json_file;
  bool latency = true, streams = true, sizes = true;
  std::vector<std::string> only;
  line.flag("!--throughput-only", latency, "Leave the latencies out");
  line.add("--only", only, "Of the latencies, only these names").comma_separated();
  line.flag("!--no-throughput", sizes, "Leave the throughput out");
  line.flag("!--no-tokens", streams, "Leave out the way of a token to a client");
  line.add("--json", json_file, "Write the results to this file");
  line.add("--seconds", options.seconds, "At most this long for each repeat of each pass");
  line.add("--repeats", options.repeats, "Repeats, all counted together");
  line.add("--rounds", options.rounds, "At most this many round trips for each repeat");
  line.add("--cpus", options.cpus, "The daemon's and the worker's core").values(2);
  line.add("--ring-kib", options.ring_kib, "ipc.ring_kib");
  if (const auto code = line.parse(argc, argv)) return *code;
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

  report["results"] = latency ? latencies(options, only) : json::array();

  if (sizes) report["throughput"] = throughput_by_size(options);
  pin(allowed);
  if (streams) report["token_to_client"] = tokens_to_client(options);
  return run_program("bench-ipc-latency", [&] { return write_report(json_file, report); });
}

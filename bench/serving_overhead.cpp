// bench-serving-overhead measures what serving costs for each token. The same requests are decoded
//
//   engine   by the engine alone, in this process: no channel, no other process
//   worker   by a bulkhead-worker, started and read through the daemon's own process and channel
//            code; this process counts the records' tokens and does nothing else with them
//   http     by a bulkheadd and its worker, streamed as server-sent events to a client in this
//            process
//
// over both transports, with each token sent at once (flush_tokens 1) and with four at a time. All variants stay
// loaded and take short turns, each beside a turn of the engine (paired.hpp).
//
// The rate is that of all streams together while all of them decode, measured where the tokens arrive: from the last
// stream's first token to the first stream's last. Prompts are not included: the engine gets all of them before its
// first step, but a server gets them one after another, so its streams begin one or two steps apart. The cost of that
// is shown beside it ("with prompts"). The engine's tokens are compared with those of every other variant.
//
// On a GPU the daemon and the client have their own cores and take nothing from the device. A CPU device competes
// with them for the same cores, even with the client, which would otherwise run on another machine. So CPU time for
// each token is shown by process, and --pin gives the engine (or the worker) one half of the cores and everything
// else the other half.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/paired.hpp"
#include "bench/program.hpp"
#include "bench/report.hpp"
#include "bench/served_stream.hpp"
#include "bench/serving_variants.hpp"
#include "config/base/log.hpp"
#include "config/settings.hpp"
#include "gpu/device.hpp"

namespace {

using namespace bulkhead;         // NOLINT: a program
using namespace bulkhead::bench;  // NOLINT
using nlohmann::json;
using Tokens = std::vector<std::uint32_t>;

constexpr std::uint32_t kBatchedTokens = 4;
constexpr double kLimitPercent = 5;
// In percent of the machine's CPU time. A turn with more use by other programs is left out of the figures of calm
// turns.
constexpr double kCalmPercent = 5;

struct Plan : DecodePlan {
  std::string json_path;
  int repeats = 0;
  std::vector<std::string> transports{"shm", "stdio"}, kinds{"worker", "http"};
  std::vector<std::uint32_t> flush{1, kBatchedTokens};
  std::uint32_t flush_interval_us = 1'000'000;
  std::uint32_t rest_ms = 0;
  bool pin = false;
};

// Sets what the command line left out: one or two minutes of work for this device.
Status complete(Plan& plan) {
  if (plan.tokens != 0 && !plan.streams.empty() && plan.repeats != 0) return {};
  gpu::DeviceOptions options;
  options.selector = plan.device;
  BULKHEAD_TRY(const auto device, gpu::Device::open(options));
  const bool cpu = device->info().kind == gpu::DeviceKind::kCpu;
  if (plan.tokens == 0) plan.tokens = cpu ? 24 : 128;
  if (plan.streams.empty())
    plan.streams = cpu ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>{1, 16};
  if (plan.repeats == 0) plan.repeats = cpu ? 6 : 15;
  return {};
}

// ---- one turn ----

struct Turn {
  double decode_tokens_per_s = 0, all_tokens_per_s = 0;
  std::vector<double> ttft_ms, inter_token_ms;
  std::vector<std::pair<const char*, double>> cpu_us_per_token;
  double foreign_percent = 0;  // percent of the machine's CPU time that other programs used

  double cpu_us() const {
    double sum = 0;
    for (const auto& [process, us] : cpu_us_per_token)
      sum += us;
    return sum;
  }
  bool calm() const { return foreign_percent <= kCalmPercent; }
};

// Returns how many tokens have come by `at_ns`, which is not before the first one. Between two arrivals it
// interpolates, so that the order in which a step's streams are reported makes no difference.
double tokens_by(const Trace& trace, std::uint64_t at_ns) {
  const auto& arrivals = trace.arrivals;
  const auto next =
      std::lower_bound(arrivals.begin(), arrivals.end(), at_ns,
                       [](const auto& arrival, std::uint64_t at) { return arrival.first < at; });
  if (next == arrivals.begin()) return next->second;
  const auto& before = *std::prev(next);
  if (next == arrivals.end()) return before.second;
  const double part =
      static_cast<double>(at_ns - before.first) / static_cast<double>(next->first - before.first);
  return before.second + part * (next->second - before.second);
}

Status take_times(Turn& turn, const Traces& traces, std::uint32_t tokens) {
  std::uint64_t all_begun = 0, one_ended = UINT64_MAX;
  for (const Trace& trace : traces) {
    all_begun = std::max(all_begun, trace.arrivals.front().first);
    one_ended = std::min(one_ended, trace.arrivals.back().first);
  }
  if (all_begun >= one_ended)
    return Error(ErrorCode::kInvalidArgument, "the streams were never all at it: more --tokens");
  const double together_s = static_cast<double>(one_ended - all_begun) / 1e9;
  std::uint64_t begin = UINT64_MAX, end = 0;
  for (const Trace& trace : traces) {
    const auto& arrivals = trace.arrivals;
    turn.decode_tokens_per_s +=
        (tokens_by(trace, one_ended) - tokens_by(trace, all_begun)) / together_s;
    begin = std::min(begin, trace.begin_ns);
    end = std::max(end, arrivals.back().first);
    turn.ttft_ms.push_back(static_cast<double>(arrivals.front().first - trace.begin_ns) / 1e6);
    for (std::size_t i = 1; i < arrivals.size(); ++i) {
      const std::uint32_t count = arrivals[i].second - arrivals[i - 1].second;
      const double gap =
          static_cast<double>(arrivals[i].first - arrivals[i - 1].first) / 1e6 / count;
      turn.inter_token_ms.insert(turn.inter_token_ms.end(), count, gap);
    }
  }
  turn.all_tokens_per_s =
      static_cast<double>(traces.size()) * tokens * 1e9 / static_cast<double>(end - begin);
  return {};
}

Result<Turn> take_turn(const Plan& plan, Variant& variant, std::uint32_t streams) {
  const auto processes = variant.processes();
  std::vector<std::uint64_t> before;
  for (const auto& [name, pid] : processes)
    before.push_back(cpu_ns(pid));
  const std::uint64_t busy = busy_cpu_ns(), begin = now_ns();
  BULKHEAD_TRY(const Run run, variant.run(streams, false));
  const double machine_ns =
      static_cast<double>(now_ns() - begin) * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  auto foreign_ns = static_cast<double>(busy_cpu_ns() - busy);
  Turn turn;
  for (std::size_t p = 0; p < processes.size(); ++p) {
    const auto used = static_cast<double>(cpu_ns(processes[p].second) - before[p]);
    foreign_ns -= used;
    turn.cpu_us_per_token.emplace_back(processes[p].first,
                                       used / 1e3 / (double{1} * streams * plan.tokens));
  }
  turn.foreign_percent = 100 * std::max(0.0, foreign_ns) / machine_ns;
  BULKHEAD_RETURN_IF_ERROR(take_times(turn, run.traces, plan.tokens));
  return turn;
}

// ---- figures ----

// The turns of one variant with one number of streams.
struct Series {
  std::string name, kind, transport;
  std::uint32_t flush = 0;
  std::vector<Turn> turns;
  // Compared with the engine's turn, in percent: how much slower, and how much more CPU time all processes together
  // took for a token. "Calm" means that both turns were calm.
  std::vector<double> slower, more_cpu, calm_slower, slower_with_prompts;

  void add(Turn turn, const Turn& engine) {
    slower.push_back(100 * (1 - turn.decode_tokens_per_s / engine.decode_tokens_per_s));
    slower_with_prompts.push_back(100 * (1 - turn.all_tokens_per_s / engine.all_tokens_per_s));
    more_cpu.push_back(100 * (turn.cpu_us() / engine.cpu_us() - 1));
    if (turn.calm() && engine.calm()) calm_slower.push_back(slower.back());
    turns.push_back(std::move(turn));
  }
  template <class Value>
  double median_of(Value value) const {
    std::vector<double> values;
    for (const Turn& turn : turns)
      values.push_back(value(turn));
    return median(std::move(values));
  }
  std::vector<double> all_of(std::vector<double> Turn::*values) const {
    std::vector<double> all;
    for (const Turn& turn : turns)
      all.insert(all.end(), (turn.*values).begin(), (turn.*values).end());
    return all;
  }
};

json to_json(const MedianInterval& interval, std::size_t turns) {
  return {{"median", interval.median},
          {"low", interval.low},
          {"high", interval.high},
          {"confidence", interval.confident ? 0.95 : 0.0},
          {"turns", turns}};
}

json to_json(const Series& series, std::uint32_t streams) {
  const std::vector<double> ttft = series.all_of(&Turn::ttft_ms);
  const std::vector<double> gaps = series.all_of(&Turn::inter_token_ms);
  std::vector<double> rates;
  for (const Turn& turn : series.turns)
    rates.push_back(turn.decode_tokens_per_s);
  json out = {{"name", series.name},
              {"kind", series.kind},
              {"streams", streams},
              {"decode_tokens_per_s", median(rates)},
              {"decode_tokens_per_s_repeats", rates},
              {"with_prefill_tokens_per_s",
               series.median_of([](const Turn& turn) { return turn.all_tokens_per_s; })},
              {"foreign_cpu_percent",
               series.median_of([](const Turn& turn) { return turn.foreign_percent; })},
              {"ttft_p50_ms", quantile(ttft, 0.5)},
              {"ttft_p99_ms", quantile(ttft, 0.99)},
              {"inter_token_p50_ms", quantile(gaps, 0.5)},
              {"inter_token_p99_ms", quantile(gaps, 0.99)}};
  if (!series.transport.empty()) {
    const MedianInterval slower = median_interval(series.slower);
    out["transport"] = series.transport;
    out["flush_tokens"] = series.flush;
    out["overhead_percent"] = slower.median;
    out["overhead_percent_repeats"] = series.slower;
    out["overhead"] = to_json(slower, series.slower.size());
    out["overhead_calm"] = to_json(median_interval(series.calm_slower), series.calm_slower.size());
    out["overhead_with_prompts"] =
        to_json(median_interval(series.slower_with_prompts), series.slower_with_prompts.size());
    out["more_cpu"] = to_json(median_interval(series.more_cpu), series.more_cpu.size());
    out["verdict"] = verdict(slower, kLimitPercent);
  }
  for (std::size_t p = 0; !series.turns.empty() && p < series.turns[0].cpu_us_per_token.size(); ++p)
    out["cpu_us_per_token"][series.turns[0].cpu_us_per_token[p].first] =
        series.median_of([p](const Turn& turn) { return turn.cpu_us_per_token[p].second; });
  return out;
}

std::string interval_text(const json& interval) {
  if (interval["turns"] == 0) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.1f (%.1f to %.1f)", interval["median"].get<double>(),
                interval["low"].get<double>(), interval["high"].get<double>());
  return text;
}

void print(const json& line) {
  const bool engine = line["kind"] == "engine";
  std::printf("%-16s %9.1f  %-22s %-22s %4d  %-22s %-22s %7.2f %8.2f  %7.3f %8.3f %6.0f ",
              line["name"].get<std::string>().c_str(), line["decode_tokens_per_s"].get<double>(),
              engine ? "" : interval_text(line["overhead"]).c_str(),
              engine ? "" : interval_text(line["overhead_calm"]).c_str(),
              engine ? 0 : line["overhead_calm"]["turns"].get<int>(),
              engine ? "" : interval_text(line["overhead_with_prompts"]).c_str(),
              engine ? "" : interval_text(line["more_cpu"]).c_str(),
              line["ttft_p50_ms"].get<double>(), line["ttft_p99_ms"].get<double>(),
              line["inter_token_p50_ms"].get<double>(), line["inter_token_p99_ms"].get<double>(),
              line["foreign_cpu_percent"].get<double>());
  for (const auto& [process, us] : line["cpu_us_per_token"].items())
    std::printf(" %s %.1f", process.c_str(), us.get<double>());
  std::printf("\n");
}

// ---- running ----

struct Entry {
  std::unique_ptr<Variant> variant;
  Series series;  // empty; copied for each number of streams
};

// Puts the engine, or what decodes in its place, on the first half of the cores, and everything else on the second
// half. This thread is on the first half during the engine's turns.
class Cores {
 public:
  Status split() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    ::sched_getaffinity(0, sizeof allowed, &allowed);
    const int count = CPU_COUNT(&allowed);
    if (count < 2) return Error(ErrorCode::kInvalidArgument, "--pin needs two cores");
    CPU_ZERO(&decoding_);
    CPU_ZERO(&others_);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, seen++ < count / 2 ? &decoding_ : &others_);
    }
    split_ = true;
    return {};
  }
  void keep_engine_apart() const {
    if (split_) pin_threads(0, decoding_, true);
  }
  void keep_apart(const Variant& variant) const {
    if (!split_) return;
    const auto processes = variant.processes();
    for (const auto& [name, pid] : processes) {
      if (pid != 0) pin_threads(pid, pid == processes.front().second ? decoding_ : others_);
    }
  }
  void before_turn(bool engine) const {
    if (split_) ::sched_setaffinity(0, sizeof(cpu_set_t), engine ? &decoding_ : &others_);
  }

 private:
  bool split_ = false;
  cpu_set_t decoding_, others_;
};

Status check_tokens(const std::string& name, const std::vector<Tokens>& expected,
                    const std::vector<Tokens>& got) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (got.at(i) == expected[i]) continue;
    return Error(ErrorCode::kInternal, name + ": stream " + std::to_string(i) +
                                           " has other tokens than the engine alone gave (" +
                                           std::to_string(got[i].size()) + " of " +
                                           std::to_string(expected[i].size()) + ")");
  }
  return {};
}

Result<std::vector<Entry>> start_variants(const Plan& plan, config::Settings settings,
                                          const EngineVariant& engine) {
  std::vector<Entry> entries;
  for (const std::string& transport : plan.transports) {
    for (const std::uint32_t flush : plan.flush) {
      settings.ipc.transport =
          transport == "shm" ? config::Transport::kShm : config::Transport::kStdio;
      settings.ipc.flush_tokens = flush;
      // Only if tokens must wait for each other; otherwise tokens that did wait would blur the comparison.
      settings.ipc.flush_interval_us =
          flush > 1 ? plan.flush_interval_us : config::IpcSettings{}.flush_interval_us;
      for (const std::string& kind : plan.kinds) {
        Entry entry;
        if (kind == "worker") {
          BULKHEAD_TRY(entry.variant, start_worker(plan, settings, engine.vocabulary()));
        } else {
          BULKHEAD_TRY(entry.variant, start_daemon(plan, settings, engine));
        }
        entry.series.name = kind + " " + transport + " " + std::to_string(flush);
        entry.series.kind = kind;
        entry.series.transport = transport;
        entry.series.flush = flush;
        entries.push_back(std::move(entry));
      }
    }
  }
  return entries;
}

// Measures all turns with one number of streams. The engine's series is first.
Result<std::vector<Series>> measure(const Plan& plan, const Cores& cores, EngineVariant& engine,
                                    const std::vector<Entry>& entries, std::uint32_t streams) {
  std::vector<Series> series(1);
  series[0].name = series[0].kind = "engine";
  // Warms up, and checks that all variants decode the same tokens.
  cores.before_turn(true);
  BULKHEAD_TRY(const Run expected, engine.run(streams, true));
  cores.before_turn(false);
  for (const Entry& entry : entries) {
    series.push_back(entry.series);
    BULKHEAD_TRY(const Run checked, entry.variant->run(streams, true));
    BULKHEAD_RETURN_IF_ERROR(check_tokens(entry.series.name, expected.tokens, checked.tokens));
  }
  const auto take = [&](Variant& variant) {
    cores.before_turn(&variant == &engine);
    return take_turn(plan, variant, streams);
  };
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    for (std::size_t at = 0; at < entries.size(); ++at) {
      // Each repeat begins with another variant, and in every second pair the engine comes second.
      const std::size_t i = (at + static_cast<std::size_t>(repeat)) % entries.size();
      const bool engine_first = repeat % 2 == 0;
      Variant& variant = *entries[i].variant;
      BULKHEAD_TRY(Turn first, take(engine_first ? static_cast<Variant&>(engine) : variant));
      BULKHEAD_TRY(Turn second, take(engine_first ? variant : static_cast<Variant&>(engine)));
      if (!engine_first) std::swap(first, second);
      series[i + 1].add(std::move(second), first);
      series[0].turns.push_back(std::move(first));
      std::this_thread::sleep_for(std::chrono::milliseconds(plan.rest_ms));
    }
  }
  return series;
}

Status run(Plan plan) {
  BULKHEAD_RETURN_IF_ERROR(complete(plan));
  config::Settings settings;
  settings.log.level = "warn";
  settings.engine.prefix_cache = false;  // the prompts are the same in every turn
  Cores cores;
  if (plan.pin) BULKHEAD_RETURN_IF_ERROR(cores.split());
  BULKHEAD_TRY(const auto engine, load_engine(plan, settings));
  BULKHEAD_TRY(const std::vector<Entry> entries, start_variants(plan, settings, *engine));
  cores.keep_engine_apart();
  for (const Entry& entry : entries)
    cores.keep_apart(*entry.variant);
  double load[3] = {};
  ::getloadavg(load, 3);
  std::printf("%s (%s), %s: %u tokens after prompts of %u, %d repeats%s, load %.1f\n",
              engine->device_name().c_str(), engine->driver().c_str(), plan.model.c_str(),
              plan.tokens, plan.prompt, plan.repeats,
              plan.pin ? ", the engine on cores of its own" : "", load[0]);
  std::fflush(stdout);
  json report{{"benchmark", "serving-overhead"},
              {"device", engine->device_name()},
              {"driver", engine->driver()},
              {"model", plan.model},
              {"tokens", plan.tokens},
              {"prompt", plan.prompt},
              {"repeats", plan.repeats},
              {"cpus_online", ::sysconf(_SC_NPROCESSORS_ONLN)},
              {"pinned", plan.pin},
              {"niceness", ::getpriority(PRIO_PROCESS, 0)},
              {"scheduler", ::sched_getscheduler(0)},
              {"load_average_before", load[0]},
              {"batched_flush_interval_us", plan.flush_interval_us},
              {"results", json::array()}};
  for (const std::uint32_t streams : plan.streams) {
    BULKHEAD_TRY(const std::vector<Series> series, measure(plan, cores, *engine, entries, streams));
    std::printf("\n%-16s %9s  %-22s %-22s %4s  %-22s %-22s %7s %8s  %7s %8s %6s  %s\n",
                (std::to_string(streams) + " streams").c_str(), "tokens/s", "slower, %",
                "in calm turns, %", "", "with prompts, %", "more CPU, %", "TTFT", "p99 ms", "token",
                "p99 ms", "others", "CPU us a token");
    for (const Series& each : series) {
      const json line = to_json(each, streams);
      print(line);
      report["results"].push_back(line);
    }
    for (const Series& each : series) {
      if (each.kind != "http") continue;
      std::printf("%s: %s %.0f %% of the engine's speed\n", each.name.c_str(),
                  verdict(median_interval(each.slower), kLimitPercent), kLimitPercent);
    }
    std::fflush(stdout);
  }
  return bench::write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "What the channel and HTTP take of the bare engine's speed: the same decode by the engine "
      "alone, by a worker\nthrough its channel, and streamed over HTTP"};
  add_model_options(options, plan);
  options
      .add("--tokens", plan.tokens, "generated tokens of each stream in a turn (128; on a CPU 24)")
      .within(8, 1 << 20);
  options.add("--prompt", plan.prompt, "prompt tokens of each stream")
      .within(1, 1 << 20)
      .show_default();
  options
      .add("--streams", plan.streams,
           "streams side by side, one comparison for each number (1,16; on a CPU 1,4)")
      .comma_separated()
      .within(1, 256);
  options
      .add("--repeats", plan.repeats,
           "turns of each variant, each beside one of the engine (15; on a CPU 6)")
      .within(1, 1000);
  options.add("--kinds", plan.kinds, "worker, http")
      .comma_separated()
      .one_of({"worker", "http"})
      .show_default();
  options.add("--transports", plan.transports, "shm, stdio")
      .comma_separated()
      .one_of({"shm", "stdio"})
      .show_default();
  options.add("--flush-tokens", plan.flush, "ipc.flush_tokens, one comparison for each number")
      .comma_separated()
      .within(1, 1024)
      .show_default();
  options
      .add("--flush-interval-us", plan.flush_interval_us,
           "ipc.flush_interval_us where tokens wait for each other")
      .show_default();
  options.add("--rest-ms", plan.rest_ms,
              "after each pair of turns: for what else the machine does, where this has priority");
  options.flag("--pin", plan.pin,
               "the engine (or the worker) on one half of the cores, all else on the other");
  add_json_option(options, plan);
  if (const auto code = options.parse(argc, argv)) return *code;
  return run_program("bench-serving-overhead", [&] {
    const Status status = log::init("warn", "text", "bench-serving-overhead");
    return status.ok() ? run(plan) : status;
  });
}

// bench-recovery measures how long a stream pauses when its worker dies. A stream decodes after a prompt of each
// length, and its worker is killed. The pause is the time from the kill to the first token on the client's socket
// that the worker had not sent before. The daemon's own times (/v1/workers, last_recovery; the same clock) divide the
// pause:
//
//   detect   from the kill until the daemon notices it
//   exit     until its successor may begin: the process is gone and reaped (the kernel and the driver
//            take its memory back), or, with a spare, known to have stopped
//   spawn    until the successor's hello: exec, libraries, sandbox
//   load     until it serves: device, kernels, weights read and packed, or imported
//   replay   until the daemon has the stream's next token: prompt and tokens computed again, or kept
//   client   until the client has it
//
// The column "later" is no part of the pause: it is the stream's longest gap after that token. A successor may send
// one token and then wait for the driver, which still takes back the dead process's memory.
//
// Modes: cold (a new process loads the model), vault (the new process imports what the dead one left in device
// memory), standby (another process is ready already, and takes over the pages). The column "way" shows what was
// done. Each stream's tokens are compared with those of an undisturbed run.
//
// The bystander is a stream of another worker with the same model on the same device. The program reports its longest
// gap in a quiet time before each kill, and in the time from the kill to the recovery.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/program.hpp"
#include "bench/report.hpp"
#include "bench/served_stream.hpp"

namespace {

using namespace bulkhead;         // NOLINT: a program
using namespace bulkhead::bench;  // NOLINT
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{300000};
constexpr std::uint32_t kTokens = 48;      // of a measured stream
constexpr std::uint32_t kFirstKill = 8;    // the first kill comes after at least this many events
constexpr std::uint32_t kEventsAfter = 8;  // how many further events of the bystander count after the recovery
constexpr std::uint32_t kBystanderPrompt = 16, kBystanderTokens = 8000;
constexpr double kShortestQuiet_ms = 500, kLongestQuiet_ms = 5000;
constexpr std::uint32_t kHangTimeout_ms = 1000;

struct Plan {
  std::string model = "builtin", device = "auto", transport = "shm", signal = "kill", json_path;
  std::vector<std::uint32_t> contexts{100, 500, 2000};
  std::vector<std::string> modes{"cold", "vault", "standby"};
  std::vector<std::string> settings;
  int repeats = 5;
  bool bystander = true;
};

// The columns in order, in ms.
constexpr const char* kParts[] = {"total", "detect", "exit",   "spawn",
                                  "load",  "replay", "client", "later"};
using Parts = std::map<std::string, double>;

struct Kill {
  std::string way;
  Parts ms;
};
struct Gaps {
  double quiet_ms = 0, killed_ms = 0;
};

std::string body_of(const char* model, const std::vector<std::uint32_t>& prompt,
                    std::uint32_t tokens) {
  return json{{"model", model},   {"prompt", prompt},   {"max_tokens", tokens},    {"stream", true},
              {"temperature", 0}, {"ignore_eos", true}, {"return_token_ids", true}}
      .dump();
}

std::vector<std::uint32_t> prompt_of(std::uint32_t tokens, std::uint32_t vocabulary) {
  std::vector<std::uint32_t> ids(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i)
    ids[i] = (i * 7919U + 13U) % vocabulary;
  return ids;
}

Result<std::vector<std::uint32_t>> ids_of(const Stream& stream) {
  std::vector<std::uint32_t> ids;
  for (const Event& event : stream.events) {
    if (event.data == "[DONE]") continue;
    const json chunk = json::parse(event.data, nullptr, false);
    if (!chunk.is_object() || chunk.contains("error") || !chunk.contains("choices")) {
      return Error(ErrorCode::kCorrupt, "a stream failed: " + event.data);
    }
    for (const json& choice : chunk["choices"]) {
      if (!choice.contains("token_ids")) continue;
      for (const std::uint32_t id : choice["token_ids"])
        ids.push_back(id);
    }
  }
  return ids;
}

double ms_between(std::uint64_t from_ns, std::uint64_t to_ns) {
  return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) / 1e6;
}

// Returns the longest time between two neighbouring events that overlaps [from, to].
double longest_gap_ms(const Stream& stream, std::uint64_t from_ns, std::uint64_t to_ns) {
  double longest = 0;
  for (std::size_t i = 1; i < stream.events.size(); ++i) {
    const std::uint64_t begin = stream.events[i - 1].at_ns, end = stream.events[i].at_ns;
    if (begin >= from_ns && begin < to_ns) longest = std::max(longest, ms_between(begin, end));
    if (begin < from_ns && end > from_ns) longest = std::max(longest, ms_between(begin, end));
  }
  return longest;
}

class Served {
 public:
  static Result<Served> start(const Plan& plan, const std::string& mode) {
    std::vector<std::string> settings = {
        "models.0.path=" + plan.model,
        "models.0.name=carrier",
        "models.0.device=" + plan.device,
        "ipc.transport=" + plan.transport,
        std::string("isolation.vault=") + (mode == "cold" ? "false" : "true"),
        std::string("isolation.standby=") + (mode == "standby" ? "1" : "0")};
    if (plan.bystander) {
      settings.insert(settings.end(), {"models.1.path=" + plan.model, "models.1.name=bystander",
                                       "models.1.device=" + plan.device});
    }
    if (plan.signal == "stop") {
      settings.push_back("isolation.heartbeat_timeout_ms=" + std::to_string(kHangTimeout_ms));
    }
    settings.insert(settings.end(), plan.settings.begin(), plan.settings.end());
    std::vector<std::string> arguments;
    for (const std::string& setting : settings)
      arguments.insert(arguments.end(), {"--set", setting});
    const std::uint64_t begun = now_ns();
    BULKHEAD_TRY(DaemonProcess daemon, DaemonProcess::start(arguments));
    Served served(std::move(daemon), plan);
    served.standby_ = mode == "standby";
    served.start_ms_ = ms_between(begun, now_ns());
    BULKHEAD_TRY(const json worker, served.quiet_worker());
    served.device_ = worker.value("device", "");
    served.vocabulary_ = worker.value("vocabulary", 0U);
    served.context_ = worker.value("context", 0U);
    if (served.vocabulary_ == 0) return Error(ErrorCode::kCorrupt, "a worker without vocabulary");
    return served;
  }

  // Returns the stream's worker once it serves and, if spares are on, its spare is ready.
  Result<json> quiet_worker() const {
    const std::uint64_t begun = now_ns();
    while (ms_between(begun, now_ns()) < static_cast<double>(kPatience.count())) {
      BULKHEAD_TRY(const json workers, daemon_.workers());
      // The list contains spares, too. After a spare has taken over, a new one appears some time later.
      std::size_t serving = 0, spares = 0, others = 0;
      for (const json& worker : workers) {
        const std::string state = worker.value("state", "");
        ++(state == "ready" ? serving : state == "standby" ? spares : others);
      }
      const bool quiet = others == 0 && spares == (standby_ ? serving : 0);
      if (quiet) return workers[0];
      std::this_thread::sleep_for(milliseconds(20));
    }
    return Error(ErrorCode::kDeadlineExceeded, "the successor did not come to serve");
  }

  Result<std::vector<std::uint32_t>> undisturbed(std::uint32_t context) const {
    BULKHEAD_TRY(const auto streams,
                 stream_completions(daemon_.port(), {measured_request(context)}));
    return ids_of(streams[0]);
  }

  // Measures one death, after `events` events of the stream.
  Result<Kill> kill(std::uint32_t context, std::size_t events,
                    const std::vector<std::uint32_t>& expected) const {
    BULKHEAD_TRY(const json victim, quiet_worker());
    std::uint64_t killed_ns = 0;
    BULKHEAD_TRY(const auto streams,
                 stream_completions(daemon_.port(), {measured_request(context)},
                                    [&](std::size_t, std::size_t seen, std::uint64_t) {
                                      if (seen >= events && killed_ns == 0)
                                        killed_ns = end_worker(victim);
                                      return true;
                                    }));
    BULKHEAD_TRY(const auto ids, ids_of(streams[0]));
    if (ids != expected)
      return Error(ErrorCode::kInternal, "a stream's tokens are others than without the kill");
    return kill_of(streams[0], killed_ns);
  }

  // The other worker streams meanwhile, one stream after another if the context is short. The kill comes after a
  // quiet time.
  Result<Gaps> kill_beside(double quiet_ms) const {
    BULKHEAD_TRY(const json victim, quiet_worker());
    const std::uint32_t tokens = std::min(kBystanderTokens, context_ - kBystanderPrompt - 1);
    const auto prompt = prompt_of(kBystanderPrompt, vocabulary_);
    std::atomic<std::uint64_t> quiet_ns = 0, killed_ns = 0, end_ns = 0;
    std::atomic<std::size_t> seen[2] = {};
    std::size_t at_kill = 0;
    const auto watch = [&](std::size_t which, std::uint64_t at_ns) {
      ++seen[which];
      if (which == 1) return end_ns == 0;
      if (quiet_ns == 0 && std::min(seen[0], seen[1]) >= kFirstKill) quiet_ns = at_ns;
      if (quiet_ns == 0) return true;
      if (killed_ns == 0 && ms_between(quiet_ns, at_ns) >= quiet_ms) {
        at_kill = seen[0];
        killed_ns = end_worker(victim);
      }
      // Some events may already have been on their way.
      if (killed_ns != 0 && seen[0] >= at_kill + 2 * kEventsAfter) end_ns = at_ns;
      return end_ns == 0;
    };
    Stream all[2];
    Status status[2];
    const auto stream_on = [&](std::size_t which, const char* model) {
      while (end_ns == 0 && status[which].ok()) {
        auto streams = stream_completions(
            daemon_.port(), {body_of(model, prompt, tokens)},
            [&](std::size_t, std::size_t, std::uint64_t at_ns) { return watch(which, at_ns); });
        if (!streams.ok()) {
          status[which] = streams.error();
          end_ns = now_ns();
          return;
        }
        auto& events = (*streams)[0].events;
        std::move(events.begin(), events.end(), std::back_inserter(all[which].events));
      }
    };
    std::thread bystander([&] { stream_on(1, "bystander"); });
    stream_on(0, "carrier");
    bystander.join();
    for (const Status& each : status)
      BULKHEAD_RETURN_IF_ERROR(each);
    return Gaps{longest_gap_ms(all[1], quiet_ns, killed_ns),
                longest_gap_ms(all[1], killed_ns, end_ns)};
  }

  const std::string& device() const { return device_; }
  std::uint32_t context() const { return context_; }
  double start_ms() const { return start_ms_; }

 private:
  Served(DaemonProcess daemon, const Plan& plan) : daemon_(std::move(daemon)), plan_(plan) {}

  std::string measured_request(std::uint32_t context) const {
    return body_of("carrier", prompt_of(context, vocabulary_), kTokens);
  }

  std::uint64_t end_worker(const json& worker) const {
    const auto pid = worker["pid"].get<pid_t>();
    const std::uint64_t at_ns = now_ns();
    if (pid > 1) ::kill(pid, plan_.signal == "stop" ? SIGSTOP : SIGKILL);
    return at_ns;
  }

  Result<Kill> kill_of(const Stream& stream, std::uint64_t killed_ns) const {
    BULKHEAD_TRY(const json worker, quiet_worker());
    const json& times = worker["last_recovery"];
    if (!times.is_object() || !times["noticed_at_ns"].is_number() ||
        !times["resumed_at_ns"].is_number()) {
      return Error(ErrorCode::kCorrupt,
                   "the stream ended before its worker was killed, or nothing was carried over: " +
                       times.dump());
    }
    const auto noticed_ns = times["noticed_at_ns"].get<std::uint64_t>();
    const auto resumed_ns = times["resumed_at_ns"].get<std::uint64_t>();
    const auto next = std::ranges::find_if(
        stream.events, [&](const Event& event) { return event.at_ns >= resumed_ns; });
    if (next == stream.events.end() || noticed_ns < killed_ns) {
      return Error(ErrorCode::kCorrupt, "last_recovery is another's: " + times.dump());
    }
    const auto part = [&](const char* name) {
      return times[name].is_number() ? times[name].get<double>() : 0;
    };
    Kill kill;
    kill.way = times.value("way", "");
    kill.ms = {{"total", ms_between(killed_ns, next->at_ns)},
               {"detect", ms_between(killed_ns, noticed_ns)},
               {"exit", part("exit_ms")},
               {"spawn", part("spawn_ms")},
               {"load", part("load_ms")},
               {"replay", part("replay_ms")},
               {"client", ms_between(resumed_ns, next->at_ns)},
               {"later", longest_gap_ms(stream, next->at_ns, stream.events.back().at_ns)}};
    return kill;
  }

  DaemonProcess daemon_;
  const Plan& plan_;
  std::string device_;
  std::uint32_t vocabulary_ = 0, context_ = 0;
  double start_ms_ = 0;
  bool standby_ = false;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

json figures_of(const std::vector<double>& values) {
  return {{"p50_ms", median(values)}, {"max_ms", *std::ranges::max_element(values)}};
}

Status run_mode(const Plan& plan, const std::string& mode, json& report) {
  BULKHEAD_TRY(const Served served, Served::start(plan, mode));
  report["device"] = served.device();
  std::vector<double> totals;
  for (const std::uint32_t context : plan.contexts) {
    if (context + kTokens > served.context()) {
      std::printf("%-8s %7u  the model's context is %u\n", mode.c_str(), context, served.context());
      continue;
    }
    BULKHEAD_TRY(const auto expected, served.undisturbed(context));
    std::map<std::string, std::vector<double>> parts;
    std::string way;
    for (int i = 0; i < plan.repeats; ++i) {
      const std::size_t events = kFirstKill + static_cast<std::size_t>(i) * 5 % 24;
      BULKHEAD_TRY(const Kill kill, served.kill(context, events, expected));
      if (way.find(kill.way) == std::string::npos) way += (way.empty() ? "" : ", ") + kill.way;
      for (const char* name : kParts)
        parts[name].push_back(kill.ms.at(name));
    }
    totals.insert(totals.end(), parts["total"].begin(), parts["total"].end());
    json line{{"mode", mode},
              {"way", way},
              {"context", context},
              {"kills", plan.repeats},
              {"daemon_start_ms", served.start_ms()}};
    std::printf("%-8s %7u  %-9s", mode.c_str(), context, way.c_str());
    for (const char* name : kParts) {
      line[name] = figures_of(parts[name]);
      std::printf(" %9.1f", median(parts[name]));
      if (name == kParts[0]) std::printf(" %9.1f", line[name]["max_ms"].get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
    report["results"].push_back(std::move(line));
  }
  if (!plan.bystander || totals.empty()) return {};

  const double quiet_ms = std::clamp(median(totals) * 1.5, kShortestQuiet_ms, kLongestQuiet_ms);
  std::vector<double> quiet, killed, more;
  for (int i = 0; i < plan.repeats; ++i) {
    auto gaps = served.kill_beside(quiet_ms);
    if (!gaps.ok()) {
      std::printf("%-8s bystander: %s\n", mode.c_str(), gaps.error().message().c_str());
      return {};
    }
    quiet.push_back(gaps->quiet_ms);
    killed.push_back(gaps->killed_ms);
    more.push_back(gaps->killed_ms - gaps->quiet_ms);
  }
  std::printf(
      "%-8s bystander: longest gap %.1f ms (quiet for %.0f ms: %.1f ms), at most %.1f ms more with "
      "a "
      "kill next door\n",
      mode.c_str(), *std::ranges::max_element(killed), quiet_ms, *std::ranges::max_element(quiet),
      *std::ranges::max_element(more));
  std::fflush(stdout);
  report["bystander"].push_back({{"mode", mode},
                                 {"quiet_for_ms", quiet_ms},
                                 {"gap_quiet", figures_of(quiet)},
                                 {"gap_killed", figures_of(killed)},
                                 {"more", figures_of(more)}});
  return {};
}

Status run(const Plan& plan) {
  double load[3] = {};
  ::getloadavg(load, 3);
  json report{{"benchmark", "recovery"},
              {"model", plan.model},
              {"signal", plan.signal},
              {"transport", plan.transport},
              {"cpus_online", ::sysconf(_SC_NPROCESSORS_ONLN)},
              {"load_average_before", load[0]},
              {"results", json::array()},
              {"bystander", json::array()}};
  std::printf("From %s to the next token, medians in ms (max: the longest total)\n",
              plan.signal == "stop" ? "SIGSTOP" : "SIGKILL");
  std::printf("%-8s %7s  %-9s", "mode", "context", "way");
  for (const char* name : kParts) {
    std::printf(" %9s", name);
    if (name == kParts[0]) std::printf(" %9s", "max");
  }
  std::printf("\n");
  for (const std::string& mode : plan.modes)
    BULKHEAD_RETURN_IF_ERROR(run_mode(plan, mode, report));
  std::printf("%s\n", report.value("device", "").c_str());
  return bench::write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "From a worker's death to the next token of its stream, on the client's socket: how long, "
      "and "
      "which part\ntakes how much"};
  bench::add_model_options(options, plan);
  options.add("--context", plan.contexts, "tokens of the prompt, one row for each")
      .comma_separated()
      .within(1, 1 << 20)
      .show_default();
  options.add("--modes", plan.modes, "cold, vault, standby")
      .comma_separated()
      .one_of({"cold", "vault", "standby"})
      .show_default();
  options.add("--repeats", plan.repeats, "kills for each row").within(1, 1000).show_default();
  options.add("--transport", plan.transport, "shm or stdio")
      .one_of({"shm", "stdio"})
      .show_default();
  options.add("--signal", plan.signal, "kill; or stop: a hang, with a heartbeat timeout of 1000 ms")
      .one_of({"kill", "stop"})
      .show_default();
  options.flag("!--no-bystander", plan.bystander, "no second worker with a stream of its own");
  options.add("--set", plan.settings, "a setting of the daemon, key=value").repeated();
  bench::add_json_option(options, plan);
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-recovery", [&] { return run(plan); });
}

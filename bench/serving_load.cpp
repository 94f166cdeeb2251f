// bench-serving-load measures what clients of a bulkheadd see, and what its worker's GPU layer does meanwhile.
//
//   bench-serving-load --model FILE [--device SELECTOR] [--streams 1,8] [--prompt 128] [--tokens 128]
//                      [--requests 4] [--set key=value]... [--baseline] [--json FILE]
//   bench-serving-load --model FILE --minutes 10 [--streams 16] ...
//   bench-serving-load --peer http://HOST:PORT [--peer-model NAME] [--vocabulary N] [--streams 1,8] ...
//
// Each client sends a request over a connection of its own, reads the stream to its end, and sends the next.
// Without --minutes all requests are alike, and the program reports rates, times to the first token, memory and
// the device's busy share for each number of clients; bench/compare sets two such files side by side. With
// --minutes the load is mixed (prompts and answers of all lengths, greedy, drawn, with log-probabilities or
// penalties) and lasts that many minutes. Then the program compares the pool's hit rate, the share of copies
// that ran beside compute, the ring's reuse rate and the fallback allocations with what they should be. With
// --peer the program sends the same requests to another server, which runs already, and reports only what
// clients see. The other server must accept prompts of token ids, and must generate as many tokens as a request
// asks for (ignore_eos).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/program.hpp"
#include "bench/report.hpp"
#include "bench/served_stream.hpp"

namespace {

using namespace bulkhead;         // NOLINT: a program
using namespace bulkhead::bench;  // NOLINT
using nlohmann::json;

// The worker reports once a second; a report that comes after this time holds everything before.
constexpr std::chrono::milliseconds kReported{2200};

struct Plan {
  std::string model = "builtin", device = "auto", json_path;
  std::vector<std::string> assignments;
  std::vector<std::uint32_t> streams;
  std::uint32_t prompt = 128, tokens = 128, requests = 4, context = 0;
  double minutes = 0;
  bool baseline = false;
  std::string peer, peer_model;
  std::uint32_t vocabulary = 0;  // 0: the model's
};

struct Request {
  std::string body;
  std::uint32_t tokens = 0;  // the number of tokens that the request asks for
};
std::vector<std::uint32_t> made_up(std::mt19937& random, std::uint32_t count,
                                   std::uint32_t vocabulary) {
  std::vector<std::uint32_t> ids(count);
  for (std::uint32_t& id : ids)
    id = random() % vocabulary;
  return ids;
}

Request plain_request(const Plan& plan, std::mt19937& random, std::uint32_t vocabulary) {
  json body{{"prompt", made_up(random, plan.prompt, vocabulary)},
            {"max_tokens", plan.tokens},
            {"temperature", 0},
            {"ignore_eos", true},
            {"stream", true},
            {"stream_options", {{"include_usage", true}}}};
  if (plan.peer.empty()) body["return_token_ids"] = true;
  if (!plan.peer_model.empty()) body["model"] = plan.peer_model;
  return {body.dump(), plan.tokens};
}

// Makes a request whose lengths are even on a logarithmic scale. Of ten requests, six are greedy, three are drawn,
// and one asks for what only the host can do.
Request mixed_request(std::mt19937& random, std::uint32_t vocabulary, std::uint32_t context) {
  const auto length = [&random](double least, double most) {
    const double at = std::generate_canonical<double, 32>(random);
    return static_cast<std::uint32_t>(least * std::pow(std::max(most / least, 1.0), at));
  };
  const std::uint32_t tokens = length(8, std::min(context / 4.0, 512.0));
  const std::uint32_t prompt = length(4, std::min(context / 2.0, 1024.0));
  json body{{"prompt", made_up(random, prompt, vocabulary)},
            {"max_tokens", tokens},
            {"temperature", 0},
            {"ignore_eos", true},
            {"stream", true},
            {"return_token_ids", true}};
  const std::uint32_t kind = random() % 10;
  if (kind >= 6 && kind < 9) {
    body["temperature"] = 0.8;
    body["top_p"] = kind == 6 ? 0.9 : 1.0;
    body["top_k"] = kind == 7 ? 40 : 0;
    body["seed"] = random();
  } else if (kind == 9) {
    if (random() % 2 == 0) {
      body["logprobs"] = 2;
    } else {
      body["frequency_penalty"] = 0.5;
    }
  }
  return {body.dump(), tokens};
}

// What all clients saw together.
struct Seen {
  std::mutex mutex;
  std::vector<double> ttft_ms, gaps_ms;
  std::uint64_t requests = 0, tokens = 0;
  Status failed;
};

// The number of tokens that a stream brought, and the times of the first and the last.
struct Told {
  std::uint64_t tokens = 0, first_ns = 0, last_ns = 0;
};

// A server that sends no token ids sends their number at the end; its first chunk has the first token.
Result<Told> told_by(const Stream& stream) {
  Told told;
  std::uint64_t counted = 0;
  for (const Event& event : stream.events) {
    if (event.data == "[DONE]") break;
    const json chunk = json::parse(event.data, nullptr, false);
    if (!chunk.is_object() || !chunk.contains("choices"))
      return Error(ErrorCode::kInternal, "an event is not a chunk: " + event.data);
    for (const json& choice : chunk["choices"]) {
      const std::size_t ids = choice.value("token_ids", json::array()).size();
      const bool text = choice.contains("text") && choice["text"].is_string() &&
                        !choice["text"].get_ref<const std::string&>().empty();
      if (ids == 0 && !text) continue;
      if (told.first_ns == 0) told.first_ns = event.at_ns;
      told.last_ns = event.at_ns;
      told.tokens += ids;
    }
    if (chunk.contains("usage") && chunk["usage"].is_object())
      counted = chunk["usage"].value("completion_tokens", std::uint64_t{0});
  }
  if (told.tokens == 0) told.tokens = counted;
  return told;
}

Status send_one(const Endpoint& server, const Request& request, Seen& seen) {
  BULKHEAD_TRY(const std::vector<Stream> streams, stream_completions(server, {request.body}));
  BULKHEAD_TRY(const Told told, told_by(streams[0]));
  const auto [tokens, first_ns, last_ns] = told;
  if (tokens != request.tokens) {
    return Error(ErrorCode::kInternal, "a stream of " + std::to_string(tokens) + " tokens where " +
                                           std::to_string(request.tokens) + " were asked for");
  }
  const std::lock_guard lock(seen.mutex);
  ++seen.requests;
  seen.tokens += tokens;
  seen.ttft_ms.push_back(static_cast<double>(first_ns - streams[0].sent_ns) / 1e6);
  if (tokens > 1)
    seen.gaps_ms.push_back(static_cast<double>(last_ns - first_ns) / 1e6 /
                           static_cast<double>(tokens - 1));
  return {};
}

// Runs this many clients. Each sends the requests that `next` returns, until there are no more.
void run_clients(const Endpoint& server, std::uint32_t clients, Seen& seen,
                 const std::function<bool(std::uint32_t client, std::mt19937&, Request&)>& next) {
  std::vector<std::thread> threads;
  std::atomic<bool> stop = false;
  for (std::uint32_t client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      std::mt19937 random(client * 7919 + 17);
      Request request;
      while (!stop && next(client, random, request)) {
        Status status;
        try {
          status = send_one(server, request, seen);
        } catch (const std::exception& error) {
          status = Error(ErrorCode::kInternal, error.what());
        }
        if (status.ok()) continue;
        stop = true;
        const std::lock_guard lock(seen.mutex);
        if (seen.failed.ok()) seen.failed = status;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

Result<json> first_worker(const DaemonProcess& daemon) {
  BULKHEAD_TRY(const std::string body, daemon.get("/v1/workers"));
  json workers = json::parse(body, nullptr, false);
  if (!workers.is_array() || workers.empty() || !workers[0].is_object())
    return Error(ErrorCode::kCorrupt, "/v1/workers names no worker: " + body);
  return workers[0];
}

double figure(const json& worker, const char* part, const char* name) {
  return worker.value("gpu", json::object()).value(part, json::object()).value(name, 0.0);
}

// Returns the most host memory that a process has had, in bytes; 0 if it can't be read.
std::uint64_t peak_memory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

double percentile(std::vector<double>& values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = std::ceil(part * static_cast<double>(values.size())) - 1;
  return values[static_cast<std::size_t>(std::max(at, 0.0))];
}

double share(double part, double whole, double of_nothing) {
  return whole > 0 ? part / whole : of_nothing;
}

// Returns what the GPU layer did between two reports.
json gpu_between(const json& before, const json& after, double seconds) {
  const auto delta = [&](const char* part, const char* name) {
    return figure(after, part, name) - figure(before, part, name);
  };
  const double acquires = delta("memory_pool", "acquires");
  const double transfer = delta("blit_queue", "transfer_seconds");
  const double submissions = delta("command_buffer_ring", "submissions");
  return {
      {"busy_share", share(delta("device", "busy_seconds"), seconds, 0)},
      // If nobody asked the pool, it served from what it had given at the start.
      {"pool_acquires", acquires},
      {"pool_hit_rate", acquires > 0 ? delta("memory_pool", "hits") / acquires
                                     : figure(after, "memory_pool", "hit_rate")},
      {"pool_fallback_allocations", delta("memory_pool", "fallback_allocations")},
      {"blit_transfer_seconds", transfer},
      {"blit_overlap", share(delta("blit_queue", "overlapped_seconds"), transfer, 0)},
      {"ring_submissions", submissions},
      {"ring_reuse_rate", share(delta("command_buffer_ring", "replays"), submissions, 0)},
      {"device_memory_bytes_peak", figure(after, "device", "allocated_bytes_peak")},
  };
}

json to_json(Seen& seen, std::uint32_t clients, double seconds) {
  return {{"streams", clients},
          {"requests", seen.requests},
          {"tokens", seen.tokens},
          {"seconds", seconds},
          {"requests_per_s", static_cast<double>(seen.requests) / seconds},
          {"tokens_per_s", static_cast<double>(seen.tokens) / seconds},
          {"ttft_p50_ms", percentile(seen.ttft_ms, 0.5)},
          {"ttft_p95_ms", percentile(seen.ttft_ms, 0.95)},
          {"ttft_p99_ms", percentile(seen.ttft_ms, 0.99)},
          {"inter_token_p50_ms", percentile(seen.gaps_ms, 0.5)},
          {"inter_token_p99_ms", percentile(seen.gaps_ms, 0.99)}};
}

// ---- the figures of a mixed load, and their targets ----

struct Target {
  const char* name;
  const char* words;
  double wanted;
  bool at_most;
};
constexpr Target kTargets[] = {
    {"pool_hit_rate", "pool hit rate", 0.95, false},
    {"blit_overlap", "copies beside compute", 0.80, false},
    {"ring_reuse_rate", "ring reuse rate", 0.90, false},
    {"pool_fallback_allocations", "allocations past the pool", 0, true},
};

json verdicts(const json& gpu) {
  json all = json::array();
  for (const Target& target : kTargets) {
    const double value = gpu.value(target.name, 0.0);
    // Without timestamps of copies, the overlap is not known.
    const bool unknown = target.name == std::string_view("blit_overlap") &&
                         gpu.value("blit_transfer_seconds", 0.0) <= 0;
    const bool met = target.at_most ? value <= target.wanted : value > target.wanted;
    const char* const verdict = unknown ? "not measurable on this device" : met ? "met" : "missed";
    std::printf("  %-28s %8.4f   wanted %s %g   %s\n", target.words, value,
                target.at_most ? "at most" : "over", target.wanted, verdict);
    all.push_back(
        {{"name", target.name}, {"value", value}, {"wanted", target.wanted}, {"verdict", verdict}});
  }
  return all;
}

// Lets each client make one request that is not counted.
Status warm_up(const Plan& plan, const Endpoint& server, std::uint32_t clients,
               std::uint32_t vocabulary) {
  Seen warm;
  run_clients(server, clients, warm,
              [&, sent = std::vector<std::uint8_t>(clients)](
                  std::uint32_t client, std::mt19937& random, Request& request) mutable {
                if (sent[client] != 0) return false;
                sent[client] = 1;
                request = plain_request(plan, random, vocabulary);
                return true;
              });
  return warm.failed;
}

// Lets each client send plan.requests requests of the same kind. Returns how long all of them took, in seconds.
Result<double> run_alike(const Plan& plan, const Endpoint& server, std::uint32_t clients,
                         std::uint32_t vocabulary, Seen& seen) {
  const std::uint64_t start = now_ns();
  std::vector<std::uint32_t> sent(clients);
  run_clients(server, clients, seen,
              [&](std::uint32_t client, std::mt19937& random, Request& request) {
                if (sent[client]++ == plan.requests) return false;
                random.discard(1);  // skips the warm-up's prompt
                request = plain_request(plan, random, vocabulary);
                return true;
              });
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  BULKHEAD_RETURN_IF_ERROR(seen.failed);
  return seconds;
}

Result<double> run_mixed(const Plan& plan, const Endpoint& server, std::uint32_t clients,
                         std::uint32_t vocabulary, std::uint32_t context, Seen& seen) {
  const std::uint64_t start = now_ns();
  const auto end = start + static_cast<std::uint64_t>(plan.minutes * 60e9);
  run_clients(server, clients, seen, [&](std::uint32_t, std::mt19937& random, Request& request) {
    if (now_ns() >= end) return false;
    request = mixed_request(random, vocabulary, context);
    return true;
  });
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  BULKHEAD_RETURN_IF_ERROR(seen.failed);
  return seconds;
}

void print_clients(const json& result, std::uint32_t clients) {
  std::printf(
      "%3u clients: %5llu requests, %7.2f requests/s %9.1f tokens/s   first token p50 %.2f p95 "
      "%.2f p99 %.2f ms",
      clients, static_cast<unsigned long long>(result["requests"].get<std::uint64_t>()),
      result["requests_per_s"].get<double>(), result["tokens_per_s"].get<double>(),
      result["ttft_p50_ms"].get<double>(), result["ttft_p95_ms"].get<double>(),
      result["ttft_p99_ms"].get<double>());
}

Status measure_peer(const Plan& plan, json& report) {
  BULKHEAD_TRY(const Endpoint server, parse_endpoint(plan.peer));
  constexpr std::uint32_t kAnyVocabulary = 30000;
  const std::uint32_t vocabulary = plan.vocabulary != 0 ? plan.vocabulary : kAnyVocabulary;
  report["vocabulary"] = vocabulary;
  for (const std::uint32_t clients : plan.streams) {
    BULKHEAD_RETURN_IF_ERROR(warm_up(plan, server, clients, vocabulary));
    Seen seen;
    BULKHEAD_TRY(const double seconds, run_alike(plan, server, clients, vocabulary, seen));
    json result = to_json(seen, clients, seconds);
    print_clients(result, clients);
    std::printf("\n");
    std::fflush(stdout);
    report["results"].push_back(std::move(result));
  }
  return {};
}

Status measure(const Plan& plan, const DaemonProcess& daemon, json& report) {
  BULKHEAD_TRY(const json worker, first_worker(daemon));
  const auto vocabulary = plan.vocabulary != 0 ? plan.vocabulary : worker.value("vocabulary", 0U);
  report["vocabulary"] = vocabulary;
  const auto context = worker.value("context", 0U);
  if (vocabulary == 0) return Error(ErrorCode::kCorrupt, "/v1/workers names no vocabulary");
  report["device"] = worker.value("device", "");
  report["load_ms"] = worker.value("load_ms", 0.0);
  report["weight_bytes"] = worker.value("weight_bytes", std::uint64_t{0});
  report["numerics_id"] = worker.value("numerics_id", "");
  for (const json& part : worker.value("optimizations", json::array()))
    report["parts"][part.value("name", "")] = part.value("active", false);
  std::printf("%s, %s\n", report["device"].get<std::string>().c_str(), plan.model.c_str());

  for (const std::uint32_t clients : plan.streams) {
    BULKHEAD_RETURN_IF_ERROR(warm_up(plan, daemon.port(), clients, vocabulary));
    std::this_thread::sleep_for(kReported);
    BULKHEAD_TRY(const json before, first_worker(daemon));
    Seen seen;
    BULKHEAD_TRY(const double seconds,
                 plan.minutes > 0
                     ? run_mixed(plan, daemon.port(), clients, vocabulary, context, seen)
                     : run_alike(plan, daemon.port(), clients, vocabulary, seen));
    std::this_thread::sleep_for(kReported);
    BULKHEAD_TRY(const json after, first_worker(daemon));
    if (after.value("restarts", 0) != 0)
      return Error(ErrorCode::kUnavailable, "the worker was restarted meanwhile");
    json result = to_json(seen, clients, seconds);
    result["gpu"] = gpu_between(before, after, seconds);
    BULKHEAD_TRY(const pid_t pid, daemon.worker_pid());
    result["worker_memory_bytes_peak"] = peak_memory(pid);
    print_clients(result, clients);
    std::printf("   device busy %.1f %%, memory %.2f GB\n",
                100 * result["gpu"]["busy_share"].get<double>(),
                result["gpu"]["device_memory_bytes_peak"].get<double>() / 1e9);
    if (plan.minutes > 0) result["verdicts"] = verdicts(result["gpu"]);
    std::fflush(stdout);
    report["results"].push_back(std::move(result));
  }
  return {};
}

Status run_peer(const Plan& plan) {
  json report{{"benchmark", "serving-load"},
              {"peer", plan.peer},
              {"model", plan.model},
              {"prompt", plan.prompt},
              {"tokens", plan.tokens},
              {"requests", plan.requests},
              {"minutes", 0},
              {"results", json::array()}};
  std::printf("%s\n", plan.peer.c_str());
  BULKHEAD_RETURN_IF_ERROR(measure_peer(plan, report));
  return write_report(plan.json_path, report);
}

Status run(const Plan& plan) {
  if (!plan.peer.empty()) return run_peer(plan);
  const std::uint32_t most = *std::max_element(plan.streams.begin(), plan.streams.end());
  std::vector<std::string> arguments;
  const auto set = [&](const std::string& assignment) {
    arguments.insert(arguments.end(), {"--set", assignment});
  };
  set("models.0.path=" + plan.model);
  set("models.0.device=" + plan.device);
  const std::uint32_t context =
      plan.context != 0 ? plan.context
                        : (plan.minutes > 0 ? 0 : std::max(plan.prompt + plan.tokens, 64U));
  if (context != 0) set("models.0.context=" + std::to_string(context));
  set("engine.max_batch=" + std::to_string(most));
  set("engine.prefix_cache=false");
  if (plan.baseline) set("gpu_optimizations.enabled=false");
  for (const std::string& assignment : plan.assignments)
    set(assignment);
  const std::uint64_t start = now_ns();
  BULKHEAD_TRY(const DaemonProcess daemon, DaemonProcess::start(arguments));
  const double ready = static_cast<double>(now_ns() - start) / 1e9;
  json report{
      {"benchmark", "serving-load"},  {"model", plan.model},       {"prompt", plan.prompt},
      {"tokens", plan.tokens},        {"requests", plan.requests}, {"minutes", plan.minutes},
      {"settings", plan.assignments}, {"baseline", plan.baseline}, {"ready_s", ready},
      {"parts", json::object()},      {"results", json::array()}};
  std::printf("ready after %.2f s\n", ready);
  const Status measured = measure(plan, daemon, report);
  if (!measured.ok()) return measured;
  return write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "Concurrent clients of a bulkheadd: rates, times to the first token, memory, and what the "
      "GPU "
      "layer did"};
  bench::add_model_options(options, plan);
  options
      .add("--streams", plan.streams,
           "clients side by side, one run for each number; 1,8 if left out, 16 with --minutes")
      .comma_separated()
      .within(1, 256);
  options.add("--prompt", plan.prompt, "prompt tokens of each request")
      .within(1, 1 << 20)
      .show_default();
  options.add("--tokens", plan.tokens, "generated tokens of each request")
      .within(2, 1 << 20)
      .show_default();
  options.add("--requests", plan.requests, "requests of each client, one after another")
      .within(1, 1 << 20)
      .show_default();
  options.add("--context", plan.context, "models.0.context; left out: what is needed");
  options.add("--minutes", plan.minutes, "a mixed load for so long, and verdicts on it")
      .within(0.01, 1e4);
  options.add("--set", plan.assignments, "a setting of the daemon's, key=value").repeated();
  options.flag("--baseline", plan.baseline, "gpu_optimizations.enabled=false");
  options.add("--peer", plan.peer,
              "http://HOST:PORT of another server, which gets the requests; no daemon is started");
  options.add("--peer-model", plan.peer_model, "the model's name there, if it asks for one");
  options
      .add("--vocabulary", plan.vocabulary,
           "prompts have token ids below this (the model's; 30000 with --peer)")
      .within(1, 1 << 20);
  bench::add_json_option(options, plan);
  if (const auto code = options.parse(argc, argv)) return *code;
  if (plan.streams.empty())
    plan.streams =
        plan.minutes > 0 ? std::vector<std::uint32_t>{16} : std::vector<std::uint32_t>{1, 8};
  return bench::run_program("bench-serving-load", [&] { return run(plan); });
}

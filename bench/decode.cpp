// How fast a model prefills and decodes on the executor, and how near that comes to reading the
// weights at the device's own speed. No daemon and no text: token ids are made up. The steps are the
// engine's own: planned by its scheduler, as many in flight as the executor takes, tokens handed on
// by the device.
//
//   bench-decode --model FILE [--device SELECTOR] [--streams 1,4,16,32] [--depths 0,2048] [--prompt 512]
//                [--tokens 128] [--draft-accuracy 0.8] [--set gpu_optimizations.memory_pool.enabled=false]... [--json FILE] [--profile]
//
// For each depth and number of streams: sequences with `depth` tokens behind them get a prompt
// (prefill rate: prompt tokens a second), then all generate side by side (decode rate).
//
// With --draft-accuracy each run is made twice: the first records the answers, the second guesses them,
// wrong as often as it is told to be, so what speculation gains can be measured with any weights. The
// tokens must be the same.
//
// With --check-memory N it measures what it costs to compare KV pages and weights with checksums
// (worker/engine/page_guard.hpp): it makes N pairs of runs, each pair without and then with the checks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/device_speed.hpp"
#include "bench/paired.hpp"
#include "bench/report.hpp"
#include "config/base/program_options.hpp"
#include "config/config.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "worker/engine/page_guard.hpp"
#include "worker/engine/scheduler.hpp"
#include "worker/engine/speculator.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Plan {
  std::string model = "builtin", device = "auto", json_path, cache_folder, kv_type = "f16";
  std::vector<std::uint32_t> streams, depths{0};
  std::vector<std::string> assignments;
  std::uint32_t prompt = 0, tokens = 0;
  std::uint32_t chunk = 0;  // 0: as engine.prefill_chunk and prefill_chunk_alone say
  bool profile = false, baseline = false;
  double draft_accuracy = -1;  // less than 0: no speculation
  std::uint32_t check_pairs = 0;
};

// What was left out: seconds of work for the device that it is.
void complete(Plan& plan, const gpu::Device& device) {
  const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
  if (plan.streams.empty())
    plan.streams =
        cpu ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>{1, 4, 16, 32};
  if (plan.prompt == 0) plan.prompt = cpu ? 64 : 512;
  if (plan.tokens == 0) plan.tokens = cpu ? 32 : 128;
}

engine::TokenId made_up(std::uint32_t stream, std::uint32_t position, std::uint32_t vocabulary) {
  return (stream * 7919 + position * 104729 + 17) % vocabulary;
}

// Steps that one stream takes more than another while all prompts come in.
std::uint32_t skew(const config::EngineSettings& engine, std::uint32_t streams,
                   std::uint32_t prompt) {
  return streams * ((prompt + engine.prefill_chunk - 1) / engine.prefill_chunk) + 8;
}

// What a run needs of each stream.
struct Room {
  std::uint32_t prompt = 0, length = 0;  // tokens: with those behind it, and in all
};

// If a prompt and its answer do not fit the model's context together, the prompt is cut until they
// do. Guesses let one stream run ahead of another.
Room room_of(const Plan& plan, const config::EngineSettings& engine, std::uint32_t streams,
             std::uint32_t depth, std::uint32_t context) {
  const std::uint32_t prompt = depth + plan.prompt;
  const std::uint32_t ahead = plan.draft_accuracy < 0 ? 0 : plan.tokens + engine::kMostDrafts;
  const std::uint32_t after =
      plan.tokens + ahead + (streams > 1 ? skew(engine, streams, prompt) : 8);
  const std::uint32_t most = context > after ? std::max(context - after, depth + 1) : depth + 1;
  return {std::min(prompt, most), std::min(prompt, most) + after};
}
// Whether finished pages go into the prefix cache, and whether they and the weights are checked.
enum class Pages : std::uint8_t { kForgotten, kCached, kChecked };

constexpr std::chrono::seconds kCheckMemory{config::IsolationSettings{}.check_memory_s};

// The engine's turns without the engine.
class Loop {
 public:
  Loop(engine::Executor& executor, std::uint32_t streams, const config::EngineSettings& engine,
       engine::Speculation speculation, Pages pages)
      : executor_(executor),
        speculator_(speculation),
        scheduler_(executor.limits(), {streams, engine.prefill_chunk, pages != Pages::kForgotten,
                                       engine.prefill_chunk_alone}) {
    if (pages != Pages::kChecked) return;
    guard_ = std::make_unique<engine::PageGuard>(executor, scheduler_.pool(), kCheckMemory,
                                                 [] { return Clock::now(); });
    scheduler_.set_ledger(guard_.get());
  }
  ~Loop() {
    for (auto& sequence : sequences_)
      scheduler_.remove(*sequence);
  }

  void add(std::uint32_t stream, std::uint32_t prompt, std::uint32_t most) {
    auto& sequence = *sequences_.emplace_back(std::make_unique<engine::DraftedSequence>());
    sequence.most_tokens = most;
    sequence.tokens.reserve(most);
    for (std::uint32_t i = 0; i < prompt; ++i)
      sequence.tokens.push_back(made_up(stream, i, executor_.limits().vocabulary));
    scheduler_.add(sequence);
  }
  void guess(std::size_t stream, std::vector<engine::TokenId> recorded, double accuracy) {
    engine::Speculator::start(*sequences_[stream],
                              std::make_unique<engine::RecordedSource>(
                                  std::move(recorded), accuracy, executor_.limits().vocabulary));
  }
  // Submits what can be, and ends a step. The tokens that it gave.
  Result<std::uint32_t> turn() {
    while (scheduler_.in_flight() < executor_.limits().steps_in_flight) {
      speculator_.propose(scheduler_);
      const engine::Step* const step = scheduler_.plan();
      if (step == nullptr) break;
      if (guard_ != nullptr) BULKHEAD_RETURN_IF_ERROR(guard_->start(++submitted_));
      BULKHEAD_RETURN_IF_ERROR(executor_.submit(*step));
    }
    if (scheduler_.in_flight() == 0) return Error(ErrorCode::kInternal, "nothing left to compute");
    return end_one();
  }
  Status end_all() {
    while (scheduler_.in_flight() > 0)
      BULKHEAD_RETURN_IF_ERROR(end_one());
    if (guard_ == nullptr) return {};
    BULKHEAD_TRY(const auto damaged, guard_->collect(engine::PageGuard::kAll));
    return damaged.empty() ? Status() : Error(ErrorCode::kInternal, "damaged KV pages");
  }
  const std::vector<std::unique_ptr<engine::DraftedSequence>>& sequences() const {
    return sequences_;
  }
  const engine::Speculator::Figures& drafts() const { return speculator_.figures(); }

 private:
  Result<std::uint32_t> end_one() {
    BULKHEAD_TRY(const auto outputs, executor_.wait());
    if (guard_ != nullptr) BULKHEAD_RETURN_IF_ERROR(guard_->collect(++ended_));
    scheduler_.complete();
    engine::Speculator::Ended ended;
    for (const engine::ColumnOutput& output : outputs) {
      auto& sequence =
          static_cast<engine::DraftedSequence&>(*scheduler_.sequence_of(output.column));
      const bool right = scheduler_.confirm(output.column);
      const bool draft = scheduler_.is_draft(output.column);
      ++(draft ? ended.drafts : ended.own);
      if (draft) speculator_.checked(sequence, right);
      if (!right) continue;
      sequence.tokens.push_back(output.best);
      engine::Speculator::appended(sequence);
      ++ended.tokens;
    }
    const Clock::time_point now = Clock::now();
    ended.took = now - std::exchange(ended_at_, now);
    bool generates = true;
    for (const engine::Scheduler::Member& member : scheduler_.members())
      generates = generates && member.columns == 1 && member.outputs == 1;
    if (generates) speculator_.ended(ended);
    return ended.tokens;
  }

  engine::Executor& executor_;
  engine::Speculator speculator_;
  engine::Scheduler scheduler_;
  std::unique_ptr<engine::PageGuard> guard_;
  std::uint64_t submitted_ = 0, ended_ = 0;
  Clock::time_point ended_at_ = Clock::now();  // the last step
  std::vector<std::unique_ptr<engine::DraftedSequence>> sequences_;
};

// The figures that sum up what the host, or the device, spent on what.
std::map<std::string, double> host_seconds(const engine::Executor& executor) {
  constexpr std::string_view kSummed[] = {
      "pool_allocation_seconds", "pool_release_seconds", "plan_seconds",
      "ring_recording_seconds",  "ring_submit_seconds",  "ring_wait_microseconds",
      "blit_sync_wait_seconds",  "gpu_busy_seconds",     "gpu_idle_seconds"};
  std::map<std::string, double> sums;
  for (const auto& each : executor.counters()) {
    if (std::find(std::begin(kSummed), std::end(kSummed), each.name) == std::end(kSummed)) continue;
    const bool microseconds = each.name.ends_with("_microseconds");
    sums[each.name.substr(0, each.name.rfind('_'))] = each.value * (microseconds ? 1e-6 : 1);
  }
  return sums;
}

using Recorded = std::vector<std::vector<engine::TokenId>>;  // by stream

// `record`: where to leave the streams' tokens. `guesses`: what to speculate on; empty: nothing.
Result<nlohmann::json> measure(forward::Transformer& executor, const Plan& plan,
                               const config::EngineSettings& engine, std::uint32_t streams,
                               std::uint32_t depth, double bandwidth, Recorded& record,
                               const Recorded& guesses, Pages pages = Pages::kForgotten) {
  const engine::ExecutorLimits& limits = executor.limits();
  const auto [prompt, length] = room_of(plan, engine, streams, depth, limits.model_context);
  if (prompt < depth + plan.prompt)
    std::printf("    the prompt is cut to %u tokens: the model's context is %u\n", prompt - depth,
                limits.model_context);
  const std::uint32_t pages_each = (length + limits.page_tokens - 1) / limits.page_tokens;
  if (length > limits.context || std::uint64_t{pages_each} * streams > limits.total_pages) {
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(streams) + " streams of " + std::to_string(length) +
                     " tokens do not fit the KV cache of " +
                     std::to_string(std::uint64_t{limits.total_pages} * limits.page_tokens) +
                     " tokens (context " + std::to_string(limits.context) +
                     "); lower --depths, --prompt or --tokens");
  }
  Loop loop(executor, streams, engine,
            guesses.empty() ? engine::Speculation::kOff : engine::Speculation::kNgram, pages);
  for (std::uint32_t s = 0; s < streams; ++s) {
    loop.add(s, prompt, length);
    if (!guesses.empty()) loop.guess(s, guesses[s], plan.draft_accuracy);
  }

  const Clock::time_point prefill_start = Clock::now();
  const auto all_there = [&] {
    return std::all_of(loop.sequences().begin(), loop.sequences().end(),
                       [&](const auto& sequence) { return sequence->tokens.size() > prompt; });
  };
  while (!all_there())
    BULKHEAD_RETURN_IF_ERROR(loop.turn());
  const double prefill = seconds_since(prefill_start);

  const std::map<std::string, double> host_before = host_seconds(executor);
  std::vector<double> steps;
  steps.reserve(plan.tokens);
  std::uint64_t generated = 0;
  const Clock::time_point decode_start = Clock::now();
  while (generated < std::uint64_t{plan.tokens} * streams) {
    const Clock::time_point start = Clock::now();
    BULKHEAD_TRY(const std::uint32_t tokens, loop.turn());
    generated += tokens;
    steps.push_back(seconds_since(start));
  }
  const double decode = seconds_since(decode_start);
  BULKHEAD_RETURN_IF_ERROR(loop.end_all());
  std::sort(steps.begin(), steps.end());
  record.clear();
  for (const auto& sequence : loop.sequences())
    record.push_back(sequence->tokens);
  for (std::size_t s = 0; s < guesses.size(); ++s) {
    const std::size_t both = std::min(record[s].size(), guesses[s].size());
    if (!std::equal(record[s].begin(), record[s].begin() + static_cast<std::ptrdiff_t>(both),
                    guesses[s].begin()))
      return Error(ErrorCode::kInternal, "speculation changed a token");
  }

  const double bytes = static_cast<double>(executor.weight_bytes_read());
  const double rate = bytes * static_cast<double>(steps.size()) / decode;
  const double prefill_rate = std::uint64_t{streams} * prompt / prefill;
  const double decode_rate = static_cast<double>(generated) / decode;
  nlohmann::json result{
      {"streams", streams},
      {"depth", depth},
      {"prefill_tokens_per_s", prefill_rate},
      {"decode_tokens_per_s", decode_rate},
      {"step_ms_median", steps[steps.size() / 2] * 1e3},
      {"step_ms_p99", steps[steps.size() * 99 / 100] * 1e3},
      {"first_token_ms", prefill * 1e3},
      {"weight_bytes_per_step", bytes},
      {"weight_gb_per_s", rate / 1e9},
      {"fraction_of_read_bandwidth", bandwidth > 0 ? rate / bandwidth : 0.0},
      {"steps", steps.size()},
      {"drafted_tokens", loop.drafts().drafted},
      {"accepted_tokens", loop.drafts().accepted},
  };
  for (const auto& each : executor.counters()) {
    if (each.name == "gpu_busy_share" || each.name == "ring_reuse_rate" ||
        each.name == "blit_overlap_ratio" || each.name == "pool_hit_rate")
      result[each.name] = each.value;
  }
  std::printf(
      "%3u streams at %6u: prefill %9.1f tokens/s   decode %8.1f tokens/s (median step %.3f ms)   "
      "weights %.1f GB/s",
      streams, depth, prefill_rate, decode_rate, steps[steps.size() / 2] * 1e3, rate / 1e9);
  if (bandwidth > 0) std::printf(" = %.0f %% of what the device can read", 100 * rate / bandwidth);
  std::printf("\n");

  // Where the host's time went, a step.
  nlohmann::json& host = result["host_us_per_step"] = nlohmann::json::object();
  for (const auto& [name, seconds] : host_seconds(executor)) {
    const auto before = host_before.find(name);
    const double spent = before == host_before.end() ? seconds : seconds - before->second;
    host[name] = spent / static_cast<double>(steps.size()) * 1e6;
  }
  if (plan.profile) {
    std::printf("    host, us a step:");
    for (const auto& [name, microseconds] : host.items())
      std::printf(" %s %.1f", name.c_str(), microseconds.get<double>());
    std::printf("\n");
    std::vector<engine::Column> columns;
    std::vector<std::span<const engine::PageIndex>> tables;
    std::vector<engine::StateUse> states;
    for (const auto& sequence : loop.sequences()) {
      const auto position = static_cast<std::uint32_t>(sequence->tokens.size()) - 1;
      columns.push_back({sequence->tokens.back(), position - 1,
                         static_cast<std::uint32_t>(tables.size()), engine::Output::kGreedy});
      tables.push_back(sequence->pages.pages());
      if (limits.states > 0) states.push_back({sequence->slot, sequence->slot});
    }
    BULKHEAD_TRY(const auto times, executor.profile_step({columns, tables, states}));
    result["kernels"] = bench::kernel_table(times, bandwidth);
    // A prompt's step: the first sequence's once more, to the same keys and values.
    const std::uint32_t chunk = std::min(
        {prompt, std::max(engine.prefill_chunk, engine.prefill_chunk_alone), limits.max_columns});
    columns.clear();
    for (std::uint32_t i = 0; i < chunk; ++i)
      columns.push_back({loop.sequences().front()->tokens[i], i, 0, engine::Output::kNone});
    columns.back().output = engine::Output::kGreedy;
    std::printf("    a step of %u prompt tokens:\n", chunk);
    BULKHEAD_TRY(const auto prompt_times,
                 executor.profile_step({columns, std::span(tables).first(1),
                                        std::span(states).first(limits.states > 0 ? 1 : 0)}));
    result["prompt_kernels"] = bench::kernel_table(prompt_times, bandwidth);
  }
  return result;
}

// Pairs AB BA AB BA. The ratios are rates with checks over rates without.
Result<nlohmann::json> cost_of_checks(forward::Transformer& executor, const Plan& plan,
                                      const config::EngineSettings& engine, std::uint32_t streams,
                                      std::uint32_t depth, double bandwidth) {
  const char* const rates[] = {"prefill_tokens_per_s", "decode_tokens_per_s"};
  std::map<std::string, std::vector<double>> ratios;
  for (std::uint32_t pair = 0; pair < plan.check_pairs; ++pair) {
    const Pages first = pair % 2 == 0 ? Pages::kCached : Pages::kChecked;
    const Pages second = pair % 2 == 0 ? Pages::kChecked : Pages::kCached;
    Recorded tokens;
    BULKHEAD_TRY(nlohmann::json without,
                 measure(executor, plan, engine, streams, depth, bandwidth, tokens, {}, first));
    BULKHEAD_TRY(nlohmann::json with,
                 measure(executor, plan, engine, streams, depth, bandwidth, tokens, {}, second));
    if (first == Pages::kChecked) std::swap(without, with);
    for (const char* const rate : rates)
      ratios[rate].push_back(with[rate].get<double>() / without[rate].get<double>());
  }
  nlohmann::json result{{"streams", streams}, {"depth", depth}, {"pairs", plan.check_pairs}};
  for (const char* const rate : rates) {
    const bench::MedianInterval interval = bench::median_interval(ratios[rate]);
    std::printf("checked over unchecked, %s: %.4f (%.4f to %.4f)\n", rate, interval.median,
                interval.low, interval.high);
    result[std::string("checked_over_unchecked_") + rate] = {interval.median, interval.low,
                                                             interval.high};
  }
  return result;
}

Status run(Plan plan) {
  gpu::DeviceOptions device_options;
  device_options.selector = plan.device;
  device_options.cache_folder = plan.cache_folder;
  BULKHEAD_TRY(const auto device, gpu::Device::open(device_options));
  complete(plan, *device);
  double bandwidth = 0;
  if (auto measured = bench::read_bandwidth(*device); measured.ok()) {
    bandwidth = *measured;
  } else {
    std::fprintf(stderr, "read bandwidth unknown: %s\n", measured.error().message().c_str());
  }
  std::printf("%s (%s), reads %.1f GB/s\n", device->info().name.c_str(),
              device->info().driver.c_str(), bandwidth / 1e9);

  BULKHEAD_TRY(const auto file, model::GgufFile::open(plan.model));
  BULKHEAD_TRY(const auto graph, model::read_model(*file));
  config::Settings settings;
  BULKHEAD_RETURN_IF_ERROR(config::assign(settings, "engine.kv_type=" + plan.kv_type));
  for (const std::string& assignment : plan.assignments)
    BULKHEAD_RETURN_IF_ERROR(config::assign(settings, assignment));
  forward::TransformerOptions options;
  options.engine = settings.engine;
  options.gpu = settings.gpu_optimizations;
  options.cache_folder = plan.cache_folder;
  options.engine.max_batch =
      std::max(*std::max_element(plan.streams.begin(), plan.streams.end()), 1U);
  if (plan.draft_accuracy >= 0) options.engine.speculation = config::Speculation::kNgram;
  if (plan.chunk != 0)
    options.engine.prefill_chunk = options.engine.prefill_chunk_alone = plan.chunk;
  if (plan.baseline) options.gpu.enabled = false;
  // Room for every stream, and no more.
  std::uint64_t positions = 0;
  std::uint32_t longest = 0;
  for (const std::uint32_t depth : plan.depths) {
    for (const std::uint32_t streams : plan.streams) {
      const std::uint32_t length =
          room_of(plan, options.engine, streams, depth, graph.context).length;
      longest = std::max(longest, length);
      positions = std::max(positions, (std::uint64_t{length} + 63) / 32 * 32 * streams + 32);
    }
  }
  const std::uint64_t kv_bytes =
      forward::kv_bytes_per_token(graph, forward::kv_format(options.engine.kv_type)) * positions;
  options.engine.kv_cache_mb = static_cast<std::uint32_t>((kv_bytes >> 20) + 1);
  options.context = std::min(graph.context, longest);
  options.wait_timeout_ms = 60000;
  const Clock::time_point start = Clock::now();
  BULKHEAD_TRY(const auto executor, forward::make_transformer(*device, *file, graph, options));
  const double load = seconds_since(start);
  std::printf("%s: %.2f GB of weights, loaded and warm in %.2f s\n", graph.name.c_str(),
              static_cast<double>(executor->weight_bytes()) / 1e9, load);

  nlohmann::json report{{"benchmark", "decode"},
                        {"device", device->info().name},
                        {"driver", device->info().driver},
                        {"model", plan.model},
                        {"prompt", plan.prompt},
                        {"tokens", plan.tokens},
                        {"prefill_chunk", options.engine.prefill_chunk},
                        {"prefill_chunk_alone", options.engine.prefill_chunk_alone},
                        {"optimizations", options.gpu.enabled},
                        {"settings", plan.assignments},
                        {"steps_in_flight", executor->limits().steps_in_flight},
                        {"numerics_id", executor->numerics_id()},
                        {"weight_bytes", executor->weight_bytes()},
                        {"load_s", load},
                        {"read_bandwidth_gb_per_s", bandwidth / 1e9},
                        {"results", nlohmann::json::array()}};
  for (const std::uint32_t depth : plan.depths) {
    for (const std::uint32_t streams : plan.streams) {
      Recorded recorded, again;
      BULKHEAD_TRY(
          const nlohmann::json result,
          plan.check_pairs > 0
              ? cost_of_checks(*executor, plan, options.engine, streams, depth, bandwidth)
              : measure(*executor, plan, options.engine, streams, depth, bandwidth, recorded, {}));
      report["results"].push_back(result);
      if (plan.draft_accuracy < 0) continue;
      BULKHEAD_TRY(nlohmann::json faster, measure(*executor, plan, options.engine, streams, depth,
                                                  bandwidth, again, recorded));
      faster["draft_accuracy"] = plan.draft_accuracy;
      faster["speedup"] =
          faster["decode_tokens_per_s"].get<double>() / result["decode_tokens_per_s"].get<double>();
      std::printf(
          "    with guesses that are right with a chance of %.2f: %.2f times as fast, %.0f of %.0f "
          "accepted\n",
          plan.draft_accuracy, faster["speedup"].get<double>(),
          faster["accepted_tokens"].get<double>(), faster["drafted_tokens"].get<double>());
      report["results"].push_back(std::move(faster));
    }
  }
  return bench::write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "Prefill and decode speed of a model on the executor alone, beside the device's read "
      "bandwidth"};
  options.add("--model", plan.model, "GGUF file, or \"builtin\"").show_default();
  options.add("--device", plan.device, "auto, cpu, an index or part of a device's name");
  options
      .add("--streams", plan.streams,
           "sequences that decode side by side, one run for each number (1,4,16,32; on a CPU 1,4)")
      .comma_separated()
      .within(1, 256);
  options.add("--prompt", plan.prompt, "prompt tokens of each sequence (512; on a CPU 64)")
      .within(1, 1 << 20);
  options.add("--tokens", plan.tokens, "generated tokens of each sequence (128; on a CPU 32)")
      .within(1, 1 << 20);
  options
      .add("--chunk", plan.chunk,
           "prompt tokens in a step, whether others generate or not (as engine.* says)")
      .within(1, 4096);
  options.add("--kv-type", plan.kv_type, "f16, f32 or q8_0").show_default();
  options.add("--json", plan.json_path, "write the figures there, too");
  options.add("--cache", plan.cache_folder, "folder where compiled kernels are kept");
  options.add("--depths", plan.depths, "tokens that sequences have behind them")
      .comma_separated()
      .within(0, 1 << 20);
  options.add("--set", plan.assignments, "a setting of engine.* or gpu_optimizations.*, key=value")
      .repeated();
  options
      .add("--draft-accuracy", plan.draft_accuracy,
           "run each again with guesses of the recorded answer, right with this chance")
      .within(0.0, 1.0);
  options
      .add("--check-memory", plan.check_pairs,
           "so many pairs of runs, without and with checksums of KV pages and weights")
      .within(1, 1000);
  options.flag("--profile", plan.profile,
               "time each kernel of a decode step and of a prompt's step");
  options.flag("--baseline", plan.baseline, "memory pool, blit queue and command ring off");
  if (const auto code = options.parse(argc, argv)) return *code;
  const Status status = run(plan);
  if (!status.ok()) {
    std::fprintf(stderr, "bench-decode: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

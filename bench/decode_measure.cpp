#include "bench/decode_measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>

#include "bench/device_speed.hpp"
#include "bench/paired.hpp"

namespace bulkhead::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The number of steps that one stream may be ahead of another once all prompts are read. Each step has at least
// half a chunk of the prompts (engine::Scheduler).
std::uint32_t skew(const DecodePlan& plan, std::uint32_t streams, std::uint32_t prompt) {
  const std::uint64_t half = std::max(plan.widest / 2, 1U);
  return static_cast<std::uint32_t>((std::uint64_t{streams} * prompt + half - 1) / half) + 8;
}

// Returns the seconds that the host and the device have spent on each kind of work since the start, by the
// names of the executor's counters without their units.
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

bool begins_alike(const std::vector<engine::TokenId>& a, const std::vector<engine::TokenId>& b) {
  const auto both = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::equal(a.begin(), a.begin() + both, b.begin());
}

}  // namespace

DecodeRoom room_of(const DecodePlan& plan, const DecodeRun& run, std::uint32_t context) {
  const std::uint32_t prompt = run.depth + run.prompt;
  const std::uint32_t ahead = plan.draft_accuracy < 0 ? 0 : plan.tokens + engine::kMostDrafts;
  const std::uint32_t after =
      plan.tokens + ahead + (run.streams > 1 ? skew(plan, run.streams, prompt) : 8);
  const std::uint32_t least = run.depth + 1;
  const std::uint32_t most = context > after ? std::max(context - after, least) : least;
  return {std::min(prompt, most), std::min(prompt, most) + after};
}

Result<DecodeRoom> DecodeBench::checked_room(const Run& run) const {
  const engine::ExecutorLimits& limits = executor_.limits();
  const DecodeRoom room = room_of(plan_, run, limits.model_context);
  if (room.prompt < run.depth + run.prompt)
    std::printf("    the prompt is cut to %u tokens: the model's context is %u\n",
                room.prompt - run.depth, limits.model_context);
  const std::uint32_t pages_each = (room.length + limits.page_tokens - 1) / limits.page_tokens;
  if (room.length > limits.context ||
      std::uint64_t{pages_each} * run.streams > limits.total_pages) {
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(run.streams) + " streams of " + std::to_string(room.length) +
                     " tokens do not fit the KV cache of " +
                     std::to_string(std::uint64_t{limits.total_pages} * limits.page_tokens) +
                     " tokens (context " + std::to_string(limits.context) +
                     "); lower --depths, --prompt or --tokens");
  }
  return room;
}

Result<DecodeBench::Times> DecodeBench::time(DecodeLoop& loop, const Run& run,
                                             const DecodeRoom& room) const {
  Times times;
  const Clock::time_point prefill_start = Clock::now();
  const auto all_there = [&] {
    return std::all_of(loop.sequences().begin(), loop.sequences().end(),
                       [&](const auto& sequence) { return sequence->tokens.size() > room.prompt; });
  };
  while (!all_there())
    BULKHEAD_RETURN_IF_ERROR(loop.turn());
  times.prefill = seconds_since(prefill_start);

  const std::map<std::string, double> host_before = host_seconds(executor_);
  times.steps.reserve(plan_.tokens);
  const Clock::time_point decode_start = Clock::now();
  while (times.generated < std::uint64_t{plan_.tokens} * run.streams) {
    const Clock::time_point start = Clock::now();
    BULKHEAD_TRY(const std::uint32_t tokens, loop.turn());
    times.generated += tokens;
    times.steps.push_back(seconds_since(start));
  }
  times.decode = seconds_since(decode_start);
  BULKHEAD_RETURN_IF_ERROR(loop.end_all());
  std::sort(times.steps.begin(), times.steps.end());
  for (const auto& [name, seconds] : host_seconds(executor_)) {
    const auto before = host_before.find(name);
    times.host[name] = before == host_before.end() ? seconds : seconds - before->second;
  }
  return times;
}

nlohmann::json DecodeBench::figures(const DecodeLoop& loop, const Run& run, const DecodeRoom& room,
                                    const Times& times) const {
  const std::size_t steps = times.steps.size();
  const double median = times.steps[steps / 2];
  const double bytes = static_cast<double>(executor_.weight_bytes_read());
  const double rate = bytes * static_cast<double>(steps) / times.decode;
  const double prefill_rate = std::uint64_t{run.streams} * room.prompt / times.prefill;
  const double decode_rate = static_cast<double>(times.generated) / times.decode;
  nlohmann::json result{
      {"streams", run.streams},
      {"depth", run.depth},
      {"prompt", room.prompt - run.depth},
      {"prefill_tokens_per_s", prefill_rate},
      {"decode_tokens_per_s", decode_rate},
      {"step_ms_median", median * 1e3},
      {"step_ms_p99", times.steps[steps * 99 / 100] * 1e3},
      {"first_token_ms", times.prefill * 1e3},
      {"weight_bytes_per_step", bytes},
      {"weight_gb_per_s", rate / 1e9},
      {"fraction_of_read_bandwidth", bandwidth_ > 0 ? rate / bandwidth_ : 0.0},
      {"steps", steps},
      {"drafted_tokens", loop.drafts().drafted},
      {"accepted_tokens", loop.drafts().accepted},
  };
  for (const auto& each : executor_.counters()) {
    if (each.name == "gpu_busy_share" || each.name == "ring_reuse_rate" ||
        each.name == "blit_overlap_ratio" || each.name == "pool_hit_rate")
      result[each.name] = each.value;
  }
  std::printf(
      "%3u streams at %6u, prompts of %6u: prefill %9.1f tokens/s   decode %8.1f tokens/s (median "
      "step %.3f ms)   "
      "weights %.1f GB/s",
      run.streams, run.depth, room.prompt - run.depth, prefill_rate, decode_rate, median * 1e3,
      rate / 1e9);
  if (bandwidth_ > 0)
    std::printf(" = %.0f %% of what the device can read", 100 * rate / bandwidth_);
  std::printf("\n");
  nlohmann::json& host = result["host_us_per_step"] = nlohmann::json::object();
  for (const auto& [name, seconds] : times.host)
    host[name] = seconds / static_cast<double>(steps) * 1e6;
  return result;
}

Status DecodeBench::profile(const DecodeLoop& loop, const DecodeRoom& room,
                            nlohmann::json& result) const {
  const engine::ExecutorLimits& limits = executor_.limits();
  std::printf("    host, us a step:");
  for (const auto& [name, microseconds] : result["host_us_per_step"].items())
    std::printf(" %s %.1f", name.c_str(), microseconds.get<double>());
  std::printf("\n");
  std::vector<engine::Column> columns;
  std::vector<std::span<const engine::PageIndex>> tables;
  std::vector<engine::StateUse> states;
  std::vector<engine::WindowPages> windows;
  for (const auto& sequence : loop.sequences()) {
    const auto position = static_cast<std::uint32_t>(sequence->tokens.size()) - 1;
    columns.push_back({sequence->tokens.back(), position - 1,
                       static_cast<std::uint32_t>(tables.size()), engine::Output::kGreedy});
    tables.push_back(sequence->pages.pages());
    if (limits.states > 0) states.push_back({sequence->slot, sequence->slot});
    if (limits.window_pages > 0) windows.push_back(sequence->pages.windows());
  }
  BULKHEAD_TRY(const auto times, executor_.profile_step({columns, tables, states, windows}));
  result["kernels"] = kernel_table(times, bandwidth_);
  // This is a step of a prompt. It repeats tokens of the first sequence, and writes the same keys and values. If the
  // sequence has released window pages, the step begins at the first position that sees none of these.
  const engine::DraftedSequence& sequence = *loop.sequences().front();
  const std::uint32_t released = windows.empty() ? 0 : windows.front().first * limits.page_tokens;
  const std::uint32_t first = released == 0 ? 0 : released + limits.window - 1;
  const std::uint32_t end =
      released == 0 ? room.prompt : static_cast<std::uint32_t>(sequence.tokens.size()) - 1;
  const std::uint32_t chunk =
      std::min({end - std::min(first, end - 1),
                std::max(engine_.prefill_chunk, engine_.prefill_chunk_alone), limits.max_columns});
  columns.clear();
  for (std::uint32_t i = end - chunk; i < end; ++i)
    columns.push_back({sequence.tokens[i], i, 0, engine::Output::kNone});
  columns.back().output = engine::Output::kGreedy;
  std::printf("    a step of %u prompt tokens:\n", chunk);
  BULKHEAD_TRY(const auto prompt_times,
               executor_.profile_step({columns, std::span(tables).first(1),
                                       std::span(states).first(states.empty() ? 0 : 1),
                                       std::span(windows).first(windows.empty() ? 0 : 1)}));
  result["prompt_kernels"] = kernel_table(prompt_times, bandwidth_);
  return {};
}

Result<nlohmann::json> DecodeBench::measure(const Run& run, Recorded& recorded,
                                            const Recorded& guesses) {
  BULKHEAD_TRY(const DecodeRoom room, checked_room(run));
  DecodeLoop loop(executor_, run.streams, engine_,
                  guesses.empty() ? engine::Speculation::kOff : engine::Speculation::kNgram,
                  run.pages);
  for (std::uint32_t s = 0; s < run.streams; ++s) {
    loop.add(s, room.prompt, room.length);
    if (!guesses.empty()) loop.guess(s, guesses[s], plan_.draft_accuracy);
  }
  BULKHEAD_TRY(const Times times, time(loop, run, room));
  recorded.clear();
  for (const auto& sequence : loop.sequences())
    recorded.push_back(sequence->tokens);
  for (std::size_t s = 0; s < guesses.size(); ++s) {
    if (!begins_alike(recorded[s], guesses[s]))
      return Error(ErrorCode::kInternal, "speculation changed a token");
  }
  nlohmann::json result = figures(loop, run, room, times);
  if (plan_.profile) BULKHEAD_RETURN_IF_ERROR(profile(loop, room, result));
  return result;
}

Result<nlohmann::json> DecodeBench::cost_of_checks(const DecodeRun& run) {
  const char* const rates[] = {"prefill_tokens_per_s", "decode_tokens_per_s"};
  std::map<std::string, std::vector<double>> ratios;
  for (std::uint32_t pair = 0; pair < plan_.check_pairs; ++pair) {
    const Pages first = pair % 2 == 0 ? Pages::kCached : Pages::kChecked;
    const Pages second = pair % 2 == 0 ? Pages::kChecked : Pages::kCached;
    Recorded tokens;
    BULKHEAD_TRY(nlohmann::json without, measure({run, first}, tokens));
    BULKHEAD_TRY(nlohmann::json with, measure({run, second}, tokens));
    if (first == Pages::kChecked) std::swap(without, with);
    for (const char* const rate : rates)
      ratios[rate].push_back(with[rate].get<double>() / without[rate].get<double>());
  }
  nlohmann::json result{{"streams", run.streams},
                        {"depth", run.depth},
                        {"prompt", run.prompt},
                        {"pairs", plan_.check_pairs}};
  for (const char* const rate : rates) {
    const MedianInterval interval = median_interval(ratios[rate]);
    std::printf("checked over unchecked, %s: %.4f (%.4f to %.4f)\n", rate, interval.median,
                interval.low, interval.high);
    result[std::string("checked_over_unchecked_") + rate] = {interval.median, interval.low,
                                                             interval.high};
  }
  return result;
}

}  // namespace bulkhead::bench

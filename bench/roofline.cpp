// Shows how near a model's decode comes to the limit that the device's memory sets. The limit is the bytes that a
// token must read, divided by the device's own measured read speed; the program compares it with a step's time.
// Device timestamps show where the rest of the time goes, kernel by kernel.
//
//   bench-roofline [--model FILE] [--device SELECTOR] [--streams 1] [--depth 128]
//                  [--set gpu_optimizations.chained_kernels=off]... [--json FILE]
//
// A step of S streams reads every weight once and each stream's keys and values up to its depth.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/device_speed.hpp"
#include "bench/program.hpp"
#include "bench/report.hpp"
#include "config/base/program_options.hpp"
#include "config/config.hpp"
#include "gpu/device.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

struct Plan {
  std::string model = "builtin", device = "auto", json_path, cache_folder;
  std::string kv_type = "f16";
  std::vector<std::string> assignments;
  std::vector<std::uint32_t> streams{1};
  std::uint32_t depth = 128, steps = 64;
};

// Every column has the same made-up token, because a step's time does not depend on the token.
struct Streams {
  std::vector<std::vector<engine::PageIndex>> pages;
  std::vector<std::span<const engine::PageIndex>> sequences;
  std::vector<engine::WindowPages> windows;  // of `window_pages`
  std::vector<std::vector<engine::PageIndex>> window_pages;
  std::vector<engine::Column> columns;
};

Streams make_streams(const engine::ExecutorLimits& limits, std::uint32_t count,
                     std::uint32_t depth) {
  Streams streams;
  const std::uint32_t each = (depth + limits.page_tokens - 1) / limits.page_tokens;
  for (std::uint32_t s = 0; s < count; ++s) {
    auto& pages = streams.pages.emplace_back(each);
    std::iota(pages.begin(), pages.end(), s * each);
    streams.columns.push_back({s % limits.vocabulary, depth - 1, s, engine::Output::kGreedy});
  }
  streams.sequences.assign(streams.pages.begin(), streams.pages.end());
  const std::uint32_t first =
      (depth - std::min(depth, std::max(limits.window, 1U))) / limits.page_tokens;
  std::uint32_t next = 0;
  for (std::uint32_t s = 0; limits.window > 0 && s < count; ++s) {
    auto& pages = streams.window_pages.emplace_back(each - first);
    // If the cache has fewer pages than the streams see, streams share some. Reading them takes as
    // long.
    for (engine::PageIndex& page : pages)
      page = limits.total_pages + next++ % limits.window_pages;
    streams.windows.push_back({first, pages});
  }
  return streams;
}

Result<nlohmann::json> measure(forward::Transformer& executor, const Plan& plan,
                               std::uint32_t count, std::uint64_t kv_per_token, double bandwidth) {
  const engine::ExecutorLimits& limits = executor.limits();
  const Streams streams = make_streams(limits, count, plan.depth);
  std::vector<engine::StateUse> states;
  for (std::uint32_t s = 0; limits.states > 0 && s < count; ++s)
    states.push_back({s, s});
  const engine::Step step{streams.columns, streams.sequences, states, streams.windows};
  // As many steps are in flight as in serving; each time is from one step's end to the next one's.
  std::vector<double> seconds;
  std::uint32_t submitted = 0;
  Clock::time_point before;
  for (std::uint32_t i = 0; i <= plan.steps; ++i) {
    for (; submitted <= plan.steps && submitted < i + limits.steps_in_flight; ++submitted)
      BULKHEAD_RETURN_IF_ERROR(executor.submit(step));
    BULKHEAD_RETURN_IF_ERROR(executor.wait());
    const Clock::time_point now = Clock::now();
    if (i > 0) seconds.push_back(std::chrono::duration<double>(now - before).count());
    before = now;
  }
  std::sort(seconds.begin(), seconds.end());
  const double step_s = seconds[seconds.size() / 2];

  const auto weights = static_cast<double>(executor.weight_bytes_read());
  const auto kv = static_cast<double>(kv_per_token * plan.depth * count);
  const double least_s = bandwidth > 0 ? (weights + kv) / bandwidth : 0;
  std::printf(
      "%3u streams, %u tokens deep: a step reads %.1f MB of weights and %.2f MB of keys and "
      "values\n"
      "    at the limit %.3f ms, %.1f tokens/s; measured %.3f ms, %.1f tokens/s: %.1f %% of the "
      "limit\n",
      count, plan.depth, weights / 1e6, kv / 1e6, least_s * 1e3, least_s > 0 ? count / least_s : 0,
      step_s * 1e3, count / step_s, 100 * least_s / step_s);

  BULKHEAD_TRY(const auto times, executor.profile_step(step));
  double device_us = 0;
  for (const gpu::KernelTime& time : times)
    device_us += time.microseconds;
  const nlohmann::json kernels = bench::kernel_table(times, bandwidth);
  return nlohmann::json{{"streams", count},
                        {"depth", plan.depth},
                        {"weight_bytes", weights},
                        {"kv_bytes", kv},
                        {"limit_ms", least_s * 1e3},
                        {"limit_tokens_per_s", least_s > 0 ? count / least_s : 0},
                        {"step_ms", step_s * 1e3},
                        {"tokens_per_s", count / step_s},
                        {"fraction_of_limit", least_s / step_s},
                        {"kernels_ms", device_us / 1e3},
                        {"kernels", kernels}};
}

Status run(const Plan& plan) {
  gpu::DeviceOptions device_options;
  device_options.selector = plan.device;
  device_options.cache_folder = plan.cache_folder;
  BULKHEAD_TRY(const auto device, gpu::Device::open(device_options));
  BULKHEAD_TRY(const double bandwidth, bench::read_bandwidth(*device));
  std::printf("%s (%s), reads %.1f GB/s\n", device->info().name.c_str(),
              device->info().driver.c_str(), bandwidth / 1e9);

  BULKHEAD_TRY(const auto file, model::GgufFile::open(plan.model));
  BULKHEAD_TRY(const auto graph, model::read_model(*file));
  config::Settings settings;
  forward::TransformerOptions options;
  BULKHEAD_RETURN_IF_ERROR(config::assign(settings, "engine.kv_type=" + plan.kv_type));
  for (const std::string& assignment : plan.assignments)
    BULKHEAD_RETURN_IF_ERROR(config::assign(settings, assignment));
  options.engine = settings.engine;
  options.gpu = settings.gpu_optimizations;
  options.engine.max_batch = *std::max_element(plan.streams.begin(), plan.streams.end());
  options.engine.prefill_chunk = 16;
  const std::uint64_t kv_per_token =
      forward::kv_bytes_per_token(graph, forward::kv_format(options.engine.kv_type));
  if (plan.depth > graph.context) {
    return Error(ErrorCode::kInvalidArgument, "--depth " + std::to_string(plan.depth) +
                                                  ": the model's context is " +
                                                  std::to_string(graph.context) + " tokens");
  }
  options.context = plan.depth;
  options.engine.kv_cache_mb = static_cast<std::uint32_t>(
      (kv_per_token * (plan.depth + 64) * options.engine.max_batch >> 20) + 2);
  options.wait_timeout_ms = 60000;
  BULKHEAD_TRY(const auto executor, forward::make_transformer(*device, *file, graph, options));
  std::printf("%s: %.2f GB of weights\n", graph.name.c_str(),
              static_cast<double>(executor->weight_bytes()) / 1e9);

  nlohmann::json report{{"benchmark", "roofline"},
                        {"device", device->info().name},
                        {"driver", device->info().driver},
                        {"model", plan.model},
                        {"settings", plan.assignments},
                        {"numerics_id", executor->numerics_id()},
                        {"read_bandwidth_gb_per_s", bandwidth / 1e9},
                        {"results", nlohmann::json::array()}};
  for (const std::uint32_t count : plan.streams) {
    BULKHEAD_TRY(const nlohmann::json result,
                 measure(*executor, plan, count, kv_per_token, bandwidth));
    report["results"].push_back(result);
  }
  return bench::write_report(plan.json_path, report);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "What a decode step must read over what the device can read, and each kernel's part in the "
      "rest"};
  options.add("--model", plan.model, "GGUF file, or \"builtin\"").show_default();
  options.add("--device", plan.device, "auto, cpu, an index or part of a device's name");
  options.add("--streams", plan.streams, "sequences in a step, one run for each number")
      .comma_separated()
      .within(1, 256);
  options.add("--depth", plan.depth, "tokens that each sequence has")
      .show_default()
      .within(1, 1 << 20);
  options.add("--steps", plan.steps, "steps, of which the median counts")
      .show_default()
      .within(1, 1 << 20);
  options.add("--kv-type", plan.kv_type, "f16, f32 or q8_0").show_default();
  options.add("--json", plan.json_path, "write the figures there, too");
  options.add("--set", plan.assignments, "a setting of engine.* or gpu_optimizations.*, key=value")
      .repeated();
  options.add("--cache", plan.cache_folder, "folder where compiled kernels are kept");
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-roofline", [&] { return run(plan); });
}

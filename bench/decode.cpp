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
// With --draft-accuracy each run is made twice. The first run records the answers. The second run guesses
// them, and each guess is right with that chance, so any weights show what speculation gains. The tokens
// of both runs must be the same.
//
// --check-memory N measures what it costs to hold KV pages and weights to checksums
// (worker/engine/page_guard.hpp): N times, it makes one run with checksums and one without.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/decode_measure.hpp"
#include "bench/device_speed.hpp"
#include "bench/report.hpp"
#include "config/base/program_options.hpp"
#include "config/config.hpp"
#include "gpu/device.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
using Clock = std::chrono::steady_clock;
using Plan = bench::DecodePlan;

// Sets what the command line left out, so that a run takes seconds on this device.
void complete(Plan& plan, const gpu::Device& device) {
  const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
  if (plan.streams.empty())
    plan.streams =
        cpu ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>{1, 4, 16, 32};
  if (plan.prompt == 0) plan.prompt = cpu ? 64 : 512;
  if (plan.tokens == 0) plan.tokens = cpu ? 32 : 128;
}

// The options of an executor with room for every stream, and no more.
Result<forward::TransformerOptions> options_of(const Plan& plan, const model::ModelGraph& graph) {
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
  std::uint64_t positions = 0;
  std::uint32_t longest = 0;
  for (const std::uint32_t depth : plan.depths) {
    for (const std::uint32_t streams : plan.streams) {
      const std::uint32_t length =
          bench::room_of(plan, options.engine, streams, depth, graph.context).length;
      longest = std::max(longest, length);
      positions = std::max(positions, (std::uint64_t{length} + 63) / 32 * 32 * streams + 32);
    }
  }
  const std::uint64_t kv_bytes =
      forward::kv_bytes_per_token(graph, forward::kv_format(options.engine.kv_type)) * positions;
  options.engine.kv_cache_mb = static_cast<std::uint32_t>((kv_bytes >> 20) + 1);
  options.context = std::min(graph.context, longest);
  options.wait_timeout_ms = 60000;
  return options;
}

// Runs with recorded guesses what measure() has just run without, and sets one beside the other.
Result<nlohmann::json> measure_guesses(bench::DecodeBench& bench, const Plan& plan,
                                       const bench::DecodeBench::Run& run,
                                       const bench::Recorded& recorded,
                                       const nlohmann::json& without) {
  bench::Recorded again;
  BULKHEAD_TRY(nlohmann::json faster, bench.measure(run, again, recorded));
  faster["draft_accuracy"] = plan.draft_accuracy;
  faster["speedup"] =
      faster["decode_tokens_per_s"].get<double>() / without["decode_tokens_per_s"].get<double>();
  std::printf(
      "    with guesses that are right with a chance of %.2f: %.2f times as fast, %.0f of %.0f "
      "accepted\n",
      plan.draft_accuracy, faster["speedup"].get<double>(), faster["accepted_tokens"].get<double>(),
      faster["drafted_tokens"].get<double>());
  return faster;
}

Result<nlohmann::json> measure_all(bench::DecodeBench& bench, const Plan& plan) {
  nlohmann::json results = nlohmann::json::array();
  for (const std::uint32_t depth : plan.depths) {
    for (const std::uint32_t streams : plan.streams) {
      const bench::DecodeBench::Run run{streams, depth};
      bench::Recorded recorded;
      BULKHEAD_TRY(const nlohmann::json result, plan.check_pairs > 0
                                                    ? bench.cost_of_checks(streams, depth)
                                                    : bench.measure(run, recorded));
      results.push_back(result);
      if (plan.draft_accuracy < 0) continue;
      BULKHEAD_TRY(nlohmann::json faster, measure_guesses(bench, plan, run, recorded, result));
      results.push_back(std::move(faster));
    }
  }
  return results;
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
  BULKHEAD_TRY(const forward::TransformerOptions options, options_of(plan, graph));
  const Clock::time_point start = Clock::now();
  BULKHEAD_TRY(const auto executor, forward::make_transformer(*device, *file, graph, options));
  const double load = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("%s: %.2f GB of weights, loaded and warm in %.2f s\n", graph.name.c_str(),
              static_cast<double>(executor->weight_bytes()) / 1e9, load);

  bench::DecodeBench bench(*executor, plan, options.engine, bandwidth);
  BULKHEAD_TRY(nlohmann::json results, measure_all(bench, plan));
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
                        {"results", std::move(results)}};
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

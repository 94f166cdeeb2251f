// Measures how fast a model prefills and decodes on the executor, and how near decoding comes to reading the
// weights at the device's own speed. The program needs no daemon and no text: it makes token ids up. Its steps
// are the engine's own: the engine's scheduler plans them, the executor has as many in flight as it takes, and
// the device hands tokens on.
//
//   bench-decode --model FILE [--device SELECTOR] [--streams 1,4,16,32] [--depths 0,2048] [--prompt 512,8192]
//                [--tokens 128] [--draft-accuracy 0.8] [--set gpu_optimizations.memory_pool.enabled=false]...
//                [--json FILE] [--profile]
//
// The program makes a run for each combination of a prompt's length, a depth and a number of streams. The
// sequences of a run begin with `depth` tokens and get a prompt (prefill rate: prompt tokens a second);
// then all of them generate side by side (decode rate). The program leaves out the runs whose keys and values
// do not fit the device, and names them.
//
// With --draft-accuracy the program makes each run twice. The first run records the answers. The second run
// guesses the recorded tokens, and each guess is right with the given chance, so any weights show what
// speculation gains. The program fails if the two runs give different tokens.
//
// --check-memory N measures what it costs to hold KV pages and weights to checksums
// (worker/engine/page_guard.hpp): the program makes N pairs of runs, one of each pair with checksums.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/decode_measure.hpp"
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
using Plan = bench::DecodePlan;

// Sets what the command line left out, so that a run takes seconds on this device.
void complete(Plan& plan, const gpu::Device& device) {
  const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
  if (plan.streams.empty())
    plan.streams =
        cpu ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>{1, 4, 16, 32};
  if (plan.prompts.empty()) plan.prompts = {cpu ? 64U : 512U};
  if (plan.tokens == 0) plan.tokens = cpu ? 32 : 128;
}

// Returns the options of an executor. load() sets the sizes that depend on the runs.
Result<forward::TransformerOptions> options_of(const Plan& plan) {
  config::Settings settings;
  BULKHEAD_RETURN_IF_ERROR(config::assign(settings, "engine.kv_type=" + plan.kv_type));
  for (const std::string& assignment : plan.assignments)
    BULKHEAD_RETURN_IF_ERROR(config::assign(settings, assignment));
  forward::TransformerOptions options;
  options.engine = settings.engine;
  options.gpu = settings.gpu_optimizations;
  options.cache_folder = plan.cache_folder;
  options.engine.max_batch = std::ranges::max(plan.streams);
  options.engine.speculation =
      plan.draft_accuracy >= 0 ? config::Speculation::kNgram : config::Speculation::kOff;
  if (plan.chunk != 0)
    options.engine.prefill_chunk = options.engine.prefill_chunk_alone = plan.chunk;
  if (plan.baseline) options.gpu.enabled = false;
  options.wait_timeout_ms = 60000;
  return options;
}

// A run and the KV positions that it needs.
struct Line {
  bench::DecodeRun run;
  std::uint32_t length = 0;  // of a stream
  std::uint64_t positions() const {
    return (std::uint64_t{length} + 63) / 32 * 32 * run.streams + 32;
  }
};

std::vector<Line> lines_of(const Plan& plan, std::uint32_t context) {
  std::vector<Line> lines;
  for (const std::uint32_t prompt : plan.prompts) {
    for (const std::uint32_t depth : plan.depths) {
      for (const std::uint32_t streams : plan.streams) {
        const bench::DecodeRun run{streams, depth, prompt};
        lines.push_back({run, bench::room_of(plan, run, context).length});
      }
    }
  }
  return lines;
}

// Loads the model with room for every run, and no more. Removes the runs that do not fit the device from `lines`.
Result<std::unique_ptr<forward::Transformer>> load(gpu::Device& device, const model::GgufFile& file,
                                                   const model::ModelGraph& graph,
                                                   forward::TransformerOptions& options,
                                                   std::vector<Line>& lines) {
  const std::uint64_t bytes =
      forward::kv_bytes_per_token(graph, forward::kv_format(options.engine.kv_type));
  for (;;) {
    const auto largest = std::ranges::max_element(lines, {}, &Line::positions);
    std::uint32_t longest = 0, streams = 0;
    for (const Line& line : lines) {
      longest = std::max(longest, line.length);
      streams = std::max(streams, line.run.streams);
    }
    options.engine.kv_cache_mb =
        static_cast<std::uint32_t>((bytes * largest->positions() >> 20) + 1);
    options.engine.max_batch = streams;
    options.context = std::min(graph.context, longest);
    auto made = forward::make_transformer(device, file, graph, options);
    if (made.ok() || made.error().code() != ErrorCode::kResourceExhausted || lines.size() == 1)
      return made;
    std::printf("%u streams at %u with prompts of %u are left out, because they do not fit %s\n",
                largest->run.streams, largest->run.depth, largest->run.prompt,
                device.info().name.c_str());
    lines.erase(largest);
  }
}

// Repeats a run with guesses of its recorded tokens. `without`: the figures of the run without guesses. Returns
// the figures of the new run, with its speedup.
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

Result<nlohmann::json> measure_all(bench::DecodeBench& bench, const Plan& plan,
                                   const std::vector<Line>& lines) {
  nlohmann::json results = nlohmann::json::array();
  for (const Line& line : lines) {
    const bench::DecodeBench::Run run{line.run};
    bench::Recorded recorded;
    BULKHEAD_TRY(const nlohmann::json result,
                 plan.check_pairs > 0 ? bench.cost_of_checks(run) : bench.measure(run, recorded));
    results.push_back(result);
    if (plan.draft_accuracy < 0) continue;
    BULKHEAD_TRY(nlohmann::json faster, measure_guesses(bench, plan, run, recorded, result));
    results.push_back(std::move(faster));
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
  BULKHEAD_TRY(forward::TransformerOptions options, options_of(plan));
  const bool cpu = device->info().kind == gpu::DeviceKind::kCpu;
  plan.widest = options.engine.prefill_chunk != 0
                    ? options.engine.prefill_chunk
                    : forward::widest_step(graph, options.engine, cpu);
  std::vector<Line> lines = lines_of(plan, graph.context);
  const Clock::time_point start = Clock::now();
  BULKHEAD_TRY(const auto executor, load(*device, *file, graph, options, lines));
  const double load = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("%s: %.2f GB of weights, loaded and warm in %.2f s\n", graph.name.c_str(),
              static_cast<double>(executor->weight_bytes()) / 1e9, load);

  bench::DecodeBench bench(*executor, plan, options.engine, bandwidth);
  BULKHEAD_TRY(nlohmann::json results, measure_all(bench, plan, lines));
  nlohmann::json report{{"benchmark", "decode"},
                        {"device", device->info().name},
                        {"driver", device->info().driver},
                        {"model", plan.model},
                        {"prompt", plan.prompts},
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
  options
      .add("--prompt", plan.prompts,
           "prompt tokens of each sequence, runs for each number (512; on a CPU 64)")
      .comma_separated()
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
  options.add("--depths", plan.depths, "tokens with which sequences begin")
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
           "this many pairs of runs, without and with checksums of KV pages and weights")
      .within(1, 1000);
  options.flag("--profile", plan.profile,
               "time each kernel of a decode step and of a prompt's step");
  options.flag("--baseline", plan.baseline, "memory pool, blit queue and command ring off");
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-decode", [&] { return run(plan); });
}

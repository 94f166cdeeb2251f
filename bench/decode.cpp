// How fast a model prefills and decodes straight on the executor (no daemon, no scheduler, no tokenizer: token ids are made up),
// and how near that comes to reading the weights at the device's own speed.
//
//   bench-decode --model FILE [--device SELECTOR] [--streams 1,16] [--prompt 512] [--tokens 128] [--json FILE] [--profile]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/device_speed.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "worker/forward/transformer.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Plan {
  std::string model, device = "auto", json_path, cache_folder, kv_type = "f16";
  std::vector<std::uint32_t> streams{1, 16};
  std::uint32_t prompt = 512, tokens = 128, chunk = 256;
  bool profile = false, baseline = false;
};

engine::TokenId made_up(std::uint32_t stream, std::uint32_t position, std::uint32_t vocabulary) {
  return (stream * 7919 + position * 104729 + 17) % vocabulary;
}

Result<nlohmann::json> measure(engine::Executor& executor, const Plan& plan, std::uint32_t streams,
                               double bandwidth) {
  const engine::ExecutorLimits& limits = executor.limits();
  const std::uint32_t length = plan.prompt + plan.tokens;
  const std::uint32_t pages_each = (length + limits.page_tokens - 1) / limits.page_tokens;
  if (length > limits.context || std::uint64_t{pages_each} * streams > limits.total_pages) {
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(streams) + " streams of " + std::to_string(length) +
                     " tokens do not fit the KV cache of " +
                     std::to_string(std::uint64_t{limits.total_pages} * limits.page_tokens) +
                     " tokens (context " + std::to_string(limits.context) +
                     "); lower --prompt or --tokens");
  }
  std::vector<std::vector<engine::PageIndex>> pages(streams);
  for (std::uint32_t s = 0; s < streams; ++s) {
    pages[s].resize(pages_each);
    std::iota(pages[s].begin(), pages[s].end(), s * pages_each);
  }
  const std::vector<std::span<const engine::PageIndex>> sequences(pages.begin(), pages.end());

  const Clock::time_point prefill_start = Clock::now();
  for (std::uint32_t s = 0; s < streams; ++s) {
    for (std::uint32_t at = 0; at < plan.prompt; at += plan.chunk) {
      std::vector<engine::Column> columns;
      for (std::uint32_t i = at; i < std::min(at + plan.chunk, plan.prompt); ++i) {
        const bool last = i + 1 == plan.prompt;
        columns.push_back({made_up(s, i, limits.vocabulary), i, s,
                           last ? engine::Output::kGreedy : engine::Output::kNone});
      }
      BULKHEAD_RETURN_IF_ERROR(executor.submit({columns, sequences}));
      BULKHEAD_RETURN_IF_ERROR(executor.wait());
    }
  }
  const double prefill = seconds_since(prefill_start);

  std::vector<engine::Column> columns(streams);
  std::vector<double> steps;
  const Clock::time_point decode_start = Clock::now();
  for (std::uint32_t t = 0; t < plan.tokens; ++t) {
    for (std::uint32_t s = 0; s < streams; ++s) {
      const std::uint32_t position = plan.prompt + t;
      columns[s] = {made_up(s, position, limits.vocabulary), position, s, engine::Output::kGreedy};
    }
    const Clock::time_point start = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(executor.submit({columns, sequences}));
    BULKHEAD_RETURN_IF_ERROR(executor.wait());
    steps.push_back(seconds_since(start));
  }
  const double decode = seconds_since(decode_start);
  std::sort(steps.begin(), steps.end());

  const double bytes = static_cast<double>(forward::weight_bytes_read(executor));
  const double rate = bytes * plan.tokens / decode;
  nlohmann::json result{
      {"streams", streams},
      {"prefill_tokens_per_s", streams * plan.prompt / prefill},
      {"decode_tokens_per_s", streams * plan.tokens / decode},
      {"step_ms_median", steps[steps.size() / 2] * 1e3},
      {"weight_bytes_per_step", bytes},
      {"weight_gb_per_s", rate / 1e9},
      {"fraction_of_read_bandwidth", bandwidth > 0 ? rate / bandwidth : 0.0},
  };
  std::printf(
      "%3u streams: prefill %9.1f tokens/s   decode %8.1f tokens/s (median step %.3f ms)   weights "
      "%.1f GB/s",
      streams, streams * plan.prompt / prefill, streams * plan.tokens / decode,
      steps[steps.size() / 2] * 1e3, rate / 1e9);
  if (bandwidth > 0) std::printf(" = %.0f %% of what the device can read", 100 * rate / bandwidth);
  std::printf("\n");

  if (plan.profile) {
    for (engine::Column& column : columns)
      column.position = length - 1;
    BULKHEAD_TRY(const auto times, forward::profile_step(executor, {columns, sequences}));
    result["kernels"] = bench::kernel_table(times, bandwidth);
  }
  return result;
}

Status run(const Plan& plan) {
  gpu::DeviceOptions device_options;
  device_options.selector = plan.device;
  device_options.cache_folder = plan.cache_folder;
  BULKHEAD_TRY(const auto device, gpu::Device::open(device_options));
  double bandwidth = 0;
  if (auto measured = bench::read_bandwidth(*device); measured.ok()) {
    bandwidth = *measured;
  } else {
    std::fprintf(stderr, "read bandwidth unknown: %s\n", measured.error().message().c_str());
  }
  std::printf("%s (%s), reads %.1f GB/s\n", device->info().name.c_str(),
              device->info().driver.c_str(), bandwidth / 1e9);

  BULKHEAD_TRY(const auto file, model::GgufFile::open(plan.model));
  BULKHEAD_TRY(const auto config, model::read_model_config(*file));
  forward::TransformerOptions options;
  options.engine.max_batch =
      std::max(*std::max_element(plan.streams.begin(), plan.streams.end()), 1U);
  options.engine.prefill_chunk = plan.chunk;
  options.engine.kv_type = plan.kv_type == "f32" ? config::KvType::kF32 : config::KvType::kF16;
  options.gpu.enabled = !plan.baseline;
  // Room for every stream, and no more.
  const std::uint64_t positions =
      (std::uint64_t{plan.prompt} + plan.tokens + 63) / 32 * 32 * options.engine.max_batch + 32;
  const std::uint64_t kv_bytes =
      forward::memory_need(*file, config, options.engine).kv_per_token * positions;
  options.engine.kv_cache_mb = static_cast<std::uint32_t>((kv_bytes >> 20) + 1);
  options.context = std::min(config.context, plan.prompt + plan.tokens);
  options.wait_timeout_ms = 60000;
  const Clock::time_point start = Clock::now();
  BULKHEAD_TRY(const auto executor, forward::make_transformer(*device, *file, config, options));
  const double load = seconds_since(start);
  std::printf("%s: %.2f GB of weights, loaded and warm in %.2f s\n", config.name.c_str(),
              static_cast<double>(executor->weight_bytes()) / 1e9, load);

  nlohmann::json report{{"benchmark", "decode"},
                        {"device", device->info().name},
                        {"driver", device->info().driver},
                        {"model", plan.model},
                        {"prompt", plan.prompt},
                        {"tokens", plan.tokens},
                        {"prefill_chunk", plan.chunk},
                        {"optimizations", !plan.baseline},
                        {"numerics_id", executor->numerics_id()},
                        {"weight_bytes", executor->weight_bytes()},
                        {"load_s", load},
                        {"read_bandwidth_gb_per_s", bandwidth / 1e9},
                        {"results", nlohmann::json::array()}};
  for (const std::uint32_t streams : plan.streams) {
    BULKHEAD_TRY(const nlohmann::json result, measure(*executor, plan, streams, bandwidth));
    report["results"].push_back(result);
  }
  if (!plan.json_path.empty()) {
    std::ofstream out(plan.json_path);
    out << report.dump(2) << '\n';
    if (!out) return Error(ErrorCode::kInvalidArgument, "cannot write " + plan.json_path);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  CLI::App app{
      "Prefill and decode speed of a model on the executor alone, beside the device's read "
      "bandwidth"};
  app.add_option("--model", plan.model, "GGUF file, or \"builtin\"")->required();
  app.add_option("--device", plan.device, "auto, cpu, an index or part of a device's name");
  app.add_option("--streams", plan.streams,
                 "sequences that decode side by side, one run for each number")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--prompt", plan.prompt, "prompt tokens of each sequence")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--tokens", plan.tokens, "generated tokens of each sequence")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--chunk", plan.chunk, "prompt tokens in a step")->check(CLI::Range(1, 4096));
  app.add_option("--kv-type", plan.kv_type, "f16 or f32")->check(CLI::IsMember({"f16", "f32"}));
  app.add_option("--json", plan.json_path, "write the figures there, too");
  app.add_option("--cache", plan.cache_folder, "folder where compiled kernels are kept");
  app.add_flag("--profile", plan.profile, "time each kernel of one decode step");
  app.add_flag("--baseline", plan.baseline, "memory pool, blit queue and command ring off");
  CLI11_PARSE(app, argc, argv);
  const Status status = run(plan);
  if (!status.ok()) {
    std::fprintf(stderr, "bench-decode: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

#include "worker/forward/warm_up.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "config/base/log.hpp"
#include "gpu/wear_in.hpp"
#include "worker/forward/chain.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {
constexpr std::uint32_t kSignOfLife_ms = 250;
// NVIDIA's driver (580) does its one-time work (gpu/wear_in.hpp) after some 640 submissions.
constexpr std::uint32_t kNvidia = 0x10de;
constexpr std::uint32_t kFirstSubmissions = 1024;
// Streams wait while a successor loads, so it runs only the shapes that generating streams need, and records the
// wider ones without running them. A wide shape's run takes 18 ms on an H200 with a 7B.
constexpr std::uint32_t kSuccessorRuns_columns = 32;
}  // namespace

Status wear_in_queues(gpu::Device& device, std::uint32_t timeout_ms) {
  if (device.info().vendor_id != kNvidia) return {};
  const auto begin = Clock::now();
  BULKHEAD_RETURN_IF_ERROR(gpu::wear_in(device, kFirstSubmissions, timeout_ms));
  spdlog::debug("{} submissions to each queue in {:.1f} ms", kFirstSubmissions,
                static_cast<double>(nanoseconds_since(begin)) / 1e6);
  return {};
}

// A CPU device takes as long for a step of one column in a wide shape as for all columns that a kernel computes at
// once, and a kernel's second run does nothing that its first run did not do. So on CPU devices only those shapes run
// that have kernels which no narrower shape has.
Result<std::vector<bool>> WarmUp::shapes_to_run() {
  std::vector<bool> runs(steps_.shapes().size(), true);
  if (options_.predecessor != nullptr) {
    for (std::size_t i = 0; i < runs.size(); ++i)
      runs[i] = steps_.shapes()[i].columns <= kSuccessorRuns_columns;
  }
  if (context_.device->info().kind != gpu::DeviceKind::kCpu) return runs;
  std::set<gpu::KernelSpec, gpu::MakesAnotherPipeline> known;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<gpu::KernelSpec> specs;
    BULKHEAD_RETURN_IF_ERROR(list_kernels(
        context_, specs, [&] { return build_step(context_, Activations(), steps_.shapes()[i]); }));
    const std::size_t before = known.size();
    known.insert(specs.begin(), specs.end());
    runs[i] = known.size() > before;
  }
  return runs;
}

// A step of one column is enough: a shape's kernels are the same whatever the step's counts are.
Status WarmUp::run_every_shape(engine::ExecutorLimits& limits, LoadTimes& times) {
  const std::vector<StepShape>& shapes = steps_.shapes();
  BULKHEAD_TRY(const std::vector<bool> runs, shapes_to_run());
  const engine::PageIndex page = hidden_page(limits);
  const std::span<const engine::PageIndex> sequence(&page, 1);
  const engine::Choice choice;
  engine::Column column{0, 0, 0, engine::Output::kGreedy};
  if (limits.sampled_top_k > 0) column.output = engine::Output::kSampled;
  column.choice = &choice;
  column.logprobs = std::min(limits.most_logprobs, 1);
  if (!context_.graph.makes_logits) column = {0, 0, 0, engine::Output::kNone};
  const engine::Step step{std::span(&column, 1), std::span(&sequence, 1)};
  std::size_t done = 0;
  // A single call of the driver or a single wait may take long, above all in the first shape. Signs of life are given
  // between them.
  context_.alive = [&] {
    if (options_.progress) options_.progress("warm-up", done, shapes.size());
  };
  // Wide shapes come first, because a smaller ring then keeps the narrow ones.
  Status status;
  while (status.ok() && done < shapes.size()) {
    context_.alive();
    const bool chains = context_.chain.columns > 0;
    const std::size_t index = shapes.size() - 1 - done;
    status = runs[index] ? run(step, shapes[index]) : steps_.record(shapes[index]);
    ++done;
    // The chain gave up, so other recordings are used from here on.
    if (chains && context_.chain.columns == 0) done = 0;
  }
  // No step of the warm-up adjusts logits, has a top-p or asks for hidden states. Their kernels are compiled; the
  // recordings are made here.
  if (status.ok() && context_.graph.makes_logits) {
    const bool adjusts = limits.adjusts;
    const bool draws = limits.sampled_top_k > 0;
    const OutputWishes likely[] = {{.draws = draws},
                                   {.adjusts = adjusts, .draws = draws},
                                   {.adjusts = adjusts, .edits = adjusts, .draws = draws},
                                   {.cuts = draws, .draws = draws},
                                   {.hidden = true}};
    for (const OutputWishes& wishes : likely) {
      if (status.ok()) status = steps_.record(shapes.front(), wishes);
    }
  }
  // The narrow shape runs once more, with everything compiled, and shows how fast this device is with this model.
  const auto narrow = Clock::now();
  if (status.ok()) status = run(step, shapes.front());
  limits.step_us = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(nanoseconds_since(narrow) / 1000, 1, 1U << 31));
  context_.alive();
  context_.alive = nullptr;
  BULKHEAD_RETURN_IF_ERROR(status);
  steps_.set_steps(0);
  const auto saving = Clock::now();
  if (const Status saved = context_.device->save_pipeline_cache(); !saved.ok())
    spdlog::warn("the compiled kernels could not be kept: {}", saved.error().message());
  times.save_ns = nanoseconds_since(saving);
  return {};
}

// Measures variants of the narrow steps' products on the hidden page, and keeps the fastest ones.
Status WarmUp::tune(Tuning& tuning, engine::ExecutorLimits& limits, LoadTimes& times) {
  if (options_.gpu.autotune.budget_ms == 0 || tuning.unmeasured().empty()) return {};
  const std::uint64_t steps = steps_.steps();
  const auto measure = [&](std::uint32_t columns) {
    if (options_.progress) options_.progress("tuning", tuning.measured(), tuning.products());
    return time_step(columns, limits);
  };
  Status tuned = heat_up(measure);
  if (tuned.ok()) tuned = tuning.run(measure, options_.gpu.autotune.budget_ms);
  if (!tuned.ok() && !steps_.broken().ok()) return tuned;
  if (!tuned.ok()) spdlog::warn("{}; kernels are used as they are", tuned.error().message());
  // The variant that was tried last is not always the chosen one.
  steps_.forget_all();
  BULKHEAD_RETURN_IF_ERROR(run_every_shape(limits, times));
  steps_.set_steps(steps);
  return {};
}

// While kernels were compiled, the device had nothing to do and lowered its clock. So this runs steps until they get
// no faster. An H200's first step took 2.7 ms; a quarter of a second later 0.95 ms were enough.
Status WarmUp::heat_up(const Tuning::Measure& measure) {
  if (context_.device->info().kind == gpu::DeviceKind::kCpu) return {};
  constexpr auto kLongest = std::chrono::milliseconds(1000), kLook = std::chrono::milliseconds(100);
  const auto begin = Clock::now();
  double before = 0;
  while (Clock::now() - begin < kLongest) {
    double least = 0;
    const auto look = Clock::now();
    do {
      BULKHEAD_TRY(const double took, measure(1));
      if (least == 0 || took < least) least = took;
    } while (Clock::now() - look < kLook);
    if (before != 0 && least > before * 0.99) break;
    before = least;
  }
  return {};
}

// Makes a step of this many columns anew with the tuning's choices. Returns the shortest time of several runs, in
// microseconds.
Result<double> WarmUp::time_step(std::uint32_t columns, const engine::ExecutorLimits& limits) {
  const StepShape shape =
      shape_for(steps_.shapes(), columns, std::min(columns, limits.max_outputs));
  columns = std::min(columns, shape.columns);
  steps_.forget(shape.columns);
  const engine::PageIndex page = hidden_page(limits);
  const std::span<const engine::PageIndex> sequence(&page, 1);
  std::vector<engine::Column> all(columns);
  for (std::uint32_t i = 0; i < columns; ++i)
    all[i] = {0, i % k::kPageTokens, 0,
              i < shape.outputs ? engine::Output::kGreedy : engine::Output::kNone};
  const engine::Step step{all, std::span(&sequence, 1)};
  // Uses the device's clock if the device has timestamps, because a host that wakes up late adds 2 % to a step.
  const gpu::Activity& activity = context_.device->activity();
  const bool by_device = context_.device->info().kind != gpu::DeviceKind::kCpu;
  double least = 0;
  for (int run = 0; run < 5; ++run) {
    const gpu::ActivityTotals before = activity.totals();
    const auto begin = Clock::now();
    BULKHEAD_RETURN_IF_ERROR(steps_.start(step, shape));
    BULKHEAD_RETURN_IF_ERROR(steps_.wait().ok() ? Status() : steps_.broken());
    double took = static_cast<double>(nanoseconds_since(begin)) / 1e3;
    const gpu::ActivityTotals after = activity.totals();
    if (by_device && after.computed == before.computed + 1)
      took = static_cast<double>(after.compute_ns - before.compute_ns) / 1e3;
    // The first run makes the recording.
    if (run == 1 || (run > 1 && took < least)) least = took;
  }
  return least;
}

Status WarmUp::run(const engine::Step& step, StepShape shape) {
  const auto begin = Clock::now();
  BULKHEAD_RETURN_IF_ERROR(steps_.start(step, shape));
  const std::uint64_t started = nanoseconds_since(begin);
  const std::uint32_t timeout_ms = options_.wait_timeout_ms;
  for (std::uint32_t waited = 0; waited < timeout_ms; waited += kSignOfLife_ms) {
    BULKHEAD_TRY(const bool over, steps_.finished(std::min(kSignOfLife_ms, timeout_ms)));
    if (over) break;
    context_.alive();
  }
  BULKHEAD_TRY([[maybe_unused]] const auto outputs, steps_.wait());
  spdlog::debug("warm-up: steps of up to {} columns recorded in {:.1f} ms, run in {:.1f} ms",
                shape.columns, static_cast<double>(started) / 1e6,
                static_cast<double>(nanoseconds_since(begin) - started) / 1e6);
  return {};
}

}  // namespace bulkhead::forward

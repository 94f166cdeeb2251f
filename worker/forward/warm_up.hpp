// Runs steps without a request while the model is loaded. They cover enough shapes that every kernel is compiled and
// every recording exists before the first request; some also time variants of kernels. They write only to the hidden
// page.
#pragma once

#include <cstdint>
#include <vector>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/load_figures.hpp"
#include "worker/forward/step_program.hpp"
#include "worker/forward/step_runner.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/forward/tuning.hpp"

namespace bulkhead::forward {

class WarmUp {
 public:
  WarmUp(StepContext& context, StepRunner& steps, const TransformerOptions& options)
      : context_(context), steps_(steps), options_(options) {}

  // Measures how long a step of one column takes (limits.step_us), and saves the compiled kernels.
  Status run_every_shape(engine::ExecutorLimits& limits, LoadTimes& times);
  // Measures variants of the narrow steps' products and keeps the fastest.
  Status tune(Tuning& tuning, engine::ExecutorLimits& limits, LoadTimes& times);

 private:
  Result<std::vector<bool>> shapes_to_run();
  Status run(const engine::Step& step, StepShape shape);
  Status heat_up(const Tuning::Measure& measure);
  Result<double> time_step(std::uint32_t columns, const engine::ExecutorLimits& limits);

  StepContext& context_;
  StepRunner& steps_;
  const TransformerOptions& options_;
};

// Some drivers do slow work once, at a later submission of a process. This function submits almost nothing until that
// has happened. Call it while no other thread submits.
Status wear_in_queues(gpu::Device& device, std::uint32_t timeout_ms);

// Returns a page that no sequence gets: the one with the next index after the pages of sequences.
inline engine::PageIndex hidden_page(const engine::ExecutorLimits& limits) {
  return limits.total_pages;
}

}  // namespace bulkhead::forward

// Engines that speculate: a device that computes drafts, and the engine's options.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {

// `depth`: steps in flight.
inline engine::ExecutorLimits limits_of(std::uint32_t depth) {
  engine::ExecutorLimits limits = small_limits();
  limits.steps_in_flight = depth;
  limits.max_outputs = 24;
  limits.max_drafts = 15;
  limits.sampled_top_k = 64;
  limits.most_logprobs = 20;
  return limits;
}

// The same for a model with states. `saved`: the most snapshots.
inline engine::ExecutorLimits limits_with_states(std::uint32_t depth, std::uint32_t max_batch = 16,
                                                 std::uint32_t saved = 6) {
  engine::ExecutorLimits limits = limits_of(depth);
  limits.states = max_batch + saved + limits.max_drafts;
  return limits;
}

inline engine::EngineOptions options_of(engine::Speculation speculation) {
  engine::EngineOptions options;
  options.scheduler = {.max_batch = 16, .prefill_chunk = 32, .prefix_cache = true};
  options.speculation = speculation;
  return options;
}

// Guesses nothing, so that only the draft model or the block guesses.
class NoSource final : public engine::DraftSource {
 public:
  void advance(std::span<const ipc::TokenId>) override {}
  std::size_t guess(std::span<const ipc::TokenId>, std::span<ipc::TokenId>) const override {
    return 0;
  }
};

// Options of an engine that always asks `draft`, a draft model or a block that drafts tokens.
inline engine::EngineOptions asking(engine::Executor& draft, bool ngrams = false) {
  engine::EngineOptions options = options_of(engine::Speculation::kAlways);
  options.draft_model = &draft;
  if (!ngrams) {
    options.draft_source = [](std::span<const ipc::TokenId>) {
      return std::make_unique<NoSource>();
    };
  }
  return options;
}

}  // namespace bulkhead::test

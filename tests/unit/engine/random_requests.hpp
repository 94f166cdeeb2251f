// Random requests of every kind, and caches and settings on which an engine may serve them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine_harness.hpp"
#include "tests/unit/engine/tokens.hpp"
#include "worker/engine/engine.hpp"

namespace bulkhead::test {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  std::uint32_t between(std::uint32_t least, std::uint32_t most) {
    return least + below(most - least + 1);
  }
  bool one_in(std::uint32_t chances) { return below(chances) == 0; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::uint32_t>(values.size()))];
  }

 private:
  std::mt19937_64 random_;
};

inline constexpr std::uint32_t kLongestPrompt = 80, kLongestAnswer = 40;

inline void draw_sampling(Draw& draw, ipc::Submit& request) {
  if (draw.one_in(3)) return;  // greedy
  ipc::Sampling& sampling = request.sampling;
  sampling.temperature = draw.of({0.3F, 0.9F, 1.5F});
  sampling.seed = draw.below(1000);
  if (draw.one_in(2)) sampling.top_k = draw.of({1U, 15U, 40U, 100U, 300U});
  if (draw.one_in(2)) sampling.top_p = draw.of({0.2F, 0.9F});
  if (draw.one_in(3)) sampling.min_p = 0.05F;
}

inline ipc::Constraint some_constraint(Draw& draw) {
  using Kind = ipc::ConstraintKind;
  switch (draw.below(4)) {
    case 0:
      return {Kind::kJsonObject, "", "response_format"};
    case 1:
      return {Kind::kGrammar, "root ::= \"yes\" | \"no\" root", "grammar"};
    case 2:
      return {Kind::kRegex, "(abc|[0-9]{2,9}x)*end", "regex"};
    default:
      return {
          Kind::kJsonSchema,
          R"({"type":"object","properties":{"name":{"enum":["fox","ox"]},"age":{"type":"integer"}},)"
          R"("required":["name"],"additionalProperties":false})",
          "response_format"};
  }
}

// A request without its prompt.
inline ipc::Submit some_request(Draw& draw, std::uint64_t id) {
  ipc::Submit request = greedy_request(id, {}, draw.between(1, kLongestAnswer));
  draw_sampling(draw, request);
  ipc::Sampling& sampling = request.sampling;
  if (draw.one_in(4)) sampling.repetition_penalty = draw.of({0.8F, 1.2F});
  if (draw.one_in(5)) sampling.frequency_penalty = draw.of({-0.5F, 0.4F});
  if (draw.one_in(5)) sampling.presence_penalty = 0.7F;
  if (draw.one_in(3)) request.logprobs = draw.of({0, 2, 5, 20});
  if (draw.one_in(6)) request.stop = {std::string(1, static_cast<char>(draw.below(128))), "ab"};
  if (draw.one_in(6)) request.stop_tokens = {draw.below(256), draw.below(256)};
  if (draw.one_in(6)) request.logit_bias = {{draw.below(300), 6.0F}, {draw.below(300), -3.0F}};
  if (request.logit_bias.size() == 2 && request.logit_bias[0].token == request.logit_bias[1].token)
    request.logit_bias.pop_back();
  request.ignore_eos = draw.one_in(2);
  if (draw.one_in(5)) request.constraint = some_constraint(draw);
  request.tell_prompt = draw.one_in(6);
  request.prompt_only = request.tell_prompt && draw.one_in(3);
  return request;
}

inline void draw_slabs(Draw& draw, engine::ExecutorLimits& limits) {
  limits.first_pages = limits.total_pages;
  limits.slab_pages = draw.of({1U, 3U, 8U});
  limits.total_pages += limits.slab_pages * draw.between(1, 12);
  if (draw.one_in(2)) limits.eager_pages = limits.first_pages + draw.below(30);
  if (limits.window == 0) return;
  limits.window_first_pages = limits.window_pages;
  limits.window_slab_pages = draw.of({1U, 4U});
  limits.window_pages += limits.window_slab_pages * draw.between(1, 12);
  if (draw.one_in(2)) limits.window_eager_pages = limits.window_first_pages + draw.below(20);
}

inline engine::ExecutorLimits some_limits(Draw& draw, std::uint32_t max_batch) {
  engine::ExecutorLimits limits = small_limits();
  limits.steps_in_flight = draw.between(1, 4);
  limits.max_columns = draw.of({3U, 17U, 64U});
  limits.max_outputs = draw.of({2U, 16U, 24U});
  limits.max_sequences = draw.of({2U, 16U});
  limits.page_tokens = draw.of({2U, 4U, 8U});
  const std::uint32_t longest = limits.context / limits.page_tokens;
  limits.total_pages = longest + (draw.one_in(2) ? draw.below(8) : draw.below(200));
  limits.max_drafts = draw.of({0U, 3U, 15U});
  limits.sampled_top_k = draw.of({0U, 20U, 64U});
  limits.most_logprobs = draw.of({-1, 2, 20});
  limits.adjusts = draw.one_in(2);
  limits.hands_tokens_on = !draw.one_in(4);
  limits.most_pages_summed = draw.of({0U, 1U, 3U});
  if (draw.one_in(3)) limits.widths = {1, 2, 4, 8, 16, 32, 64};
  if (draw.one_in(2)) {
    limits.window = draw.of({1U, 3U, 10U, 33U});
    limits.window_pages = engine::window_reserve(limits.window, limits.page_tokens) +
                          (draw.one_in(2) ? draw.below(4) : draw.below(100));
  }
  if (draw.one_in(2)) draw_slabs(draw, limits);
  if (draw.one_in(3)) limits.states = max_batch + limits.max_drafts + draw.below(8);
  return limits;
}

inline engine::ExecutorLimits limits_of_encoder(Draw& draw) {
  engine::ExecutorLimits limits = small_limits();
  limits.both_ways = true;
  limits.max_columns = limits.context + draw.below(60);
  limits.steps_in_flight = draw.between(1, 4);
  limits.page_tokens = draw.of({2U, 8U});
  limits.total_pages = limits.context / limits.page_tokens + draw.below(100);
  return limits;
}

inline engine::EngineOptions some_options(Draw& draw) {
  engine::EngineOptions options;
  options.scheduler.max_batch = draw.of({1U, 2U, 5U, 16U});
  options.scheduler.prefill_chunk = draw.of({0U, 1U, 5U, 16U, 32U});
  options.scheduler.prefill_chunk_alone = draw.of({0U, 64U});
  options.scheduler.prefix_cache = !draw.one_in(4);
  options.scheduler.max_token_gap = std::chrono::milliseconds(draw.of({0, 20}));
  options.flush_tokens = draw.of({1U, 4U});
  options.speculation = draw.of({engine::Speculation::kOff, engine::Speculation::kNgram,
                                 engine::Speculation::kAlways, engine::Speculation::kAlways});
  options.check_memory = std::chrono::seconds(draw.of({0, 10}));
  options.keep_slabs = std::chrono::seconds(draw.of({0, 1}));
  return options;
}

}  // namespace bulkhead::test

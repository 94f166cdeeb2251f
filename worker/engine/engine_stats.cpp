// The figures that the engine reports.
#include <utility>

#include "config/base/worker_figures.hpp"
#include "worker/engine/engine.hpp"

namespace bulkhead::engine {
namespace {

// What the prefix cache saved. Prompt tokens that a sequence computes anew after it lost its pages
// count again, found or not.
void add_prefix_figures(const Scheduler& scheduler, ipc::Stats& stats) {
  const PrefixFigures& figures = scheduler.prefix_figures();
  const auto add = [&](FigureName name, auto value) {
    stats.counters.push_back({name.text(), static_cast<double>(value)});
  };
  add("prefix_cache_hit_tokens_total", figures.hit_tokens);
  add("prefix_cache_miss_tokens_total", figures.miss_tokens);
  add("prefix_cache_hit_pages_total", figures.hit_pages);
  add("prefix_cache_miss_pages_total", figures.miss_pages);
  add("prefix_cache_pages", scheduler.pool().cached_pages());
  add("prefix_cache_evictions_total", scheduler.pool().evictions());
  if (const WindowPool& windows = scheduler.pool().windows(); windows.exists()) {
    add("window_pages", windows.total_pages());
    add("window_pages_present", windows.present_pages());
    add("window_pages_used", windows.used_pages());
    add("window_page_evictions_total", windows.evictions());
  }
  if (scheduler.states().slots() > 0) {
    add("state_snapshots", scheduler.states().snapshots());
    add("state_snapshot_evictions_total", scheduler.states().evictions());
  }
  const std::uint64_t tokens = figures.hit_tokens + figures.miss_tokens;
  add("prefix_cache_hit_ratio",
      tokens == 0 ? 0.0 : static_cast<double>(figures.hit_tokens) / static_cast<double>(tokens));
}

// The slabs of a cache that grows.
void add_slab_figures(const PagePool& pool, ipc::Stats& stats) {
  const auto add = [&](FigureName name, auto value) {
    stats.counters.push_back({name.text(), static_cast<double>(value)});
  };
  add("kv_pages_present", pool.present_pages());
  add("kv_slabs", pool.slabs_present());
}

void add_speculation_figures(const Speculator::Figures& figures, ipc::Stats& stats) {
  const auto add = [&](FigureName name, auto value) {
    stats.counters.push_back({name.text(), static_cast<double>(value)});
  };
  add("speculation_drafted_tokens_total", figures.drafted);
  add("speculation_accepted_tokens_total", figures.accepted);
  add("speculation_steps_total", figures.steps);
  add("speculation_gained_seconds", figures.gained_seconds);
}

void add_draft_model_figures(const Speculator::Figures& figures, const DraftModel& model,
                             ipc::Stats& stats) {
  const auto add = [&](FigureName name, auto value) {
    stats.counters.push_back({name.text(), static_cast<double>(value)});
  };
  add("draft_model_drafted_tokens_total", figures.model_drafted);
  add("draft_model_accepted_tokens_total", figures.model_accepted);
  add("draft_model_read_tokens_total", model.read_tokens());
  add("draft_model_seconds_total", figures.model_seconds);
  add("draft_model_bytes", model.bytes());
}

}  // namespace

MemoryFigures Engine::memory_figures() const {
  const PagePool& pool = scheduler_.pool();
  MemoryFigures figures{.full = {pool.present_pages(), pool.used_pages(), pool.cached_pages()},
                        .snapshots = scheduler_.states().snapshots(),
                        .left_out = scheduler_.states().left_out(),
                        .damaged = guard_.figures().damaged};
  if (const WindowPool& windows = pool.windows(); windows.exists())
    figures.windows = {windows.present_pages(), windows.used_pages(), windows.cached_pages()};
  for (const PageKind kind : kPageKinds)
    figures.left_out += pool.pages_left_out(kind);
  return figures;
}

ipc::Stats Engine::stats() const {
  ipc::Stats stats;
  stats.steps = scheduler_.steps();
  stats.active_sequences = static_cast<std::uint32_t>(scheduler_.running());
  stats.waiting_sequences = static_cast<std::uint32_t>(scheduler_.waiting() + tickets_.size());
  stats.kv_pages_used = scheduler_.pool().used_pages();
  stats.kv_pages_total = scheduler_.pool().total_pages();
  const auto add = [&](FigureName name, double value) {
    stats.counters.push_back({name.text(), value});
  };
  FigureCounts counts = counts_;
  counts += scheduler_.counts();
  counts.for_each([&stats](std::string_view name, double value) {
    stats.counters.push_back({std::string(name), value});
  });
  add("step_seconds_total", std::chrono::duration<double>(device_time_).count());
  const GuardFigures& guarded = guard_.figures();
  add("kv_pages_summed_total", static_cast<double>(guarded.summed));
  add("kv_pages_checked_total", static_cast<double>(guarded.checked));
  add("kv_pages_damaged_total", static_cast<double>(guarded.damaged));
  add("kv_pages_quarantined", memory_figures().left_out);
  add_prefix_figures(scheduler_, stats);
  if (!slabs_leave_after_.empty()) add_slab_figures(scheduler_.pool(), stats);
  add_speculation_figures(speculator_.figures(), stats);
  if (draft_model_ != nullptr) add_draft_model_figures(speculator_.figures(), *draft_model_, stats);
  for (FigureValue& figure : executor_.counters())
    stats.counters.push_back({std::move(figure.name), figure.value});
  return stats;
}

}  // namespace bulkhead::engine

// The figures that workers report in addition to those of ipc::Stats, one row for each name. A worker sends only
// names and values, because the daemon does not let a worker choose types and texts. A figure without a row does not
// compile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace bulkhead {

struct WorkerFigure {
  enum class Kind : std::uint8_t {
    kCounter,  // a value that only grows, from 0 at the start of the worker's process
    kGauge,
  };
  std::string_view
      name;  // as workers send it; orchestrator/metrics/metric_name.hpp makes the metric's name of it
  Kind kind = Kind::kGauge;
  std::string_view unit;  // of the metric: "bytes", "s", ..., never "us"
  std::string_view help;
  // Set for a counter that FigureCounts keeps. The worker reports it from its start on.
  bool counted = false;

  // Returns a text such as "Memory that the pool has lent (bytes)".
  std::string help_with_unit() const { return std::string(help) + " (" + std::string(unit) + ")"; }
};

namespace worker_figures {

inline constexpr auto kCounter = WorkerFigure::Kind::kCounter;
inline constexpr auto kGauge = WorkerFigure::Kind::kGauge;
inline constexpr bool kCounted = true;

// The rows are sorted by name.
inline constexpr WorkerFigure kRows[] = {
    {"blit_average_download_microseconds", kGauge, "s", "Mean time of a download"},
    {"blit_average_sync_wait_microseconds", kGauge, "s",
     "Mean time that the host waits for a transfer"},
    {"blit_average_upload_microseconds", kGauge, "s", "Mean time of an upload"},
    {"blit_bytes_downloaded", kCounter, "bytes", "Data copied from the device"},
    {"blit_bytes_uploaded", kCounter, "bytes", "Data copied to the device"},
    {"blit_downloads", kCounter, "transfers", "Downloads"},
    {"blit_overlap_ratio", kGauge, "0 to 1",
     "Share of the transfers' time during which the device computed"},
    {"blit_overlapped_seconds", kCounter, "s",
     "Time of transfers during which the device computed"},
    {"blit_pending", kGauge, "transfers", "Transfers that have not ended"},
    {"blit_pending_limit", kGauge, "transfers",
     "Most transfers that may be under way at one time, in both directions"},
    {"blit_pending_peak", kGauge, "transfers", "Most transfers that had not ended at one time"},
    {"blit_stalls", kCounter, "waits", "Waits for staging memory or for an earlier transfer"},
    {"blit_sync_wait_seconds", kCounter, "s", "Time that the host waited for transfers"},
    {"blit_sync_waits", kCounter, "waits", "Waits of the host for a transfer"},
    {"blit_transfer_seconds", kCounter, "s", "Time of all transfers"},
    {"blit_uploads", kCounter, "transfers", "Uploads"},
    {"cancelled_requests_total", kCounter, "requests",
     "Requests that ended before their last token because the daemon cancelled them", kCounted},
    {"channel_bytes_sent_total", kCounter, "bytes", "Data that the worker sent to the daemon"},
    {"channel_doorbells_sent_total", kCounter, "wake-ups", "Times that the worker woke the daemon"},
    {"channel_full_stalls_total", kCounter, "sends", "Sends that found no room in the ring"},
    {"channel_records_sent_total", kCounter, "records",
     "Records that the worker sent to the daemon"},
    {"command_buffers_begun", kCounter, "command buffers", "Command buffers that recording began"},
    {"device_allocations", kCounter, "allocations", "Allocations of device memory"},
    {"device_memory_bytes", kGauge, "bytes", "Memory of the worker's device"},
    {"device_memory_free_bytes", kGauge, "bytes",
     "Device memory that the worker could still allocate, by the driver's budget"},
    {"discarded_outputs_total", kCounter, "outputs", "Outputs of requests that had ended",
     kCounted},
    {"draft_model_accepted_tokens_total", kCounter, "tokens",
     "Tokens guessed by the draft model that were right"},
    {"draft_model_bytes", kGauge, "bytes",
     "Device memory of the draft model's weights and KV cache"},
    {"draft_model_drafted_tokens_total", kCounter, "tokens", "Tokens guessed by the draft model"},
    {"draft_model_read_tokens_total", kCounter, "tokens",
     "Tokens of prompts and answers that the draft model read"},
    {"draft_model_seconds_total", kCounter, "s", "Time that the draft model took"},
    {"draws_below_accepted_total", kCounter, "tokens",
     "Tokens that were drawn again although the daemon had them", kCounted},
    {"generated_tokens_total", kCounter, "tokens", "Tokens generated", kCounted},
    {"gpu_allocated_bytes", kGauge, "bytes", "Device memory allocated"},
    {"gpu_allocated_bytes_peak", kGauge, "bytes", "Most device memory allocated at one time"},
    {"gpu_busy_seconds", kCounter, "s", "Time that the device computed"},
    {"gpu_busy_share", kGauge, "0 to 1",
     "Share of the time since the last report that the device computed"},
    {"gpu_idle_seconds", kCounter, "s", "Time between computations"},
    {"kernel_profiles", kCounter, "steps", "Steps whose kernels were timed"},
    {"kv_bytes", kGauge, "bytes", "Device memory that keys, values and states have now"},
    {"kv_bytes_at_first", kGauge, "bytes",
     "Device memory that keys, values and states have from the beginning"},
    {"kv_bytes_per_token", kGauge, "bytes", "KV cache memory that a token takes"},
    {"kv_pages_checked_total", kCounter, "pages",
     "KV pages and saved states compared with their checksums"},
    {"kv_pages_damaged_total", kCounter, "pages",
     "KV pages and saved states that differed from their checksums"},
    {"kv_pages_present", kGauge, "pages", "KV pages that have memory, of a cache that can grow"},
    {"kv_pages_quarantined", kGauge, "pages",
     "KV pages, and slots of saved states, left out because their memory changed"},
    {"kv_pages_summed_total", kCounter, "pages",
     "KV pages and saved states whose checksum was made"},
    {"kv_slabs", kGauge, "slabs", "Slabs by which the KV cache has grown"},
    {"kv_slabs_added_total", kCounter, "slabs", "Slabs that were added to the KV cache", kCounted},
    {"kv_slabs_refused_total", kCounter, "slabs",
     "Slabs that the KV cache did not get because the device had no memory to spare", kCounted},
    {"kv_slabs_returned_total", kCounter, "slabs",
     "Slabs of the KV cache that were given back because they were not needed", kCounted},
    {"load_allocate_seconds", kGauge, "s", "Time of the load that allocating took"},
    {"load_copy_seconds", kGauge, "s", "Time of the load that copies to the device took"},
    {"load_kernels_seconds", kGauge, "s", "Time of the load that making kernels took"},
    {"load_pack_thread_seconds", kGauge, "s",
     "Time of the load in which threads packed weights, summed over threads"},
    {"load_read_thread_seconds", kGauge, "s",
     "Time of the load in which threads read weights, summed over threads"},
    {"load_seconds", kGauge, "s", "Time that loading the model took"},
    {"load_warm_up_seconds", kGauge, "s", "Time of the load that the warm-up took"},
    {"load_weights_seconds", kGauge, "s",
     "Time of the load that moving weights to the device took"},
    {"max_batch", kGauge, "sequences", "Most sequences that the worker computes at a time"},
    {"nonfinite_outputs_total", kCounter, "outputs", "Outputs whose logits were not finite numbers",
     kCounted},
    {"plan_seconds", kCounter, "s", "Time that making the programs of steps took"},
    {"pool_acquires", kCounter, "buffers", "Buffers that the pool lent"},
    {"pool_active_heaps", kGauge, "heaps", "Heaps of the pool that have lent a buffer"},
    {"pool_allocation_seconds", kCounter, "s", "Time that lending buffers took"},
    {"pool_average_allocation_microseconds", kGauge, "s", "Mean time of lending a buffer"},
    {"pool_bytes_in_use", kGauge, "bytes", "Memory that the pool has lent"},
    {"pool_bytes_peak", kGauge, "bytes", "Most memory that the pool had lent at one time"},
    {"pool_bytes_reserved", kGauge, "bytes", "Memory that the pool holds"},
    {"pool_external_fragmentation", kGauge, "0 to 1",
     "Share of the free memory outside the largest free piece"},
    {"pool_fallback_allocations", kCounter, "buffers", "Buffers that did not fit the heaps"},
    {"pool_heaps", kGauge, "heaps", "Heaps of the pool"},
    {"pool_hit_rate", kGauge, "0 to 1", "Share of the buffers that came from the heaps"},
    {"pool_hits", kCounter, "buffers", "Buffers that came from the heaps"},
    {"pool_internal_fragmentation", kGauge, "0 to 1",
     "Share of the lent memory that exceeds what was requested"},
    {"pool_largest_allocation_bytes", kGauge, "bytes", "Largest buffer that was lent"},
    {"pool_release_seconds", kCounter, "s", "Time that taking buffers back took"},
    {"pool_utilisation", kGauge, "0 to 1", "Share of the pool's memory that is lent"},
    {"preemptions_total", kCounter, "preemptions",
     "Times that a sequence lost its KV pages to another one", kCounted},
    {"prefix_cache_evictions_total", kCounter, "pages",
     "Pages removed from the prefix cache to make room"},
    {"prefix_cache_hit_pages_total", kCounter, "pages",
     "Pages that sequences reused from the prefix cache"},
    {"prefix_cache_hit_ratio", kGauge, "0 to 1",
     "Share of the prompts' tokens found in the prefix cache"},
    {"prefix_cache_hit_tokens_total", kCounter, "tokens",
     "Prompts' tokens found in the prefix cache"},
    {"prefix_cache_miss_pages_total", kCounter, "pages",
     "Full pages of prompts that were computed"},
    {"prefix_cache_miss_tokens_total", kCounter, "tokens", "Prompts' tokens that were computed"},
    {"prefix_cache_pages", kGauge, "pages", "Pages that the prefix cache can find"},
    {"prompt_tokens_total", kCounter, "tokens", "Tokens of all prompts", kCounted},
    {"requests_computed_again_total", kCounter, "requests",
     "Requests computed again because their results were invalid", kCounted},
    {"resumed_requests_total", kCounter, "requests", "Requests that another worker had begun",
     kCounted},
    {"ring_average_wait_microseconds", kGauge, "s", "Mean time that the host waits for the device"},
    {"ring_recording_seconds", kCounter, "s", "Time that recording commands took"},
    {"ring_recordings", kCounter, "recordings", "Command buffers recorded"},
    {"ring_replays", kCounter, "submissions", "Submissions of commands that were recorded before"},
    {"ring_reuse_rate", kGauge, "0 to 1", "Share of the submissions that are replays"},
    {"ring_submissions", kCounter, "submissions", "Command buffers submitted"},
    {"ring_submit_seconds", kCounter, "s", "Time that submitting took"},
    {"ring_wait_microseconds", kCounter, "s", "Time that the host waited for the device"},
    {"ring_waits", kCounter, "waits", "Waits of the host for the device"},
    {"speculation_accepted_tokens_total", kCounter, "tokens", "Guessed tokens that were right"},
    {"speculation_drafted_tokens_total", kCounter, "tokens", "Tokens guessed"},
    {"speculation_gained_seconds", kGauge, "s", "Time that speculation has saved; below 0: cost"},
    {"speculation_steps_total", kCounter, "steps", "Steps with guesses"},
    {"state_snapshot_evictions_total", kCounter, "snapshots",
     "Snapshots of states removed to make room"},
    {"state_snapshots", kGauge, "snapshots",
     "Snapshots of states from which sequences may continue"},
    {"step_columns_total", kCounter, "columns", "Columns of all steps", kCounted},
    {"step_seconds_total", kCounter, "s", "Time of all steps"},
    {"steps", kCounter, "steps", "Steps of the device"},
    {"steps_ahead_total", kCounter, "steps", "Steps submitted while another one was in flight",
     kCounted},
    {"steps_computed_again", kCounter, "steps", "Steps computed again with barriers"},
    {"steps_in_flight", kGauge, "steps", "Steps that may be in flight at one time"},
    {"token_batches_total", kCounter, "batches", "Batches of tokens sent", kCounted},
    {"vault_check_seconds", kGauge, "s", "Time that checking a predecessor's memory took"},
    {"vault_import_seconds", kGauge, "s", "Time that importing a predecessor's memory took"},
    {"weights_checked_total", kCounter, "passes",
     "Times that all weights were compared with their checksums"},
    {"window_page_evictions_total", kCounter, "pages",
     "Windows' pages removed from the prefix cache to make room"},
    {"window_pages", kGauge, "pages", "All KV pages for layers with windows"},
    {"window_pages_present", kGauge, "pages",
     "KV pages for layers with windows that have memory; less than all if the cache can grow"},
    {"window_pages_used", kGauge, "pages", "KV pages of layers with windows in use"},
};
static_assert(std::ranges::is_sorted(kRows, {}, &WorkerFigure::name));
static_assert(std::ranges::all_of(kRows,
                                  [](const WorkerFigure& row) {
                                    return row.kind == kCounter || !row.name.ends_with("_total");
                                  }),
              "a name that ends in _total is a counter's");

}  // namespace worker_figures

// Returns the row with that name, or null. The daemon shows a figure without a row as a gauge.
constexpr const WorkerFigure* find_worker_figure(std::string_view name) {
  const auto* const row =
      std::ranges::lower_bound(worker_figures::kRows, name, {}, &WorkerFigure::name);
  return row != std::end(worker_figures::kRows) && row->name == name ? row : nullptr;
}

// The name of a row, for a figure that is reported with its value. The compiler refuses a text that no row has as its
// name.
class FigureName {
 public:
  consteval FigureName(const char* name)  // NOLINT(google-explicit-constructor)
      : text_(name) {
    const WorkerFigure* const row = find_worker_figure(name);
    if (row == nullptr) throw "this figure has no row in worker_figures.hpp";
    if (row->counted) throw "FigureCounts reports this figure";
  }
  constexpr const char* text() const { return text_; }

 private:
  const char* text_;
};

// The name of a row for a figure that FigureCounts keeps.
class CountedFigure {
 public:
  consteval CountedFigure(const char* name)  // NOLINT(google-explicit-constructor)
      : index_(static_cast<std::size_t>(find_worker_figure(name) - worker_figures::kRows)) {
    const WorkerFigure* const row = find_worker_figure(name);
    if (row == nullptr || !row->counted)
      throw "worker_figures.hpp has no counted row for this figure";
  }
  constexpr std::size_t index() const { return index_; }

 private:
  std::size_t index_;
};

// Counts events in a part of the worker. To add a figure, add a row and count it here; nothing else is needed.
class FigureCounts {
 public:
  void add(CountedFigure figure, std::uint64_t count = 1) { values_[figure.index()] += count; }
  std::uint64_t operator[](CountedFigure figure) const { return values_[figure.index()]; }
  FigureCounts& operator+=(const FigureCounts& other) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      values_[i] += other.values_[i];
    return *this;
  }
  // Calls `visit(name, value)` for each row that is `counted`.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const WorkerFigure& row = worker_figures::kRows[i];
      if (row.counted) visit(row.name, static_cast<double>(values_[i]));
    }
  }

 private:
  std::array<std::uint64_t, std::size(worker_figures::kRows)> values_{};
};

// A figure and its value now.
struct FigureValue {
  FigureValue(FigureName row, double value_now) : name(row.text()), value(value_now) {}
  // The figures of kernels have no rows, because the kernels' names make their names. `what` is "calls" or another
  // thing that is counted or timed.
  static FigureValue of_kernel(std::string_view kernel, std::string_view what, double value) {
    FigureValue figure;
    figure.name = "kernel_" + std::string(kernel) + "_" + std::string(what);
    figure.value = value;
    return figure;
  }

  std::string name;
  double value = 0;

 private:
  FigureValue() = default;
};

}  // namespace bulkhead

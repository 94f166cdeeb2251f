#include "orchestrator/metrics/worker_figures.hpp"

#include <algorithm>
#include <iterator>

namespace bulkhead::orchestrator {
namespace {

constexpr auto kCounter = WorkerFigure::Kind::kCounter;
constexpr auto kGauge = WorkerFigure::Kind::kGauge;

// In the order of their names.
constexpr WorkerFigure kFigures[] = {
    {"blit_average_download_microseconds", kGauge, "us", "Mean time of a download"},
    {"blit_average_sync_wait_microseconds", kGauge, "us",
     "Mean time that the host waits for a transfer"},
    {"blit_average_upload_microseconds", kGauge, "us", "Mean time of an upload"},
    {"blit_bytes_downloaded", kCounter, "bytes", "Data copied from the device"},
    {"blit_bytes_uploaded", kCounter, "bytes", "Data copied to the device"},
    {"blit_downloads", kCounter, "transfers", "Downloads"},
    {"blit_overlap_ratio", kGauge, "0 to 1",
     "Share of the transfers' time that went on beside computing"},
    {"blit_overlapped_seconds", kCounter, "s", "Time of transfers beside computing"},
    {"blit_pending", kGauge, "transfers", "Transfers that have not ended"},
    {"blit_pending_peak", kGauge, "transfers", "Most transfers that had not ended at one time"},
    {"blit_stalls", kCounter, "waits", "Waits for staging memory or for an earlier transfer"},
    {"blit_sync_wait_seconds", kCounter, "s", "Time that the host waited for transfers"},
    {"blit_sync_waits", kCounter, "waits", "Waits of the host for a transfer"},
    {"blit_transfer_seconds", kCounter, "s", "Time of all transfers"},
    {"blit_uploads", kCounter, "transfers", "Uploads"},
    {"channel_bytes_sent_total", kCounter, "bytes", "Data that the worker sent to the daemon"},
    {"channel_doorbells_sent_total", kCounter, "wake-ups", "Times that the worker woke the daemon"},
    {"channel_full_stalls_total", kCounter, "sends", "Sends that found no room in the ring"},
    {"channel_records_sent_total", kCounter, "records",
     "Records that the worker sent to the daemon"},
    {"command_buffers_begun", kCounter, "command buffers", "Command buffers that recording began"},
    {"device_allocations", kCounter, "allocations", "Allocations of device memory"},
    {"discarded_outputs_total", kCounter, "outputs", "Outputs of requests that had ended"},
    {"draws_below_accepted_total", kCounter, "tokens",
     "Tokens that were drawn again although the daemon had them"},
    {"generated_tokens_total", kCounter, "tokens", "Tokens generated"},
    {"gpu_allocated_bytes", kGauge, "bytes", "Device memory allocated"},
    {"gpu_allocated_bytes_peak", kGauge, "bytes", "Most device memory allocated at one time"},
    {"gpu_busy_seconds", kCounter, "s", "Time that the device computed"},
    {"gpu_busy_share", kGauge, "0 to 1",
     "Share of the time since the last report that the device computed"},
    {"gpu_idle_seconds", kCounter, "s", "Time between computations"},
    {"kernel_profiles", kCounter, "steps", "Steps whose kernels were timed"},
    {"kv_bytes_per_token", kGauge, "bytes", "KV cache memory that a token takes"},
    {"kv_pages_checked_total", kCounter, "pages", "KV pages compared with their checksums"},
    {"kv_pages_damaged_total", kCounter, "pages", "KV pages that differed from their checksums"},
    {"kv_pages_quarantined", kGauge, "pages", "KV pages left out because their memory changed"},
    {"kv_pages_summed_total", kCounter, "pages", "KV pages whose checksum was made"},
    {"load_allocate_seconds", kGauge, "s", "Time of the load that allocating took"},
    {"load_copy_seconds", kGauge, "s", "Time of the load that copies to the device took"},
    {"load_kernels_seconds", kGauge, "s", "Time of the load that making kernels took"},
    {"load_pack_thread_seconds", kGauge, "s",
     "Time of the load that threads packed weights, in all"},
    {"load_read_thread_seconds", kGauge, "s", "Time of the load that threads read weights, in all"},
    {"load_seconds", kGauge, "s", "Time that loading the model took"},
    {"load_warm_up_seconds", kGauge, "s", "Time of the load that the warm-up took"},
    {"load_weights_seconds", kGauge, "s",
     "Time of the load that bringing weights to the device took"},
    {"nonfinite_outputs_total", kCounter, "outputs",
     "Outputs whose logits were not finite numbers"},
    {"plan_seconds", kCounter, "s", "Time that making the programs of steps took"},
    {"pool_acquires", kCounter, "buffers", "Buffers that the pool lent"},
    {"pool_active_heaps", kGauge, "heaps", "Heaps of the pool that have lent a buffer"},
    {"pool_allocation_seconds", kCounter, "s", "Time that lending buffers took"},
    {"pool_average_allocation_microseconds", kGauge, "us", "Mean time of lending a buffer"},
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
     "Share of the lent memory that nobody asked for"},
    {"pool_largest_allocation_bytes", kGauge, "bytes", "Largest buffer that was lent"},
    {"pool_release_seconds", kCounter, "s", "Time that taking buffers back took"},
    {"pool_utilisation", kGauge, "0 to 1", "Share of the pool's memory that is lent"},
    {"preemptions_total", kCounter, "preemptions",
     "Times that a sequence lost its KV pages to another one"},
    {"prefix_cache_evictions_total", kCounter, "pages",
     "Pages of the prefix cache whose room was needed"},
    {"prefix_cache_hit_pages_total", kCounter, "pages",
     "Pages that sequences took over from the prefix cache"},
    {"prefix_cache_hit_ratio", kGauge, "0 to 1",
     "Share of the prompts' tokens found in the prefix cache"},
    {"prefix_cache_hit_tokens_total", kCounter, "tokens",
     "Prompts' tokens found in the prefix cache"},
    {"prefix_cache_miss_pages_total", kCounter, "pages",
     "Full pages of prompts that were computed"},
    {"prefix_cache_miss_tokens_total", kCounter, "tokens", "Prompts' tokens that were computed"},
    {"prefix_cache_pages", kGauge, "pages", "Pages that the prefix cache can find"},
    {"prompt_tokens_total", kCounter, "tokens", "Tokens of all prompts"},
    {"requests_computed_again_total", kCounter, "requests",
     "Requests computed again after their results were spoilt"},
    {"resumed_requests_total", kCounter, "requests", "Requests that another worker had begun"},
    {"ring_average_wait_microseconds", kGauge, "us",
     "Mean time that the host waits for the device"},
    {"ring_recording_seconds", kCounter, "s", "Time that recording commands took"},
    {"ring_recordings", kCounter, "recordings", "Command buffers recorded"},
    {"ring_replays", kCounter, "submissions", "Submissions of commands that were recorded before"},
    {"ring_reuse_rate", kGauge, "0 to 1", "Share of the submissions that are replays"},
    {"ring_submissions", kCounter, "submissions", "Command buffers submitted"},
    {"ring_submit_seconds", kCounter, "s", "Time that submitting took"},
    {"ring_wait_microseconds", kCounter, "us", "Time that the host waited for the device"},
    {"ring_waits", kCounter, "waits", "Waits of the host for the device"},
    {"speculation_accepted_tokens_total", kCounter, "tokens", "Guessed tokens that were right"},
    {"speculation_drafted_tokens_total", kCounter, "tokens", "Tokens guessed"},
    {"speculation_gained_seconds", kGauge, "s", "Time that speculation has saved; below 0: cost"},
    {"speculation_steps_total", kCounter, "steps", "Steps with guesses"},
    {"state_snapshot_evictions_total", kCounter, "snapshots",
     "Snapshots of states whose room was needed"},
    {"state_snapshots", kGauge, "snapshots", "Snapshots of states that sequences may go on from"},
    {"step_columns_total", kCounter, "columns", "Columns of all steps"},
    {"step_seconds_total", kCounter, "s", "Time of all steps"},
    {"steps_ahead_total", kCounter, "steps", "Steps submitted while another one was in flight"},
    {"steps_computed_again", kCounter, "steps", "Steps computed again with barriers"},
    {"steps_in_flight", kGauge, "steps", "Steps that may be in flight at one time"},
    {"token_batches_total", kCounter, "batches", "Batches of tokens sent"},
    {"vault_check_seconds", kGauge, "s", "Time that checking a predecessor's memory took"},
    {"vault_import_seconds", kGauge, "s", "Time that importing a predecessor's memory took"},
    {"weights_checked_total", kCounter, "passes",
     "Times that all weights were compared with their checksums"},
};
static_assert(std::ranges::is_sorted(kFigures, {}, &WorkerFigure::name));

}  // namespace

std::string WorkerFigure::help_with_unit() const {
  return std::string(help) + " (" + std::string(unit) + ")";
}

const WorkerFigure* find_worker_figure(std::string_view name) {
  const auto* const row = std::ranges::lower_bound(kFigures, name, {}, &WorkerFigure::name);
  return row != std::end(kFigures) && row->name == name ? row : nullptr;
}

}  // namespace bulkhead::orchestrator

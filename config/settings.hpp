// Every setting of Bulkhead as plain data; the initialisers here are the defaults. The one table in
// settings_table.cpp names each key, its limits and its help line, and drives YAML loading, --set,
// validation and the printed reference, config/runtime.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::config {

enum class AnyModelName { kAuto, kOn, kOff };

struct ServerSettings {
  std::string host = "127.0.0.1";
  std::uint32_t port = 8484;      // 0 picks a free one
  std::string api_key;            // empty: none needed
  std::uint32_t max_queue = 256;  // requests accepted and unfinished, all models together
  std::uint32_t request_timeout_s = 600;
  std::uint32_t stream_keep_alive_s = 15;  // 0: silent streams stay silent
  std::uint32_t max_body_mb = 16;
  std::uint32_t max_memory_mb = 512;  // of all clients' bodies and unsent answers together
  AnyModelName any_model_name = AnyModelName::kAuto;  // kAuto: while one model is served
  std::vector<std::string> allowed_hosts;             // besides localhost and `host`
  std::vector<std::string> allowed_origins;           // "*": all
  std::vector<std::string> keys;                      // clients' keys: access_key.hpp
  bool allow_kill = false;                            // POST /v1/workers/NAME/kill
  std::string models_folder;           // every GGUF file in it is served; empty: none
  std::uint32_t device_memory_mb = 0;  // of all models on one device; 0: no bound
};

// When a model's workers are started.
enum class Load { kStart, kFirstUse };

// The most workers that a model may have on all of its devices together.
inline constexpr std::size_t kMostWorkersOfModel = 64;

struct ModelSettings {
  std::string name;              // empty: the file's own general.name, or its file name
  std::string path = "builtin";  // a GGUF file; "builtin": the embedded model
  std::string device = "auto";   // auto | cpu | an index | part of a device's name
  // Devices of replicas, each written as in `device`. The only entry "all": every usable GPU. Empty:
  // `device` alone.
  std::vector<std::string> devices;
  std::uint32_t workers = 1;  // on each device
  std::uint32_t context = 0;  // tokens a sequence may have; 0: the model's own limit, within memory
  std::vector<std::string> aliases;  // further names in the API
  Load load = Load::kStart;
  std::uint32_t reasoning_budget = 0;  // tokens, where a chat names no limit; 0: none
  std::vector<std::uint32_t> cores;    // cores that the workers may run on; empty: any
  std::string chat_template;           // a file, or a name in the model file; empty: the file's own
  std::string draft;  // a GGUF file of a small model that guesses tokens; empty: none
};

enum class Transport { kShm, kStdio };
enum class RegionKind { kMemfd, kPosix };

struct IpcSettings {
  Transport transport = Transport::kShm;
  RegionKind region = RegionKind::kMemfd;
  std::uint32_t ring_kib = 1024;   // each direction; a power of two
  std::uint32_t spin_us = 50;      // before sleeping on the socket; 0: at once
  std::uint32_t flush_tokens = 1;  // tokens of a sequence put in one record after its first token
  std::uint32_t flush_interval_us = 2000;  // a token waits no longer than this for others
};

struct MemoryPoolSettings {
  bool enabled = true;
  std::uint32_t heap_size_mb = 256;
  std::uint32_t num_heaps = 2;
  std::vector<std::uint32_t> warmup_sizes = {32, 128};  // MiB, each at most heap_size_mb
  bool track_statistics = true;
  bool log_exhaustion = true;
};

struct BlitQueueSettings {
  bool enabled = true;
  std::uint32_t max_pending_ops = 64;
  bool use_shared_events = true;  // timeline semaphores; else fences
  std::uint32_t staging_buffer_size_mb = 64;
  bool track_metrics = true;
  bool verbose_logging = false;
};

struct CommandBufferRingSettings {
  bool enabled = true;
  std::uint32_t ring_size = 12;
  std::uint32_t timeout_ms = 0;       // 0: isolation.heartbeat_timeout_ms (device_wait_ms())
  std::uint32_t steps_in_flight = 2;  // given to the device before the first is waited for
  bool log_wait_events = false;
  bool track_statistics = true;
};

// Measures bit-equal variants of kernels on the device, once, and keeps the fastest.
struct AutotuneSettings {
  bool enabled = false;
  std::uint32_t budget_ms = 200;  // of a start; 0: only what is known already is used
};

// Whether narrow steps go without barriers between their kernels. auto: where it has been found faster.
enum class ChainedKernels { kAuto, kOn, kOff };

struct GpuOptimizations {
  bool enabled = true;  // false: the baseline, all three parts off
  bool graceful_fallback = true;
  std::string fallback_log_level = "warn";
  std::string trace_file;  // in the worker's cache folder; empty: none
  MemoryPoolSettings memory_pool;
  BlitQueueSettings blit_queue;
  CommandBufferRingSettings command_buffer_ring;
  AutotuneSettings autotune;
  ChainedKernels chained_kernels = ChainedKernels::kAuto;
};

enum class KvType { kF16, kF32, kQ8_0 };
constexpr const char* to_string(KvType type) {
  return type == KvType::kF16 ? "f16" : type == KvType::kF32 ? "f32" : "q8_0";
}
enum class Numerics { kExact, kFast };
// Whether products go by the device's matrix units. auto: where it has those that the kernels know.
enum class MatrixUnits { kAuto, kOff };
// Whether attention uses matrix units, if products use them. auto: from about position 1,000 on,
// where matrix units are faster for any number of columns in a step.
enum class MatrixAttention { kAuto, kOff, kOn };

enum class Pooling { kAuto, kMean, kLast };  // kAuto: the model file's, else the last token's

// Whether workers guess tokens and check the guesses in the same step
// (worker/engine/speculator.hpp). ngram: workers guess from earlier text of the prompt and the
// answer while that is faster. always: they check every guess that they have.
enum class Speculation { kOff, kNgram, kAlways };

struct EngineSettings {
  // most sequences in a step; 0: as forward::with_sizes() chooses
  std::uint32_t max_batch = 0;
  std::uint32_t kv_cache_mb = 0;  // 0: what the model and the device's free memory suggest
  KvType kv_type = KvType::kF16;
  std::uint32_t prefill_chunk =
      0;  // most columns of a step with prompts; 0: what max_token_gap_ms allows
  std::uint32_t prefill_chunk_alone = 2048;  // where no sequence generates; less is prefill_chunk
  std::uint32_t max_token_gap_ms = 50;       // most time between tokens beside prompts; 0: no bound
  bool prefix_cache = true;
  std::uint32_t state_cache_mb =
      0;  // of models with states; 0: for two of each sequence, if 2 GiB do
  Numerics numerics = Numerics::kExact;
  MatrixUnits matrix_units = MatrixUnits::kAuto;
  MatrixAttention matrix_attention = MatrixAttention::kAuto;
  Pooling pooling = Pooling::kAuto;  // of embeddings
  Speculation speculation = Speculation::kNgram;
};

enum class SandboxMode { kOn, kOff, kLog };
enum class NamespaceMode { kAuto, kOff };
enum class ControlGroupMode { kAuto, kOff };

struct IsolationSettings {
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint32_t exit_timeout_ms = 15000;
  std::uint32_t max_strikes = 2;
  bool vault = true;
  std::uint32_t standby = 0;       // spare processes of each worker
  std::uint32_t crash_budget = 8;  // deaths in a row with no request to blame
  std::uint32_t retry_failed_s = 60;
  std::uint32_t cache_mb = 2048;       // most a worker's cache folder may take; 0: no limit
  std::uint32_t check_memory_s = 600;  // 0: not in the background
  SandboxMode sandbox = SandboxMode::kOn;
  NamespaceMode namespaces = NamespaceMode::kAuto;  // counts only with the sandbox
  ControlGroupMode cgroups = ControlGroupMode::kAuto;
  std::uint32_t worker_memory_mb = 0;  // most memory of a worker with a control group; 0: no limit
  std::string sandbox_calls;  // names of system calls, beside those that workers may make anyway
  std::string sandbox_paths;  // files and folders that workers may read, separated by colons
  std::string journal_path;   // empty: memory only
  std::uint32_t resume_window_s = 300;
};

struct LogSettings {
  std::string level = "info";
  std::string format = "text";
};

struct Settings {
  ServerSettings server;
  std::vector<ModelSettings> models;  // empty: the built-in model
  IpcSettings ipc;
  GpuOptimizations gpu_optimizations;
  EngineSettings engine;
  IsolationSettings isolation;
  LogSettings log;
};

// What bounds a worker's wait for its device, in milliseconds. By default a twentieth less than the
// daemon's patience: so the worker says which step hangs before it is killed as one that hangs.
inline std::uint32_t device_wait_ms(const Settings& settings) {
  const std::uint32_t own = settings.gpu_optimizations.command_buffer_ring.timeout_ms;
  const std::uint32_t heartbeat = settings.isolation.heartbeat_timeout_ms;
  return own != 0 ? own : heartbeat - heartbeat / 20;
}

}  // namespace bulkhead::config

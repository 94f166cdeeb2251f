#include "config/settings_table.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "config/base/overloaded.hpp"
#include "config/base/text.hpp"

namespace bulkhead::config {
namespace {

// The accessors are captureless lambdas, so that the table is plain data.
#define FIELD(type, member)                       \
  Reach<Settings, type> {                         \
    [](Settings& s) -> type& { return s.member; } \
  }
#define FLAG(member) FIELD(bool, member)
#define NUMBER(member) FIELD(std::uint32_t, member)
#define TEXT(member) FIELD(std::string, member)
#define NUMBERS(member) FIELD(std::vector<std::uint32_t>, member)
#define TEXTS(member) FIELD(std::vector<std::string>, member)
#define CHOICE(member)                                                            \
  EnumReach<Settings> {                                                           \
    [](const Settings& s) { return static_cast<std::uint32_t>(s.member); },       \
        [](Settings& s, std::uint32_t i) {                                        \
          s.member = static_cast<std::remove_reference_t<decltype(s.member)>>(i); \
        }                                                                         \
  }
#define MODEL_FIELD(type, member)                      \
  Reach<ModelSettings, type> {                         \
    [](ModelSettings& m) -> type& { return m.member; } \
  }

#define MODEL_CHOICE(member)                                                      \
  EnumReach<ModelSettings> {                                                      \
    [](const ModelSettings& m) { return static_cast<std::uint32_t>(m.member); },  \
        [](ModelSettings& m, std::uint32_t i) {                                   \
          m.member = static_cast<std::remove_reference_t<decltype(m.member)>>(i); \
        }                                                                         \
  }

const std::vector<const char*> kLogLevels = {"trace", "debug", "info", "warn", "error", "off"};
constexpr std::uint32_t kHourMs = 3'600'000;
constexpr std::uint32_t kSecondUs = 1'000'000;
constexpr std::uint32_t kTebibyteMb = 1U << 20;

// clang-format off
const Setting kSettings[] = {
  {.key = "server.host", .help = "Address to listen on. Any other than loopback needs an api_key.",
   .reach = TEXT(server.host),
   .reload = Reload::kRestart, .worker = Worker::kNo},
  {.key = "server.port", .help = "TCP port; 0 lets the system pick a free one.",
   .reach = NUMBER(server.port), .most = 65535,
   .reload = Reload::kRestart, .worker = Worker::kNo},
  {.key = "server.api_key", .help = "Bearer token that clients must send; empty: none. BULKHEAD_API_KEY sets it without a file.",
   .reach = TEXT(server.api_key), .secret = true,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.keys", .help = "Keys of clients with limits, each \"NAME KEY requests_per_minute=60 tokens_per_minute=20000 streams=4\"; a limit may be left out. Such a key may ask models, and nothing else. Needs server.api_key.",
   .reach = TEXTS(server.keys), .secret = true,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.max_queue", .help = "Most unfinished requests, all models together; further ones get 429. With server.keys each key has an even share for itself besides, so there may be up to twice as many.",
   .reach = NUMBER(server.max_queue), .least = 1, .most = 1'000'000,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.request_timeout_s", .help = "Longest time that a request may take, in seconds, waiting included.",
   .reach = NUMBER(server.request_timeout_s), .least = 1, .most = 7 * 24 * 3600,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.stream_keep_alive_s", .help = "Seconds of silence after which a stream gets a comment, so that no proxy or client gives it up; 0: never.",
   .reach = NUMBER(server.stream_keep_alive_s), .most = 3600,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.max_body_mb", .help = "Largest request body in MiB; larger ones get 413.",
   .reach = NUMBER(server.max_body_mb), .least = 1, .most = 1024,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.max_memory_mb", .help = "MiB that all clients' request bodies and unsent answers may take together; beyond it the largest unfinished body gets 503. At least twice max_body_mb.",
   .reach = NUMBER(server.max_memory_mb), .least = 2, .most = kTebibyteMb,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.any_model_name", .help = "Take any name in a request for the model that is served: auto (while there is one), on (the first of several), off.",
   .reach = CHOICE(server.any_model_name), .choices = {"auto", "on", "off"},
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.allowed_hosts", .help = "Names besides localhost and server.host by which clients reach this server, such as a proxy's.",
   .reach = TEXTS(server.allowed_hosts),
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.allowed_origins", .help = "Web pages that may call this server from a browser, such as https://chat.example.org; \"*\": all, which needs an api_key.",
   .reach = TEXTS(server.allowed_origins),
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.allow_kill", .help = "Let whoever may restart workers kill their processes too (POST /v1/workers/NAME/kill), to see streams survive it.",
   .reach = FLAG(server.allow_kill),
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.models_folder", .help = "The daemon serves every GGUF file of this folder besides models, and loads each at its first use. It reads the folder at the start and at SIGHUP. Empty: no folder.",
   .reach = TEXT(server.models_folder),
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "server.device_memory_mb", .help = "Most MiB that the models of one device may take together: weights and KV cache, counted once more for each spare of isolation.standby. Beyond it the daemon unloads the model that was used longest ago, unless that one has requests. 0: no bound. Set engine.kv_cache_mb to a number with it.",
   .reach = NUMBER(server.device_memory_mb), .most = kTebibyteMb,
   .reload = Reload::kNow, .worker = Worker::kNo},

  {.key = "ipc.transport", .help = "How the daemon and its workers exchange messages: shm (rings in shared memory) or stdio (pipes).",
   .reach = CHOICE(ipc.transport), .choices = {"shm", "stdio"},
   .reload = Reload::kRestart, .worker = Worker::kYes},
  {.key = "ipc.region", .help = "Memory that holds the rings: memfd (sealed, inherited) or posix (shm_open, unlinked at once).",
   .reach = CHOICE(ipc.region), .choices = {"memfd", "posix"},
   .reload = Reload::kRestart, .worker = Worker::kYes},
  {.key = "ipc.ring_kib", .help = "Size of each ring in KiB, one ring each way; a power of two.",
   .reach = NUMBER(ipc.ring_kib), .least = 4, .most = 256 * 1024, .power_of_two = true,
   .reload = Reload::kRestart, .worker = Worker::kYes},
  {.key = "ipc.spin_us", .help = "Microseconds to poll for a message before sleeping; 0: sleep at once.",
   .reach = NUMBER(ipc.spin_us), .most = kSecondUs,
   .reload = Reload::kRestart, .worker = Worker::kYes},
  {.key = "ipc.flush_tokens", .help = "How many tokens of a stream are sent in one record. The first token never waits.",
   .reach = NUMBER(ipc.flush_tokens), .least = 1, .most = 1024,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "ipc.flush_interval_us", .help = "Longest time that a token waits for others of its record, in microseconds.",
   .reach = NUMBER(ipc.flush_interval_us), .most = kSecondUs,
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "gpu_optimizations.enabled", .help = "false: switch off the three parts below (the baseline). The tokens are the same either way.",
   .reach = FLAG(gpu_optimizations.enabled),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.graceful_fallback", .help = "true: go on without a part that fails to start; false: refuse to start.",
   .reach = FLAG(gpu_optimizations.graceful_fallback),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.fallback_log_level", .help = "Log level of the message about such a part: trace, debug, info, warn, error or off.",
   .reach = TEXT(gpu_optimizations.fallback_log_level), .choices = kLogLevels,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.trace_file", .help = "File in each worker's cache folder for a timeline in chrome://tracing's format (up to 64 MiB; the worker's name is put in front). Empty: none.",
   .reach = TEXT(gpu_optimizations.trace_file),
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "gpu_optimizations.chained_kernels", .help = "Let the kernels of narrow steps wait for each other instead of at barriers: auto (on NVIDIA devices with matrix units), on, off.",
   .reach = CHOICE(gpu_optimizations.chained_kernels), .choices = {"auto", "on", "off"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.autotune.enabled", .help = "Measure variants of kernels on the device and keep the fastest in the cache folder. The variants give equal bits, so no token changes.",
   .reach = FLAG(gpu_optimizations.autotune.enabled),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.autotune.budget_ms", .help = "Longest time that a start spends measuring, in ms; the next start goes on. 0: use only earlier results.",
   .reach = NUMBER(gpu_optimizations.autotune.budget_ms), .most = 60000,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.enabled", .help = "Take temporary buffers from heaps that are allocated at start.",
   .reach = FLAG(gpu_optimizations.memory_pool.enabled),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.heap_size_mb", .help = "Size of each heap in MiB.",
   .reach = NUMBER(gpu_optimizations.memory_pool.heap_size_mb), .least = 1, .most = 1U << 16,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.num_heaps", .help = "How many heaps are allocated at start.",
   .reach = NUMBER(gpu_optimizations.memory_pool.num_heaps), .least = 1, .most = 64,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.warmup_sizes", .help = "Sizes in MiB that are made ready at start, each at most heap_size_mb.",
   .reach = NUMBERS(gpu_optimizations.memory_pool.warmup_sizes), .least = 1, .most = 1U << 16,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.track_statistics", .help = "Count allocations, reuse and the most memory in use.",
   .reach = FLAG(gpu_optimizations.memory_pool.track_statistics),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.memory_pool.log_exhaustion", .help = "Log each allocation that the heaps could not serve.",
   .reach = FLAG(gpu_optimizations.memory_pool.log_exhaustion),
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "gpu_optimizations.blit_queue.enabled", .help = "Copy on the device's own queue for transfers, while it computes.",
   .reach = FLAG(gpu_optimizations.blit_queue.enabled),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.blit_queue.max_pending_ops", .help = "Most copies in flight; a further one waits.",
   .reach = NUMBER(gpu_optimizations.blit_queue.max_pending_ops), .least = 1, .most = 1U << 16,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.blit_queue.use_shared_events", .help = "Order copies by timeline semaphores; false: by fences.",
   .reach = FLAG(gpu_optimizations.blit_queue.use_shared_events),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.blit_queue.staging_buffer_size_mb", .help = "Size in MiB of the host memory through which copies go.",
   .reach = NUMBER(gpu_optimizations.blit_queue.staging_buffer_size_mb), .least = 1, .most = 4096,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.blit_queue.track_metrics", .help = "Measure bytes, time and overlap of the copies.",
   .reach = FLAG(gpu_optimizations.blit_queue.track_metrics),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.blit_queue.verbose_logging", .help = "Log every copy (level debug).",
   .reach = FLAG(gpu_optimizations.blit_queue.verbose_logging),
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "gpu_optimizations.command_buffer_ring.enabled", .help = "Record a step's commands once for each shape of step, and replay them.",
   .reach = FLAG(gpu_optimizations.command_buffer_ring.enabled),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.command_buffer_ring.ring_size", .help = "How many recorded command buffers are kept.",
   .reach = NUMBER(gpu_optimizations.command_buffer_ring.ring_size), .least = 1, .most = 1024,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.command_buffer_ring.timeout_ms", .help = "Longest wait for the device, in ms. 0: a twentieth less than isolation.heartbeat_timeout_ms, so that the worker can still report the step.",
   .reach = NUMBER(gpu_optimizations.command_buffer_ring.timeout_ms), .most = kHourMs,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.command_buffer_ring.steps_in_flight", .help = "Most steps that the device has at a time; 1: wait for each step before the next. It is 1 if one of the three parts is off.",
   .reach = NUMBER(gpu_optimizations.command_buffer_ring.steps_in_flight), .least = 1, .most = 8,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.command_buffer_ring.log_wait_events", .help = "Log every wait for the device (level debug).",
   .reach = FLAG(gpu_optimizations.command_buffer_ring.log_wait_events),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "gpu_optimizations.command_buffer_ring.track_statistics", .help = "Count recordings, replays and waits.",
   .reach = FLAG(gpu_optimizations.command_buffer_ring.track_statistics),
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "engine.max_batch", .help = "Most sequences that are computed together in one step. 0: up to 256 on a GPU, by its memory and the model's size; 16 on a CPU.",
   .reach = NUMBER(engine.max_batch), .most = 1024,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.kv_cache_mb", .help = "Memory for keys and values in MiB. 0: on a GPU as much as up to sixteen full contexts take, but at most 8 GiB (or four full contexts, if these take more) and 90 % of what is free; on the CPU at most 1 GiB and half of what is free.",
   .reach = NUMBER(engine.kv_cache_mb), .most = kTebibyteMb,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.kv_type", .help = "Number format of cached keys and values: f16, f32 or q8_0 (8 bits, a scale for each 32).",
   .reach = CHOICE(engine.kv_type), .choices = {"f16", "f32", "q8_0"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.prefill_chunk", .help = "Most tokens in a step that reads prompts, those of generating sequences included. 0: 256 on a CPU; on a GPU as many as prefill_chunk_alone. max_token_gap_ms makes it fewer, and so do steps of more than a second.",
   .reach = NUMBER(engine.prefill_chunk), .most = 1U << 16,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.prefill_chunk_alone", .help = "The same for a step on a GPU in which no sequence generates; wider steps read prompts faster. At least prefill_chunk.",
   .reach = NUMBER(engine.prefill_chunk_alone), .least = 1, .most = 1U << 16,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.max_token_gap_ms", .help = "The most milliseconds that a sequence waits for its next token while the worker also reads prompts; the worker cuts a prompt's part of a step to fit. The bound is at least one and a half times what a step without prompts takes. 0: no bound but prefill_chunk.",
   .reach = NUMBER(engine.max_token_gap_ms), .most = 60'000,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.prefix_cache", .help = "Let requests that begin with the same tokens share the KV pages of that beginning.",
   .reach = FLAG(engine.prefix_cache),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.state_cache_mb", .help = "Memory in MiB for saved states, which let the prefix cache and the vault work with models whose layers carry a state from token to token. 0: two for each sequence of max_batch, at most 2 GiB.",
   .reach = NUMBER(engine.state_cache_mb), .most = kTebibyteMb,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.numerics", .help = "exact: tokens never depend on what else runs. fast may choose kernels by batch size; none is faster yet, so it computes as exact does.",
   .reach = CHOICE(engine.numerics), .choices = {"exact", "fast"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.matrix_units", .help = "Use the device's matrix units: auto (if they work as the kernels expect) or off. Tokens may differ between the two.",
   .reach = CHOICE(engine.matrix_units), .choices = {"auto", "off"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.matrix_attention", .help = "Whether attention uses matrix units, too: auto (from position 1,024 on, which makes long prompts much faster), off, on (everywhere: many streams are faster, one short stream is up to 4 % slower). Tokens may differ between the three.",
   .reach = CHOICE(engine.matrix_attention), .choices = {"auto", "off", "on"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.pooling", .help = "What an embedding is made of: mean (of all tokens), last (the last token), or auto (as the model's file says, else last).",
   .reach = CHOICE(engine.pooling), .choices = {"auto", "mean", "last"},
    .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "engine.speculation", .help = "Whether workers guess coming tokens from repeated text, and by `models[].draft`, and check the guesses in the same step; no token changes. off: they guess nothing; ngram: they guess while that is measured to be faster, from n-grams and by the draft model if there is one; always: they check every guess, for tests.",
   .reach = CHOICE(engine.speculation), .choices = {"off", "ngram", "always"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},

  {.key = "isolation.heartbeat_timeout_ms", .help = "The daemon kills and replaces a worker that shows no sign of life for this long.",
   .reach = NUMBER(isolation.heartbeat_timeout_ms), .least = 100, .most = kHourMs,
   .reload = Reload::kNow, .worker = Worker::kYes},
  {.key = "isolation.exit_timeout_ms", .help = "If the kernel has not removed a killed worker after this long, a successor is started beside it.",
   .reach = NUMBER(isolation.exit_timeout_ms), .least = 1000, .most = kHourMs,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "isolation.max_strikes", .help = "A request fails at this many strikes. A strike: its worker died once more in the same way, with no token of the request since the death before.",
   .reach = NUMBER(isolation.max_strikes), .least = 1, .most = 100,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "isolation.vault", .help = "Keep weights and KV pages in device memory that outlives a worker, so that its successor need not load them.",
   .reach = FLAG(isolation.vault),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.standby", .help = "Spare processes for each worker; they have loaded the model and take over at once.",
   .reach = NUMBER(isolation.standby), .most = 8,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "isolation.crash_budget", .help = "The daemon gives a worker up after this many deaths in a row with no token in between and no request to blame.",
   .reach = NUMBER(isolation.crash_budget), .least = 1, .most = 1'000'000,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "isolation.retry_failed_s", .help = "A worker that was given up is tried again after so many seconds, then after twice as many, up to 16 times; 0: never.",
   .reach = NUMBER(isolation.retry_failed_s), .most = 86400,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "isolation.cache_mb", .help = "The daemon ends a worker whose cache folder takes more than so many MiB, and deletes the folder; 0: no limit.",
   .reach = NUMBER(isolation.cache_mb), .most = 1 << 20,
   .reload = Reload::kWorkers, .worker = Worker::kNo},
  {.key = "isolation.check_memory_s", .help = "Seconds in which a worker compares all its weights and cached KV pages with their checksums once, beside its steps. 0: it compares them only when pages are used again or taken over.",
   .reach = NUMBER(isolation.check_memory_s), .most = 86400,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.sandbox", .help = "Confine workers with Landlock and seccomp, as far as the kernel has them: true, false, or log (refuse nothing, but log what true would refuse).",
   .reach = CHOICE(isolation.sandbox), .choices = {"true", "false", "log"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.namespaces", .help = "Give confined workers network, IPC and mount namespaces of their own (a user namespace, too, where the daemon lacks the privilege): auto (as far as the kernel lets them; /v1/workers says what is in force) or off.",
   .reach = CHOICE(isolation.namespaces), .choices = {"auto", "off"},
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.cgroups", .help = "Start each worker process in a control group (cgroup v2) of its own, with limits on its memory and threads: auto (if the daemon's own group is delegated, as systemd's Delegate= does; /v1/workers says what is in force) or off.",
   .reach = CHOICE(isolation.cgroups), .choices = {"auto", "off"},
   .reload = Reload::kRestart, .worker = Worker::kNo},
  {.key = "isolation.worker_memory_mb", .help = "Most MiB of the machine's memory that a worker process may take, if it has a control group (isolation.cgroups); the kernel ends a process that needs more. 0: no limit.",
   .reach = NUMBER(isolation.worker_memory_mb), .most = 1 << 24,
   .reload = Reload::kWorkers, .worker = Worker::kNo},
  {.key = "isolation.sandbox_calls", .help = "Further system calls that confined workers may make, for a driver that needs them: names separated by commas.",
   .reach = TEXT(isolation.sandbox_calls),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.sandbox_paths", .help = "Further files and folders that confined workers may read, for a driver in another place: absolute paths separated by colons.",
   .reach = TEXT(isolation.sandbox_paths),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "isolation.journal_path", .help = "File that keeps resumable streams when the daemon restarts; empty: memory only.",
   .reach = TEXT(isolation.journal_path),
   .reload = Reload::kRestart, .worker = Worker::kNo},
  {.key = "isolation.resume_window_s", .help = "Seconds for which a resumable stream can be resumed after its client left, and read after its end.",
   .reach = NUMBER(isolation.resume_window_s), .least = 1, .most = 86400,
   .reload = Reload::kNow, .worker = Worker::kNo},

  {.key = "log.level", .help = "trace, debug, info, warn, error or off.",
   .reach = TEXT(log.level), .choices = kLogLevels,
   .reload = Reload::kNow, .worker = Worker::kYes},
  {.key = "log.format", .help = "text, or json (one object per line).",
   .reach = TEXT(log.format), .choices = {"text", "json"},
   .reload = Reload::kRestart, .worker = Worker::kYes},
};

const ModelSetting kModelSettings[] = {
  {.key = "name", .help = "Name in the API; empty: the name in the file's metadata.",
   .reach = MODEL_FIELD(std::string, name),
   .reload = Reload::kNow, .worker = Worker::kYes},
  {.key = "path", .help = "GGUF file (of a split model, its first part), or builtin.",
   .reach = MODEL_FIELD(std::string, path),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "device", .help = "auto, cpu, a device's number or part of its name (see `bulkhead doctor`).",
   .reach = MODEL_FIELD(std::string, device),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "devices", .help = "Several devices for replicas of the model, each as `device` names one (twice: two shares of it), or all: every usable GPU. Requests go where their beginning is cached, or where there is least to do. Empty: `device`.",
   .reach = MODEL_FIELD(std::vector<std::string>, devices),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "workers", .help = "How many worker processes serve the model, on each of its devices.",
   .reach = MODEL_FIELD(std::uint32_t, workers), .least = 1, .most = 64,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "context", .help = "Most tokens of a sequence, prompt and answer; 0: the model's own limit, or what fits in memory.",
   .reach = MODEL_FIELD(std::uint32_t, context), .most = 1U << 24,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "aliases", .help = "More names of the model, which requests may use.",
   .reach = MODEL_FIELD(std::vector<std::string>, aliases),
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "load", .help = "When the daemon loads the model: start (at its own start), or first_use (the first request waits until the model is loaded).",
   .reach = MODEL_CHOICE(load), .choices = {"start", "first_use"},
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "reasoning_budget", .help = "Most tokens of reasoning in an answer if the request names no limit; 0: no limit.",
   .reach = MODEL_FIELD(std::uint32_t, reasoning_budget), .most = 1U << 24,
   .reload = Reload::kNow, .worker = Worker::kNo},
  {.key = "cores", .help = "Numbers of the processor's cores that the model's workers may run on; empty: any.",
   .reach = MODEL_FIELD(std::vector<std::uint32_t>, cores), .most = 1023,
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "chat_template", .help = "Chat template in place of the model's own: a file (with / or .jinja), or NAME for tokenizer.chat_template.NAME.",
   .reach = MODEL_FIELD(std::string, chat_template),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
  {.key = "draft", .help = "GGUF file of a small model of the same vocabulary that guesses coming tokens, beside what engine.speculation finds in repeated text; no token changes. Empty: none.",
   .reach = MODEL_FIELD(std::string, draft),
   .reload = Reload::kWorkers, .worker = Worker::kYes},
};
// clang-format on

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

Error wrong(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

std::string joined(const std::vector<const char*>& words) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) result += i + 1 == words.size() ? " or " : ", ";
    result += words[i];
  }
  return result;
}

Result<bool> parse_flag(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return wrong(quoted(text) + " is not true or false");
}

template <typename Owner>
Result<std::uint32_t> parse_number(const Field<Owner>& field, std::string_view text) {
  const std::string range = field.most == UINT32_MAX
                                ? "a whole number from " + std::to_string(field.least)
                                : "a whole number from " + std::to_string(field.least) + " to " +
                                      std::to_string(field.most);
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size() || failure == std::errc::invalid_argument) {
    return wrong(quoted(text) + " is not " + range);
  }
  if (failure != std::errc{} || value < field.least || value > field.most) {
    return wrong(std::string(text) + " is out of range; it must be " + range);
  }
  if (field.power_of_two && (value & (value - 1)) != 0) {
    std::uint64_t above = 1;
    while (above < value)
      above *= 2;
    return wrong(std::string(text) + " is not a power of two; the nearest are " +
                 std::to_string(above / 2) + " and " + std::to_string(above));
  }
  return static_cast<std::uint32_t>(value);
}

template <typename Owner>
Result<std::uint32_t> parse_choice(const Field<Owner>& field, std::string_view text) {
  const std::string word = lower(text);
  for (std::size_t i = 0; i < field.choices.size(); ++i) {
    if (word == field.choices[i]) return static_cast<std::uint32_t>(i);
  }
  // A flag that has got a third choice is written as any flag.
  if (const Result<bool> flag = parse_flag(text); flag.ok()) {
    for (std::size_t i = 0; i < field.choices.size(); ++i) {
      if (field.choices[i] == std::string_view(*flag ? "true" : "false"))
        return static_cast<std::uint32_t>(i);
    }
  }
  return wrong(quoted(text) + " is not " + joined(field.choices));
}

template <typename Owner>
Status store_in(const Field<Owner>& field, Owner& owner, const Written& written) {
  if (written.is_list && !wants_list(field)) return wrong("takes one value, not a list");
  const std::string& text = written.items.empty() ? std::string() : written.items.front();
  return std::visit(Overloaded{
                        [&](Reach<Owner, bool> reach) -> Status {
                          BULKHEAD_TRY(reach(owner), parse_flag(text));
                          return {};
                        },
                        [&](Reach<Owner, std::uint32_t> reach) -> Status {
                          BULKHEAD_TRY(reach(owner), parse_number(field, text));
                          return {};
                        },
                        [&](Reach<Owner, std::string> reach) -> Status {
                          if (field.choices.empty()) {
                            reach(owner) = text;
                            return {};
                          }
                          BULKHEAD_TRY(const std::uint32_t choice, parse_choice(field, text));
                          reach(owner) = field.choices[choice];
                          return {};
                        },
                        [&](Reach<Owner, std::vector<std::uint32_t>> reach) -> Status {
                          std::vector<std::uint32_t> numbers;
                          for (const std::string& item : written.items) {
                            BULKHEAD_TRY(const std::uint32_t number, parse_number(field, item));
                            numbers.push_back(number);
                          }
                          reach(owner) = std::move(numbers);
                          return {};
                        },
                        [&](Reach<Owner, std::vector<std::string>> reach) -> Status {
                          if (std::ranges::find(written.items, "") != written.items.end())
                            return wrong("has an empty entry");
                          reach(owner) = written.items;
                          return {};
                        },
                        [&](const EnumReach<Owner>& reach) -> Status {
                          BULKHEAD_TRY(const std::uint32_t choice, parse_choice(field, text));
                          reach.set(owner, choice);
                          return {};
                        },
                    },
                    field.reach);
}

template <typename Owner>
std::string text_in(const Field<Owner>& field, const Owner& const_owner) {
  Owner& owner =
      const_cast<Owner&>(const_owner);  // the accessors serve reading and writing; this only reads
  return std::visit(
      Overloaded{
          [&](Reach<Owner, bool> reach) -> std::string { return reach(owner) ? "true" : "false"; },
          [&](Reach<Owner, std::uint32_t> reach) { return std::to_string(reach(owner)); },
          [&](Reach<Owner, std::string> reach) { return reach(owner); },
          [&](Reach<Owner, std::vector<std::uint32_t>> reach) {
            std::vector<std::string> numbers;
            for (const std::uint32_t number : reach(owner))
              numbers.push_back(std::to_string(number));
            return "[" + bulkhead::joined(numbers) + "]";
          },
          [&](Reach<Owner, std::vector<std::string>> reach) {
            return "[" + bulkhead::joined(reach(owner)) + "]";
          },
          [&](const EnumReach<Owner>& reach) -> std::string {
            return field.choices[reach.get(owner)];
          },
      },
      field.reach);
}

}  // namespace

std::span<const RetiredSetting> retired_settings() {
  static constexpr RetiredSetting kRetired[] = {
      {"gpu_optimizations.persistent_step",
       "no longer exists, since chained kernels are faster; the setting has no effect, remove it"},
  };
  return kRetired;
}

std::span<const Setting> settings_table() {
  return kSettings;
}
std::span<const ModelSetting> model_settings_table() {
  return kModelSettings;
}

Status store(const Setting& field, Settings& owner, const Written& written) {
  return store_in(field, owner, written);
}
Status store(const ModelSetting& field, ModelSettings& owner, const Written& written) {
  return store_in(field, owner, written);
}
std::string text_of(const Setting& field, const Settings& owner) {
  return text_in(field, owner);
}
std::string text_of(const ModelSetting& field, const ModelSettings& owner) {
  return text_in(field, owner);
}

}  // namespace bulkhead::config

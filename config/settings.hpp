// Every setting of Bulkhead as plain data. Each is a row of a file in config/rows/:
//
//   SETTING(type, name, default, .help = "...", limits, .reload = what a reload does with it,
//           .worker = whether a worker reads it)
//
// In this file a row makes a member. In settings_table.cpp it makes an entry of the table that drives YAML loading,
// --set, validation and the printed reference, config/runtime.yaml. `Field` (settings_table.hpp) lists what a row may
// say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::config {

#define SETTING(type, name, initial, ...) type name = initial;

enum class AnyModelName { kAuto, kOn, kOff };

struct ServerSettings {
#include "config/rows/server.inc"
};

// When a model's workers are started.
enum class Load { kStart, kFirstUse };

// The samplers of a request that names none. kApi: those of its API. kFile: those that the model's file recommends.
enum class SamplingDefaults { kApi, kFile };

// How workers use several devices (ModelSettings::devices).
enum class Split {
  kNo,      // each worker has one of the devices
  kLayers,  // each worker has all of the devices, and each device computes some of the model's layers
};

// The most workers that a model may have on all of its devices together.
inline constexpr std::size_t kMostWorkersOfModel = 64;

// The most devices that can share a model's layers.
inline constexpr std::size_t kMostStages = 16;

struct ModelSettings {
#include "config/rows/model.inc"
};

enum class Transport { kShm, kStdio };
enum class RegionKind { kMemfd, kPosix };

struct IpcSettings {
#include "config/rows/ipc.inc"
};

struct MemoryPoolSettings {
#include "config/rows/memory_pool.inc"
};

struct BlitQueueSettings {
#include "config/rows/blit_queue.inc"
};

struct CommandBufferRingSettings {
#include "config/rows/command_buffer_ring.inc"
};

// Measures variants of kernels with bit-equal results on the device, once, and keeps the fastest.
struct AutotuneSettings {
#include "config/rows/autotune.inc"
};

// Whether steps with few columns run without barriers between their kernels. kAuto: where this has been measured to
// be faster.
enum class ChainedKernels { kAuto, kOn, kOff };

struct GpuOptimizations {
#include "config/rows/gpu_optimizations.inc"
  MemoryPoolSettings memory_pool;
  BlitQueueSettings blit_queue;
  CommandBufferRingSettings command_buffer_ring;
  AutotuneSettings autotune;
};

enum class KvType { kF16, kF32, kQ8_0 };
constexpr const char* to_string(KvType type) {
  switch (type) {
    case KvType::kF16:
      return "f16";
    case KvType::kF32:
      return "f32";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "";
}
enum class Numerics { kExact, kFast };
// Whether matrix products use the device's matrix units. kAuto: where the device has units that the kernels support.
enum class MatrixUnits { kAuto, kOff };
// Whether attention uses matrix units, if products use them. kAuto: where matrix units are faster.
enum class MatrixAttention { kAuto, kOff, kOn };

// kAuto: what the model file says; otherwise the mean for encoders, and the last token for other models.
enum class Pooling { kAuto, kMean, kLast };

// Whether workers guess tokens and check the guesses in the same step (worker/engine/speculator.hpp). kNgram: workers
// guess from earlier text of the prompt and the answer while that is faster. kAlways: they check every guess that
// they have.
enum class Speculation { kOff, kNgram, kAlways };

struct EngineSettings {
#include "config/rows/engine.inc"
};

enum class SandboxMode { kOn, kOff, kLog };
enum class NamespaceMode { kAuto, kOff };
enum class ControlGroupMode { kAuto, kOff };
enum class WorkerUserMode { kAuto, kOff };

struct IsolationSettings {
#include "config/rows/isolation.inc"
};

struct LogSettings {
#include "config/rows/log.inc"
};

#undef SETTING

struct Settings {
  ServerSettings server;
  std::vector<ModelSettings> models;  // empty: the built-in model
  IpcSettings ipc;
  GpuOptimizations gpu_optimizations;
  EngineSettings engine;
  IsolationSettings isolation;
  LogSettings log;
};

// The longest time that a worker waits for its device, in milliseconds. The default is a twentieth less than the
// daemon's patience, so that the worker can report which step hangs before the daemon kills it.
inline std::uint32_t device_wait_ms(const Settings& settings) {
  const std::uint32_t own = settings.gpu_optimizations.command_buffer_ring.timeout_ms;
  const std::uint32_t heartbeat = settings.isolation.heartbeat_timeout_ms;
  return own != 0 ? own : heartbeat - heartbeat / 20;
}

}  // namespace bulkhead::config

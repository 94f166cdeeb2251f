#include "config/settings_table.hpp"

#include <type_traits>

namespace bulkhead::config {
namespace {

const std::vector<const char*> kLogLevels = {"trace", "debug", "info", "warn", "error", "off"};
constexpr std::uint32_t kHourMs = 3'600'000;
constexpr std::uint32_t kSecondUs = 1'000'000;
constexpr std::uint32_t kTebibyteMb = 1U << 20;

// `Get`: a lambda without captures that returns the member of an owner.
template <typename Owner, typename Value, typename Get>
auto reach_by(Get) {
  if constexpr (std::is_enum_v<Value>) {
    return EnumReach<Owner>{
        [](const Owner& owner) {
          return static_cast<std::uint32_t>(Get{}(const_cast<Owner&>(owner)));  // only reads it
        },
        [](Owner& owner, std::uint32_t index) { Get{}(owner) = static_cast<Value>(index); }};
  } else {
    return Reach<Owner, Value>(Get{});
  }
}

// clang-format off
#define TEXT_OF(...) #__VA_ARGS__
#define KEY_OF(section, name) TEXT_OF(section) "." #name
#define SETTING(type, name, initial, ...)                                                      \
  {.key = KEY_OF(SECTION, name),                                                               \
   .reach = reach_by<Settings, type>([](Settings& all) -> type& { return all.SECTION.name; }), \
   __VA_ARGS__},
const Setting kSettings[] = {
#define SECTION server
#include "config/rows/server.inc"
#undef SECTION
#define SECTION ipc
#include "config/rows/ipc.inc"
#undef SECTION
#define SECTION gpu_optimizations
#include "config/rows/gpu_optimizations.inc"
#undef SECTION
#define SECTION gpu_optimizations.autotune
#include "config/rows/autotune.inc"
#undef SECTION
#define SECTION gpu_optimizations.memory_pool
#include "config/rows/memory_pool.inc"
#undef SECTION
#define SECTION gpu_optimizations.blit_queue
#include "config/rows/blit_queue.inc"
#undef SECTION
#define SECTION gpu_optimizations.command_buffer_ring
#include "config/rows/command_buffer_ring.inc"
#undef SECTION
#define SECTION engine
#include "config/rows/engine.inc"
#undef SECTION
#define SECTION isolation
#include "config/rows/isolation.inc"
#undef SECTION
#define SECTION log
#include "config/rows/log.inc"
#undef SECTION
};
#undef SETTING
#define SETTING(type, name, initial, ...)                                                            \
  {.key = #name,                                                                                     \
   .reach = reach_by<ModelSettings, type>([](ModelSettings& model) -> type& { return model.name; }), \
   __VA_ARGS__},
const ModelSetting kModelSettings[] = {
#include "config/rows/model.inc"
};
#undef SETTING
// clang-format on

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

}  // namespace bulkhead::config

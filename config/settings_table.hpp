// The one table of settings: the keys, where each value lives in Settings, which values are allowed, and the help
// text. The rows are in config/rows/. Private to config/: the rest of the product uses Settings and config.hpp.
//
// A value has the same text form everywhere: in --set, in YAML scalars (or lists) and in the printed reference.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "config/reload.hpp"
#include "config/settings.hpp"

namespace bulkhead::config {

// How to reach a field in its owner (Settings, or one ModelSettings).
template <typename Owner, typename Value>
using Reach = Value& (*)(Owner&);

// An enumeration is read and written as its index in Field::choices.
template <typename Owner>
struct EnumReach {
  std::uint32_t (*get)(const Owner&);
  void (*set)(Owner&, std::uint32_t);
};

// A property that each row must state: a row without it does not compile.
template <typename Value>
struct Stated {
  constexpr Stated(Value stated) : value(stated) {}
  constexpr operator Value() const { return value; }
  Value value;
};

// Whether a worker reads the setting. If so, the daemon passes it to each worker at its start.
enum class Worker { kNo, kYes };

template <typename Owner>
struct Field {
  const char* key;  // "gpu_optimizations.memory_pool.heap_size_mb"; within a model entry "path"
  std::variant<Reach<Owner, bool>, Reach<Owner, std::uint32_t>, Reach<Owner, std::string>,
               Reach<Owner, std::vector<std::uint32_t>>, Reach<Owner, std::vector<std::string>>,
               EnumReach<Owner>>
      reach;
  const char* help;  // one line
  // For numbers, and for each entry of a list.
  std::uint32_t least = 0;
  std::uint32_t most = UINT32_MAX;
  bool power_of_two = false;
  // For enumerations, and for strings with a few allowed words. Empty: any text.
  std::vector<const char*> choices = {};
  // This version lacks the feature that the key sets: setting a value other than the default produces a
  // Notice.
  bool later = false;
  // The setting is or contains an API key, so settings_yaml() hides it.
  bool secret = false;
  // What a reload does with it. For a model's settings, kWorkers means that model's workers.
  Stated<Reload> reload;
  Stated<Worker> worker;
};

using Setting = Field<Settings>;
using ModelSetting = Field<ModelSettings>;

std::span<const Setting> settings_table();
std::span<const ModelSetting> model_settings_table();

// A setting of earlier versions that no longer exists. A configuration that still has it works, and produces one
// Notice.
struct RetiredSetting {
  const char* key;
  const char* why;  // follows "KEY: "
};
std::span<const RetiredSetting> retired_settings();

// A value as the user wrote it: one text, or a list of texts.
struct Written {
  std::vector<std::string> items;  // exactly one unless is_list
  bool is_list = false;
};

// Checks `written` against the field's kind and limits and stores it. The error message says what was wrong with the
// value ("70000 is more than 65535"); the caller adds where.
Status store(const Setting& field, Settings& owner, const Written& written);
Status store(const ModelSetting& field, ModelSettings& owner, const Written& written);

// Returns whether the field takes a list.
template <typename Owner>
bool wants_list(const Field<Owner>& field) {
  return std::holds_alternative<Reach<Owner, std::vector<std::uint32_t>>>(field.reach) ||
         std::holds_alternative<Reach<Owner, std::vector<std::string>>>(field.reach);
}

// Returns the field's value in its text form: "true", "256", "[32, 128]", "shm".
std::string text_of(const Setting& field, const Settings& owner);
std::string text_of(const ModelSetting& field, const ModelSettings& owner);

}  // namespace bulkhead::config

// The one table of settings: which keys there are, where each lives in Settings, what it may be and
// what it is for. The rows stand in config/rows/. Private to config/: the rest of the product sees Settings and
// config.hpp.
//
// A key's text form is the same everywhere: what --set takes, a YAML scalar (or list) reads and the
// reference prints.
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

// How a field is reached in its owner (Settings, or one ModelSettings).
template <typename Owner, typename Value>
using Reach = Value& (*)(Owner&);

// An enumeration is read and written by its index in Field::choices.
template <typename Owner>
struct EnumReach {
  std::uint32_t (*get)(const Owner&);
  void (*set)(Owner&, std::uint32_t);
};

// What a row must say: leaving it out does not compile.
template <typename Value>
struct Stated {
  constexpr Stated(Value stated) : value(stated) {}
  constexpr operator Value() const { return value; }
  Value value;
};

// Whether a worker reads the setting, and is given it when it is started.
enum class Worker { kNo, kYes };

template <typename Owner>
struct Field {
  const char* key;  // "gpu_optimizations.memory_pool.heap_size_mb"; within a model entry "path"
  std::variant<Reach<Owner, bool>, Reach<Owner, std::uint32_t>, Reach<Owner, std::string>,
               Reach<Owner, std::vector<std::uint32_t>>, Reach<Owner, std::vector<std::string>>,
               EnumReach<Owner>>
      reach;
  const char* help;  // one line
  // Numbers, and each entry of a list.
  std::uint32_t least = 0;
  std::uint32_t most = UINT32_MAX;
  bool power_of_two = false;
  // Enumerations, and strings that are one of a few words; empty: any text.
  std::vector<const char*> choices = {};
  // The feature behind the key is not in this version: setting it to other than the default earns a
  // Notice.
  bool later = false;
  // The setting is an API key or contains some, so settings_yaml() hides it.
  bool secret = false;
  // What a reload does with it. Of a model's settings kWorkers means that model's.
  Stated<Reload> reload;
  Stated<Worker> worker;
};

using Setting = Field<Settings>;
using ModelSetting = Field<ModelSettings>;

std::span<const Setting> settings_table();
std::span<const ModelSetting> model_settings_table();

// A setting of earlier versions that is gone: a configuration that still has it is told so once, and
// works otherwise.
struct RetiredSetting {
  const char* key;
  const char* why;  // follows "KEY: "
};
std::span<const RetiredSetting> retired_settings();

// A value as it was written: one text, or a list of them.
struct Written {
  std::vector<std::string> items;  // exactly one unless is_list
  bool is_list = false;
};

// Checks `written` against the field's kind and limits and stores it. The message starts at what
// was wrong with the value ("70000 is more than 65535"); the caller adds where.
Status store(const Setting& field, Settings& owner, const Written& written);
Status store(const ModelSetting& field, ModelSettings& owner, const Written& written);

// Whether the field takes a list.
template <typename Owner>
bool wants_list(const Field<Owner>& field) {
  return std::holds_alternative<Reach<Owner, std::vector<std::uint32_t>>>(field.reach) ||
         std::holds_alternative<Reach<Owner, std::vector<std::string>>>(field.reach);
}

// The field's value in its text form: "true", "256", "[32, 128]", "shm".
std::string text_of(const Setting& field, const Settings& owner);
std::string text_of(const ModelSetting& field, const ModelSettings& owner);

}  // namespace bulkhead::config

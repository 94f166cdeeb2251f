// Looking settings up by name, and what somebody meant who mistyped one. Private to config/.
#pragma once

#include <string>
#include <string_view>

#include "config/settings_table.hpp"

namespace bulkhead::config {

// Null when there is none.
const Setting* find_setting(std::string_view key);
const ModelSetting* find_model_setting(std::string_view key);
const RetiredSetting* find_retired_setting(std::string_view key);
// Whether settings lie in a section of that name.
bool is_section(const std::string& name);

// The known name nearest to a mistyped one. A right last part in the wrong section is nearer than
// its distance says: "heap_size_mb" at the top level means the one key that ends so. `model_prefix`:
// what stands before a model's settings, "models.0.".
std::string nearest_name(const std::string& mistyped, const std::string& model_prefix);

}  // namespace bulkhead::config

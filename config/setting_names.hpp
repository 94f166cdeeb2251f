// Finds settings by name, and suggests the key that a user meant by a mistyped one. Private to config/.
#pragma once

#include <string>
#include <string_view>

#include "config/settings_table.hpp"

namespace bulkhead::config {

// Returns null if there is no such setting.
const Setting* find_setting(std::string_view key);
const ModelSetting* find_model_setting(std::string_view key);
const RetiredSetting* find_retired_setting(std::string_view key);
// Returns whether any setting lies in a section with that name.
bool is_section(const std::string& name);

// Returns the known name nearest to a mistyped one. A name whose last part is right but whose section is wrong counts
// as nearer than its edit distance: "heap_size_mb" at the top level means the one key that ends so. `model_prefix` is
// what stands before a model's settings, such as "models.0.".
std::string nearest_name(const std::string& mistyped, const std::string& model_prefix);

}  // namespace bulkhead::config

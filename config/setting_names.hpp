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

// Returns the known name nearest to a mistyped one by edit distance. A wrong section counts as at most three edits,
// so that "heap_size_mb" at the top level finds the key that ends in these words. `model_prefix` is
// what stands before a model's settings, such as "models.0.".
std::string nearest_name(const std::string& mistyped, const std::string& model_prefix);

}  // namespace bulkhead::config

// What the setting models[].draft may name besides a file.
#pragma once

#include <string_view>

namespace bulkhead::config {

// The block of the model's own file that drafts tokens (multi-token prediction).
inline constexpr std::string_view kOwnBlock = "mtp";

// Returns whether models[].draft names a file.
inline bool is_draft_file(std::string_view draft) {
  return !draft.empty() && draft != "builtin" && draft != kOwnBlock;
}

}  // namespace bulkhead::config

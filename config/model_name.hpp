// What a model is called by its settings.
#pragma once

#include <filesystem>
#include <string>

#include "config/settings.hpp"

namespace bulkhead::config {

// Returns the name of the file at `path`, without its folders and its extension; "builtin" for the built-in model.
inline std::string file_name_of(const std::string& path) {
  if (path.empty() || path == "builtin") return "builtin";
  return std::filesystem::path(path).stem().string();
}

// Returns the model's name, or its file's name if it has none. (A worker may later report a better one, from the file.)
inline std::string name_of(const ModelSettings& model) {
  return model.name.empty() ? file_name_of(model.path) : model.name;
}

}  // namespace bulkhead::config
